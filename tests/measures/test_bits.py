"""Bits per character by their definition, whatever the batch."""

import math

import numpy as np
import pytest
import torch

from measures.bits import total_bits
from measures.copied import copied_share
from tests.conftest import V, make_model


def by_hand(model, ids):
    """One window after the other, one token after the other."""
    context, bits = model.config.context, 0.0
    for start in range(0, len(ids) - 1, context):
        for position in range(start, min(start + context, len(ids) - 1)):
            logits = model(torch.tensor(ids[None, start : position + 1]))[0, -1].double()
            bits -= logits.log_softmax(dim=0)[ids[position + 1]].item() / math.log(2)
    return bits


@pytest.mark.parametrize("length", [2, 9, 16, 17, 18, 33, 100])
def test_the_definition(length):
    model = make_model(dropout=0.5)
    ids = np.random.default_rng(length).integers(V, size=length)
    with torch.no_grad():
        assert total_bits(model, ids) == pytest.approx(by_hand(model, ids), rel=1e-6)


def test_the_batch_does_not_matter_and_nothing_is_drawn():
    model = make_model(dropout=0.5).train()
    ids = np.random.default_rng(0).integers(V, size=1000)
    state = torch.get_rng_state()
    figures = [total_bits(model, ids, size) for size in (1, 7, 32, 1000)]
    assert figures == pytest.approx([figures[0]] * 4, rel=1e-6)
    assert torch.equal(torch.get_rng_state(), state) and model.training


def test_an_untrained_model_needs_about_log_v_bits():
    ids = np.random.default_rng(0).integers(V, size=500)
    assert total_bits(make_model(), ids) / 499 == pytest.approx(math.log2(V), rel=0.02)


def test_copied_share():
    documents = ["가나다라마바사아자차", "타파하" * 5]
    assert copied_share(["가나다라마바사아자차"], documents, length=5) == 1
    assert copied_share(["하나도 없는 다른 글이다"], documents, length=5) == 0
    assert copied_share(["가나다라마XXXXX"], documents, length=5) == pytest.approx(1 / 6)  # one of six stretches
    assert copied_share(["짧다"], documents, length=5) == 0
