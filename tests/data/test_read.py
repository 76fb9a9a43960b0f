"""Files of every encoding become the documents that a person would expect, and are split for good."""

import gzip
import random
import unicodedata

import pytest

from data.config import DataConfig
from data.read import STRETCH, Text, cut, enough, find_files, nfc, part
from data.split import below, digest
from tests.conftest import sentences, split


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
def test_a_fixed_order_without_guessing(tmp_path, raw, text, encoding):
    for name, content in (("a.txt", raw), ("a.txt.gz", gzip.compress(raw))):
        assert read(tmp_path, content, name=name) == (text.removesuffix("\n"), encoding)


def read(folder, raw, encoding=None, name="a.txt"):
    """Return the text of one file, the line end that closes it left out, and the encoding it was read in."""
    (folder / name).write_bytes(raw)
    said = []
    config = DataConfig(path=(str(folder / name),), unit="file", encoding=encoding)
    return "".join(Text(config, said.append)), said[0].rsplit(" ", 1)[1]


def test_the_encoding_asked_for_wins(tmp_path):
    raw = "크크크".encode("cp949")  # valid UTF-8 too
    assert read(tmp_path, raw) == ("ũũũ", "utf-8")
    assert read(tmp_path, raw, "cp949") == ("크크크", "cp949")
    assert (
        read(tmp_path, "\ufeff가".encode(), "utf-8")[0]
        == read(tmp_path, "\ufeff가".encode("utf-16-le"), "utf-16-le")[0]
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
def test_what_cannot_be_read_is_refused_and_names_the_way_out(tmp_path, raw, encoding, words):
    with pytest.raises(ValueError, match=words) as caught:
        read(tmp_path, raw, encoding)
    assert "--data.encoding" in str(caught.value)


def test_units():
    text = "하나\n둘\n\n \t\n셋\n\n\n  넷  \n"
    expected = {
        "document": ["하나\n둘", "셋", "  넷  "],
        "line": ["하나", "둘", "셋", "  넷  "],
        "file": [text.removesuffix("\n")],
    }
    for unit, documents in expected.items():
        for size in range(1, len(text) + 1):  # however it comes in blocks
            blocks = [text[at : at + size] for at in range(0, len(text), size)]
            assert list(part(blocks, unit)) == documents, (unit, size)


def test_what_was_read_is_said(tmp_path):
    (tmp_path / "a.txt").write_bytes("가\n\n나".encode("cp949"))
    said = []
    assert list(Text(DataConfig(path=(str(tmp_path),)), said.append)) == ["가", "나"]
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
    with pytest.raises(ValueError, match="no .txt, .md, .* or .parquet file in the folder"):
        find_files((str(tmp_path / "empty"),))


@pytest.mark.parametrize("text", ["", "\n\n\n", "  \n \t\n"])
def test_no_text_is_refused(tmp_path, text):
    (tmp_path / "empty.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no text in .*empty.txt"):
        list(Text(DataConfig(path=(str(tmp_path / "empty.txt"),))))


def test_the_limit_counts_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(sentences(30)), encoding="utf-8")
    config = DataConfig(path=(str(tmp_path),), unit="line", limit=7)
    assert list(Text(config)) == sentences(30)[:7]


def test_few_documents_are_cut_where_lines_end():
    text = "\n".join(sentences(400))
    said = []
    stretches = list(enough([text], said.append))
    assert "\n".join(stretches) == text
    assert len(stretches) > 5 and all(1000 <= len(stretch) < 1100 for stretch in stretches[:-1])
    assert "fewer than 20 documents" in said[0]
    assert enough(sentences(20)) == sentences(20)


def test_one_endless_line_is_cut_too():
    words = " ".join(sentences(400))
    assert " ".join(cut(words, STRETCH)) == words
    assert all(len(stretch) <= 2000 for stretch in cut(words, STRETCH))
    assert "".join(cut("가" * 5500, STRETCH)) == "가" * 5500


def test_a_document_never_changes_sides():
    documents = [f"{sentence} {number}" for number, sentence in enumerate(sentences(500) * 4)]
    train, validation = split(documents)
    assert 0.03 < len(validation) / len(documents) < 0.07
    assert sorted(train + validation) == sorted(documents)
    shuffled = documents[:1500]
    random.Random(1).shuffle(shuffled)
    assert set(split(shuffled)[1]) <= set(validation)
    assert {digest(document.encode()) < below(0.05) for document in validation} == {True}


def test_a_small_text_still_has_a_validation_side():
    documents = ["가", "나", "다"]
    train, validation = split(documents)
    assert len(train) == 2 and len(validation) == 1


def test_nfc_composes_hangul():
    assert nfc("\u1112\u1161\u11ab\u1100\u1173\u11af") == "한글"


def test_blocks_are_cut_where_composing_does_not_reach(tmp_path, monkeypatch):
    text = unicodedata.normalize("NFD", "한글 각각 값\n\n둘째 문서입니다.\n\n") * 50
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    whole = list(Text(DataConfig(path=(str(tmp_path),))))
    for size in (1, 2, 3, 7, 50):
        monkeypatch.setattr("data.read.BLOCK", size)
        assert list(Text(DataConfig(path=(str(tmp_path),)))) == whole
    assert whole == ["한글 각각 값", "둘째 문서입니다."] * 50 == [nfc(document) for document in whole]


def test_a_document_beyond_memory_is_cut_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("data.read.LONGEST", 1000)
    monkeypatch.setattr("data.read.BLOCK", 300)
    lines = sentences(700)
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = []
    for unit in ("document", "file"):
        documents = list(Text(DataConfig(path=(str(tmp_path),), unit=unit), said.append))
        assert "\n".join(documents) == "\n".join(lines)
        assert len(documents) > 5 and max(map(len, documents)) < 2300
        assert any("cut at line ends from longer documents" in line for line in said)


def test_marks_inside_the_text_never_reach_the_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeff가\n\n".encode() + "\ufeff나\n".encode())
    said = []
    assert list(Text(DataConfig(path=(str(tmp_path),)), said.append)) == ["가", "나"]
    assert "BOMs inside the text, left out: 1" in said


def test_each_thing_is_said_once_however_often_the_text_is_read(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(sentences(30)), encoding="utf-8")
    said = []
    text = Text(DataConfig(path=(str(tmp_path),)), said.append)
    assert list(enough(text)) == list(text) == sentences(30)
    assert len(said) == len(set(said)) == 2


def test_hidden_files_damaged_archives_and_what_is_no_file(tmp_path):
    (tmp_path / "a.txt").write_text("가", encoding="utf-8")
    (tmp_path / "._a.txt").write_bytes(b"\0\5\x16\7")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "a.txt").write_text("옛 글", encoding="utf-8")
    assert [path.name for path in find_files((str(tmp_path),))] == ["a.txt"]
    whole = gzip.compress("가나다\n".encode() * 1000)
    for damaged in (whole[:-12], whole[:30], b"no archive", whole[:20] + b"\xff\xff" + whole[22:]):
        (tmp_path / "b.txt.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match="b.txt.gz"):
            list(Text(DataConfig(path=(str(tmp_path / "b.txt.gz"),))))
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        find_files(("/dev/zero",))
    (tmp_path / "rows.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="make it .jsonl"):
        list(Text(DataConfig(path=(str(tmp_path / "rows.json"),))))
