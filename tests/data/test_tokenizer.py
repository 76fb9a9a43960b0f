"""Text to ids and back loses nothing, whatever the text."""

import re

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.read import nfc
from data.tokenizer import MARK, Stream, Tokenizer, chunks, spaced
from tests.conftest import fuzzed, sentences

EXACT = [
    "",
    " ",
    "   ",
    "\n",
    " 앞뒤 ",
    "두  칸   세 칸",
    "첫 줄\n둘째 줄\n\n넷째 줄\t끝",
    "줄 끝\n",
    "\n \n  들여쓴 줄",
    "ㅋㅋㅋ ㅠㅠ ㄳ ㈜ ① …",
    "ﾡ 반각",
    "뷁㉿ 櫻 😀",
    "밑줄 ▁ 기호",
    "▁▁",
    "▅ ⁇ \ufeff",
    "a\0b",
    "<s> </s> <unk> <0xEB>",
    "\r\n \x0b \u2028 \x85",
    "👩‍👩‍👧‍👦",
]


@pytest.mark.parametrize("text", EXACT)
def test_exact(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == "".join(tokenizer.stream(ids)) == text
    assert MARK not in ids and tokenizers.UNKNOWN not in ids


@fuzzed(500)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text(" \n\t▁▅가나다ㅋ😀\0"))
def test_exact_for_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == nfc(text)


@fuzzed(300)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.text(" \n\t▁▅가나다ㅋ😀\0")))
def test_many_at_once_are_what_each_is_alone(tokenizer, texts):
    together = tokenizer.encode_all(texts).tolist()
    assert together == [id for text in texts for id in (*tokenizer.encode(text), MARK)]


@fuzzed(200)
@given(st.lists(st.integers(0, 399)))
def test_a_stream_joined_is_the_decoding(tokenizer, ids):
    ids = [id % tokenizer.vocab_size for id in ids]
    parts = list(tokenizer.stream(ids))
    assert len(parts) == len(ids)
    assert "".join(parts) == tokenizer.decode(ids)


def test_composed_and_decomposed_give_the_same_ids(tokenizer):
    assert tokenizer.encode("\u1100\u1161\u11a8") == tokenizer.encode("\uac01") == tokenizer.encode("각")
    assert tokenizer.decode(tokenizer.encode("\uf914")) == "\u6a02"  # a duplicate Hanja is unified, as nfc says


@pytest.mark.parametrize("text", ["\ud800", "나무\udfff", "\udcff"])
def test_a_lone_surrogate_is_refused_in_one_line(tokenizer, text):
    with pytest.raises(ValueError, match="lone surrogate") as caught:
        tokenizer.encode(text)
    assert "\n" not in str(caught.value)


def test_a_word_is_the_same_token_at_a_line_start_and_inside(tokenizer):
    word = tokenizer.encode("사과를")
    assert len(word) == 1
    for text in ("사과를 사과를", "나는\n사과를", "\n\n사과를"):
        assert tokenizer.encode(text)[-1:] == word


def test_golden_tokens(tokenizer):
    def tokens(text):
        return [tokenizer.token(id) for id in tokenizer.encode(text)]

    assert tokens("나는 사과를\n나는") == ["▁나는", "▁사과를", "\n", "▁나는"]
    assert tokens("뷁") == ["▁", "<0xEB>", "<0xB7>", "<0x81>"]
    assert tokens("▁") == ["▁", "<0xE2>", "<0x96>", "<0x81>"]


def test_half_a_syllable_is_never_shown(tokenizer):
    ids = tokenizer.encode("뷁")
    assert list(tokenizer.stream(ids)) == ["", "", "", "뷁"]
    stream = Stream(tokenizer)
    assert "".join(map(stream.add, ids[:-1])) == "" and stream.unfinished
    assert tokenizer.decode(ids[:-1]) == ""  # what is unfinished is left out
    assert tokenizer.decode([*ids[:-1], *tokenizer.encode("나는")]) == "\ufffd 나는"  # and blocks nothing


def test_a_line_starts_after_the_mark(tokenizer):
    word = tokenizer.encode("나는")
    assert tokenizer.decode([MARK, *word, MARK, *word]) == "나는나는"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_is_deterministic(kind):
    config = TokenizerConfig(kind=kind, vocab_size=340)
    once, again = (tokenizers.train(sentences(100), config) for _ in range(2))
    assert once.model == again.model
    assert once.hash != tokenizers.train(sentences(101), config).hash


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [1, 200, 5000])
def test_a_vocabulary_that_does_not_suit_is_settled_in_one_line(kind, size):
    texts, said = ["나무 아래 작은 집", "두  칸 ㅋㅋ", "바다가 보인다"], []
    config = TokenizerConfig(kind=kind, vocab_size=size, coverage=1.0)
    made = tokenizers.train(texts, config, said.append)
    (line,) = [line for line in said if "does not suit" in line]
    least, most, taken = (int(number) for number in re.search(r"allows (\d+) to (\d+): (\d+) taken", line).groups())
    assert taken == made.vocab_size == (most if size > most else least)
    for bound in (least, most):  # both bounds are possible, the sizes beyond them are not
        assert tokenizers.attempt(texts, config, bound)[0]
    for beyond in (least - 1, most + 1):
        assert not tokenizers.attempt(texts, config, beyond)[0]


def test_characters_get_tokens_as_far_as_two_fifths_of_the_vocabulary_go():
    texts = ["가나다라마바사아자차" * 100, "카타파하갸냐댜랴먀뱌"]  # ten common characters, ten rare ones
    assert tokenizers.coverage(texts, 100) == 1.0
    assert tokenizers.coverage(texts, 35) == 1004 / 1010
    assert tokenizers.coverage(texts, 10) == 0.98
    made = tokenizers.train(sentences(200), TokenizerConfig(vocab_size=400))
    assert not [id for text in sentences(200) for id in made.encode(text) if made.token(id).startswith("<0x")]


def test_long_lines_are_cut_not_skipped():
    said = []
    long = "쀍" * 5000
    made = tokenizers.train(
        [*sentences(50), long, "가나다" * 2000], TokenizerConfig(vocab_size=400, coverage=1.0), said.append
    )
    assert "쀍" in [made.token(id).strip("▁")[:1] for id in range(made.vocab_size)]
    given_bytes = sum(len(text.encode()) for text in [*sentences(50), long, "가나다" * 2000])
    assert f"trained on {given_bytes:,} of {given_bytes:,} bytes" in said[0]
    assert "".join(chunks([long])) == spaced(long)


def test_another_kind_of_tokenizer_is_refused(tmp_path):
    import io

    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(100)), model_writer=buffer, vocab_size=60, model_type="bpe", minloglevel=2
    )
    with pytest.raises(ValueError, match="lacks byte tokens"):
        Tokenizer(buffer.getvalue())
    for damaged in (b"", b"no model", buffer.getvalue()[:50]):
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(ValueError, match="tokenizer.model: the tokenizer"):
            tokenizers.load(tmp_path / "tokenizer.model")


def test_no_path_reaches_the_library(tmp_path, tokenizer):
    folder = tmp_path / "한글 폴더" / "모델 1"
    folder.mkdir(parents=True)
    (folder / "tokenizer.model").write_bytes(tokenizer.model)
    assert tokenizers.load(folder / "tokenizer.model").hash == tokenizer.hash
