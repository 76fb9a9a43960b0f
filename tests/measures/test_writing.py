"""Each figure of evaluate.py --writing, on texts whose figures are known by hand."""

import re

import pytest

from measures.writing import NAMES, Text, calls, closed, compared, eojeol, first_mentions, of_names, sentences
from tests.conftest import PROJECT

STORY = '곰이 숲에 갔어요. "토끼야, 안녕? 나는 곰이야." 하고 곰이 말했어요. 토끼는 웃었어요.'


def test_eojeol_and_sentences():
    assert eojeol('"안녕, 곰아!" 하고 말했어요.') == ["안녕", "곰아", "하고", "말했어요"]
    assert sentences(STORY) == [
        "곰이 숲에 갔어요.",
        "토끼야, 안녕?",
        '나는 곰이야." 하고 곰이 말했어요.',
        "토끼는 웃었어요.",
    ]
    assert sentences("") == [] and eojeol(" . ") == []


@pytest.mark.parametrize(
    ("text", "is_closed"), [('"가" 하고 "나"', True), ('"가', False), ("“가”", True), ("“가", False), ("가", True)]
)
def test_closed_quotes(text, is_closed):
    assert closed(text) is is_closed


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("곰이 쥐에게 갔어요. 다람쥐는 잤어요.", {"곰", "쥐", "다람쥐"}),
        ("모양이 고운 양말과 항아리, 꼬리, 곰곰이", set()),
        ("하늘이는 하늘을 보았어요.", {"하늘이"}),
        ('"하늘아, 서연아, 할머니!"', {"하늘이", "서연", "할머니"}),
        ("서연이가 도윤이와 할머니께 갔어요.", {"서연", "도윤", "할머니"}),
        ("하늘을 보았어요.", set()),
    ],
)
def test_names_are_told_from_words_that_hold_them(text, names):
    assert set(first_mentions(text)) == names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"곰아, 가자." 하고 곰이 말했어요.', [("곰", {"곰"})]),
        ('"그래, 여우야." 하고 서연이가 말했어요.', [("서연", {"여우"})]),
        ('"나는 토끼야." 하고 토끼가 말했어요.', []),  # who speaks says what it is, and calls nobody
        ('"하늘아!" 라고 하늘이는 소리쳤어요.', [("하늘이", {"하늘이"})]),
        ('"토끼야, 왜 우니?" 토끼가 고개를 들었어요.', []),  # the next sentence, about the one who was asked
        ('"양아, 할머니께 가자." 하고 할머니께서 말했어요.', [("할머니", {"양"})]),
    ],
)
def test_who_calls_whom(text, found):
    assert calls(text) == found


def test_figures_of_names():
    late = "곰이 왔어요. 곰이 웃었어요. 곰이 잤어요. 여우가 왔어요."
    assert of_names([late]) == {"self_addressed": None, "names": 2, "late_names": 0.5}
    talk = '"곰아, 가자." 하고 곰이 말했어요. "곰아, 가자." 하고 쥐가 말했어요.'
    assert of_names([talk])["self_addressed"] == 0.5
    assert of_names([]) == {"self_addressed": None, "names": None, "late_names": None}


def test_every_figure_beside_that_of_the_validation_documents():
    train = ["곰이 숲에 갔어요. 곰은 웃었어요.", "나비가 꽃에 앉아서 아주 오래오래 쉬었다가 다시 날아갔어요. 끝이에요."]
    written = [
        Text("곰이 숲에 갔어요. 곰이 숲에 갔어요. 뿌냥.", True),
        Text('곰이 숲에 갔어요. "끝', True),
        Text("곰이", False),
    ]
    found = compared(written, [Text(train[1], True)], train, names=True)
    assert {name: figure["model"] for name, figure in found.items()} == pytest.approx(
        {
            "unknown_eojeol": 2 / 12,
            "copied_sentences": 3 / 6,
            "copied_stretches": None,
            "repeated_sentences": 1 / 6,
            "ended": 1 / 3,
            "distinct_openings": 1,  # of as many texts as there are validation documents
            "self_addressed": None,
            "names": 1,
            "late_names": 0,
        }
    )
    validation = {name: figure["validation"] for name, figure in found.items()}
    assert validation["copied_stretches"] == validation["copied_sentences"] == validation["ended"] == 1
    assert validation["unknown_eojeol"] == validation["repeated_sentences"] == 0
    without = compared(written, [], train, names=False)
    assert "names" not in without and without["ended"] == {"model": 1 / 3, "validation": None}
    assert without["distinct_openings"]["model"] == 2 / 3


def test_the_names_are_those_of_the_corpus():
    readme = (PROJECT / "data" / "corpus" / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"The protagonists are\n\n((?:    .*\n)+)", readme)
    assert listed and tuple(listed[1].split()) == NAMES
