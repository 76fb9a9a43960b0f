"""The shipped corpus is what its README says."""

import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest

from data.config import DataConfig
from data.read import Text, nfc, part
from measures.writing import closed
from tests.conftest import PROJECT, split

FOLDER = PROJECT / "data" / "corpus"
COMMON = 50  # documents beyond which a stretch tells nothing of twins, and takes all the time
FILES = sorted(FOLDER.glob("*.txt"))
KEPT_FOR_LOOKING = [
    "나는 사과를 맛있게 먹었다",
    "고양이가 강아지를 쫓았다",
    "강아지가 고양이를 쫓았다",
    "카페에서 기다렸는데 결국 바람 맞았어",
    "사과는 냉장고에 넣는 게 좋을까? 이유도 알려줘.",
]


@pytest.fixture(scope="module")
def documents():
    return list(Text(DataConfig(path=(str(FOLDER),))))


def test_files_are_plain():
    for file in FILES:
        raw = file.read_bytes()
        text = raw.decode("utf-8")
        assert nfc(text) == text and "\r" not in text and not text.startswith("\ufeff") and "\0" not in text, file


def test_counts_by_genre(documents):
    table = {}
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\| (\w+) \| .* \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", line):
            table[match[1]] = tuple(int(number.replace(",", "")) for number in match.groups()[1:])
    counted = defaultdict(lambda: [0, 0, 0])
    for file in FILES:
        texts = list(part([file.read_text(encoding="utf-8")], "document"))
        for at, number in enumerate((1, len(texts), sum(map(len, texts)))):
            counted[file.name.split("-")[0]][at] += number
    assert table == {genre: tuple(numbers) for genre, numbers in counted.items()}
    assert len(documents) == sum(row[1] for row in table.values()) == 13_283


def largest_overlap(documents):
    """Return the largest Jaccard index of any two, on the stretches of 8 characters that at most COMMON hold."""
    shingles = [{text[at : at + 8] for at in range(len(text) - 7)} for text in documents]
    holders = defaultdict(list)
    for index, stretches in enumerate(shingles):
        for stretch in stretches:
            holders[stretch].append(index)
    rare = [indices for indices in holders.values() if len(indices) <= COMMON]
    size = Counter(index for indices in rare for index in indices)
    shared = Counter(pair for indices in rare for pair in combinations(indices, 2))
    return max(count / (size[a] + size[b] - count) for (a, b), count in shared.items())


def test_no_document_twice(documents):
    assert len(set(documents)) == len(documents)


@pytest.mark.parametrize(("stories", "largest"), [(False, 0.040), (True, 0.177)])
def test_no_near_twin(stories, largest):
    files = [file for file in FILES if file.name.startswith("story-") is stories]
    assert round(largest_overlap(list(Text(DataConfig(path=tuple(map(str, files)))))), 3) == largest


def test_the_split_is_the_one_described(documents):
    train, validation = split(documents)
    assert (len(train), len(validation), sum(len(text) + 1 for text in validation)) == (12_626, 657, 167_257)
    train, validation = split(Text(DataConfig(path=(str(FOLDER / "story-*.txt"),))))
    assert (len(train), len(validation), sum(len(text) + 1 for text in validation)) == (8_959, 461, 109_118)


def test_every_quote_in_a_story_is_closed():
    assert all(closed(text) for text in Text(DataConfig(path=(str(FOLDER / "story-*.txt"),))))


@pytest.mark.parametrize("sentence", KEPT_FOR_LOOKING)
def test_what_is_for_looking_stands_nowhere(documents, sentence):
    assert not [text for text in documents if sentence in text]
