"""The review lines: the same bytes from the same files, and a bad file is told in one line."""

import json

import pytest

from tests.conftest import door

REVIEWS = {
    "10.json": ["눈물이 날 만큼 아름다운 영화였다", "재미없다", "두  번  보아도\n\t좋은 영화였습니다 "],
    "2.json": [
        "처음부터 끝까지 손에 땀을 쥐었다",
        "눈물이  날 만큼 아름다운 영화였다",
        "ㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋ",
    ],
    "100.json": ["배우들의 연기가 정말 훌륭합니다 🙂", "열네 글자짜리 리뷰는 빠진"],
    "3.json": [],
}
TRAIN = ["배우들의 연기가 정말 훌륭합니다 🙂", "두 번 보아도 좋은 영화였습니다"]
VALIDATION = ["ㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋㅋ", "처음부터 끝까지 손에 땀을 쥐었다"]


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, texts in REVIEWS.items():
        entries = [{"review_id": str(number), "review": text} for number, text in enumerate(texts)]
        (folder / name).write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    (folder / "notes.txt").write_text("no part of the corpus", encoding="utf-8")
    return folder


def make(raw, train=2, validation=2):
    return door("bench.reviews", raw, "out", "--train", train, "--validation", validation, cwd=raw.parent)


def test_the_lines_are_these(raw, tmp_path):
    result = make(raw)
    assert (result.returncode, result.stderr) == (0, "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"reviews-train.txt", "reviews-val.txt"}
    for name, lines in (("reviews-train.txt", TRAIN), ("reviews-val.txt", VALIDATION)):
        assert (tmp_path / "out" / name).read_bytes().decode("utf-8") == "".join(line + "\n" for line in lines)
        assert f"{name}: 2 lines" in result.stdout


def test_both_sides_may_share_out_all_lines(raw, tmp_path):
    assert make(raw, 3, 2).returncode == 0
    lines = [(tmp_path / "out" / f"reviews-{side}.txt").read_bytes().decode("utf-8") for side in ("train", "val")]
    assert [side.count("\n") for side in lines] == [3, 2]
    assert len(set("".join(lines).splitlines())) == 5


def test_too_few_lines(raw, tmp_path):
    refused(make(raw, 4, 2), tmp_path, "raw gives 5 lines, fewer than 4 to train on and 2 to validate on")


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}", '{"review": "한"}', "7", "null", '["리뷰"]', '[{"text": "리뷰"}]', '[{"review": 7}]', b"[\xff]"],
)
def test_a_file_without_reviews(raw, tmp_path, content):
    (raw / "5.json").write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    refused(make(raw), tmp_path, "5.json is no JSON list of objects with a review each")


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_no_files(tmp_path, name):
    (tmp_path / "empty").mkdir()
    refused(make(tmp_path / name), tmp_path, f"no JSON files in {tmp_path / name}")


def refused(result, folder, message):
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and message in result.stderr
    assert not (folder / "out").exists()


@pytest.mark.parametrize("side", ["train", "validation"])
def test_no_side_is_empty(raw, tmp_path, side):
    result = make(raw, **{side: 0})
    assert result.returncode == 2 and f"--{side} must be 1 or more" in result.stderr
    assert not (tmp_path / "out").exists()
