"""Files of every encoding become the documents that a person would expect, and are split for good."""

import random

import pytest

from data.config import DataConfig
from data.read import cut, decode, enough, find_files, nfc, part, position_by_content, read_documents, split
from tests.conftest import sentences


@pytest.mark.parametrize(
    "raw, text, encoding",
    [
        ("바다가 보인다\n".encode(), "바다가 보인다\n", "utf-8"),
        (b"\xb3\xaa\xb9\xab", "나무", "cp949"),
        (b"\x8c\x63", "똠", "cp949"),  # Python's euc_kr refuses it
        (b"\xef\xbb\xbf" + "가나다".encode(), "가나다", "utf-8"),
        ("가나다".encode("utf-16"), "가나다", "utf-16"),
        (b"\xfe\xff" + "가나다".encode("utf-16-be"), "가나다", "utf-16"),
        ("가나다".encode("utf-32"), "가나다", "utf-32"),
        ("하나\r\n둘\r셋\n".encode(), "하나\n둘\n셋\n", "utf-8"),
        ("\u1100\u1161\u11a8".encode(), "\uac01", "utf-8"),
    ],
)
def test_a_fixed_order_without_guessing(raw, text, encoding):
    assert decode(raw, None, "file") == (text, encoding)


def test_the_encoding_asked_for_wins():
    raw = "크크크".encode("cp949")  # valid UTF-8 too
    assert decode(raw, None, "file") == ("ũũũ", "utf-8")
    assert decode(raw, "cp949", "file") == ("크크크", "cp949")
    assert (
        decode("\ufeff가".encode(), "utf-8", "file")[0]
        == decode("\ufeff가".encode("utf-16-le"), "utf-16-le", "file")[0]
        == "가"
    )


@pytest.mark.parametrize(
    "raw, encoding, words",
    [
        (b"\xff\xff\xff", None, "not valid utf-8 or cp949"),
        (b"\xef\xbb\xbf\xff", None, "not valid utf-8"),
        ("가".encode(), "ascii", "not valid ascii"),
        ("가".encode(), "utf-99", "unknown encoding 'utf-99'"),
        ("가나 다\n".encode("utf-16-le"), None, "NUL|not valid"),
        ("ab\n".encode("utf-16-le"), None, "NUL characters"),
    ],
)
def test_what_cannot_be_read_is_refused_and_names_the_way_out(raw, encoding, words):
    with pytest.raises(ValueError, match=words) as caught:
        decode(raw, encoding, "file")
    assert "--data.encoding" in str(caught.value)


def test_units():
    text = "하나\n둘\n\n \t\n셋\n\n\n  넷  \n"
    assert list(part(text, "document")) == ["하나\n둘", "셋", "  넷  "]
    assert list(part(text, "line")) == ["하나", "둘", "셋", "  넷  "]
    assert list(part(text, "file")) == [text.removesuffix("\n")]


def test_what_was_read_is_said(tmp_path):
    (tmp_path / "a.txt").write_bytes("가\n\n나".encode("cp949"))
    said = []
    assert read_documents(DataConfig(path=(str(tmp_path),)), said.append) == ["가", "나"]
    assert any("a.txt: read as cp949" in line for line in said)
    assert any("2 documents by unit 'document', parted by blank lines" in line for line in said)


def test_files_folders_and_globs_in_order_and_once(tmp_path):
    for name in ("b.txt", "a.txt", "한글 폴더/c.md", "d.bin", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    names = [path.name for path in find_files((str(tmp_path / "b.txt"), str(tmp_path), str(tmp_path / "*.txt")))]
    assert names == ["b.txt", "a.txt", "c.md"]
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        find_files((str(tmp_path / "missing*"),))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no .txt or .md file in the folder"):
        find_files((str(tmp_path / "empty"),))


@pytest.mark.parametrize("text", ["", "\n\n\n", "  \n \t\n"])
def test_no_text_is_refused(tmp_path, text):
    (tmp_path / "empty.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no text in .*empty.txt"):
        read_documents(DataConfig(path=(str(tmp_path / "empty.txt"),)))


def test_the_limit_counts_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(sentences(30)), encoding="utf-8")
    config = DataConfig(path=(str(tmp_path),), unit="line", limit=7)
    assert read_documents(config) == sentences(30)[:7]


def test_few_documents_are_cut_where_lines_end():
    text = "\n".join(sentences(400))
    said = []
    stretches = enough([text], said.append)
    assert "\n".join(stretches) == text
    assert len(stretches) > 5 and all(1000 <= len(stretch) < 1100 for stretch in stretches[:-1])
    assert "fewer than 20 documents" in said[0]
    assert enough(sentences(20)) == sentences(20)


def test_one_endless_line_is_cut_too():
    words = " ".join(sentences(400))
    assert " ".join(cut(words)) == words
    assert all(len(stretch) <= 2000 for stretch in cut(words))
    assert "".join(cut("가" * 5500)) == "가" * 5500


def test_a_document_never_changes_sides():
    documents = [f"{sentence} {number}" for number, sentence in enumerate(sentences(500) * 4)]
    train, validation = split(documents)
    assert 0.03 < len(validation) / len(documents) < 0.07
    assert sorted(train + validation) == sorted(documents)
    shuffled = documents[:1500]
    random.Random(1).shuffle(shuffled)
    assert set(split(shuffled)[1]) <= set(validation)
    assert {position_by_content(document) < 0.05 for document in validation} == {True}


def test_a_small_text_still_has_a_validation_side():
    documents = ["가", "나", "다"]
    train, validation = split(documents)
    assert len(train) == 2 and len(validation) == 1


def test_nfc_composes_hangul():
    assert nfc("\u1112\u1161\u11ab\u1100\u1173\u11af") == "한글"
