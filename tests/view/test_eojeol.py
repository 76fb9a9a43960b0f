"""Tokens become eojeol, and attention between eojeol still sums to one."""

import numpy as np
import pytest

from data.tokenizer import MARK
from view.eojeol import by_groups, eojeol, labels


def grouped(tokenizer, text):
    ids = [MARK, *tokenizer.encode(text)]
    groups = eojeol(tokenizer, ids)
    assert [group.start for group in groups] == [0, *(group.end for group in groups[:-1])]
    assert groups[-1].end == len(ids)
    return [group.text for group in groups]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("나는 사과를 맛있게 먹었다", ["나는", "사과를", "맛있게", "먹었다"]),
        ("쫓았다 뷁", ["쫓았다", "뷁"]),
        ("한 줄\n두 줄", ["한", "줄", "⏎", "두", "줄"]),
        ("한\n\n둘", ["한", "⏎", "⏎", "둘"]),
        ("하나  둘", ["하나", "␣", "둘"]),
        ("<s> </script> <img onerror=1>", ["<s>", "</script>", "<img", "onerror=1>"]),
        ("🙂 ▁", ["🙂", "␣"]),
    ],
)
def test_an_eojeol_is_what_stands_between_spaces(tokenizer, text, expected):
    assert grouped(tokenizer, text) == ["〈시작〉", *expected]


def test_a_character_in_bytes_is_named_with_its_parts(tokenizer):
    ids = tokenizer.encode("뷁 나는")
    found = labels(tokenizer, ids)
    assert [label for label in found if "뷁" in label] == ["뷁 1/3", "뷁 2/3", "뷁 3/3"]
    assert labels(tokenizer, [MARK])[0] == "〈시작〉"
    assert all("\u2581" not in label for label in found)


def test_columns_are_summed_and_rows_averaged(tokenizer):
    ids = [MARK, *tokenizer.encode("뷁 쫓았다 나는 사과를")]
    T, groups = len(ids), eojeol(tokenizer, ids)
    weights = np.random.default_rng(0).random((2, 3, T, T))
    weights /= weights.sum(axis=-1, keepdims=True)
    mean, last = by_groups(weights, groups), by_groups(weights, groups, last=True)
    assert mean.shape == last.shape == (2, 3, len(groups), len(groups))
    for a, query in enumerate(groups):
        for b, key in enumerate(groups):
            part = weights[:, :, query.start : query.end, key.start : key.end].sum(axis=-1)
            assert np.allclose(mean[:, :, a, b], part.mean(axis=-1))
            assert np.allclose(last[:, :, a, b], part[:, :, -1])
    assert np.allclose(mean.sum(axis=-1), 1) and np.allclose(last.sum(axis=-1), 1)
    assert not np.allclose(mean, last)
