"""The trace is what the model does: the weights of the fused path, rows that sum to one, nothing of the future."""

import unicodedata

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from model.config import ModelConfig
from model.gpt import GPT
from view.trace import trace

TEXT = "나는 사과를 맛있게 먹었다"


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    made = GPT(ModelConfig(layers=3, heads=2, width=20, context=40, position="rotary", dropout=0.5), 400)
    for parameter in made.parameters():
        parameter.data.mul_(8 if parameter.dim() == 2 else 1)
    return made.train()  # dropout would show


def test_the_weights_are_those_of_the_fused_path(model, tokenizer):
    traced = trace(model, tokenizer, TEXT)
    assert 0 < traced.difference < 1e-5
    for layer in range(3):
        q, k = model.blocks[layer].attention.place(
            torch.from_numpy(traced.q[None, layer]), torch.from_numpy(traced.k[None, layer]), 0
        )
        # The fused kernel gives no weights: with the identity for its values what it gathers is the weights.
        T = len(traced.ids)
        fused = F.scaled_dot_product_attention(q, k, torch.eye(T).expand(1, 2, T, T), is_causal=True)
        assert np.abs(fused[0].numpy() - traced.weights[layer]).max() < 1e-5
    with torch.no_grad():
        assert np.abs(model(torch.tensor([traced.ids]))[0].numpy() - traced.logits).max() < 1e-4


def test_every_row_sums_to_one_and_the_future_is_masked(model, tokenizer):
    traced = trace(model, tokenizer, TEXT)
    later = np.triu_indices(len(traced.ids), 1)
    for weights in (traced.weights, traced.attention("eojeol"), traced.attention("eojeol", last=True)):
        assert np.allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert (traced.weights[:, :, later[0], later[1]] == 0).all()
    assert np.isneginf(traced.scores[:, :, later[0], later[1]]).all()
    unmasked = trace(model, tokenizer, TEXT, mask=False)
    assert (unmasked.weights > 0).all() and np.isfinite(unmasked.scores).all()
    assert np.array_equal(unmasked.weights[0, :, -1], traced.weights[0, :, -1])  # nothing stands after the last


def test_without_dropout_and_from_nfd(model, tokenizer):
    one, other = (trace(model, tokenizer, text) for text in (TEXT, unicodedata.normalize("NFD", TEXT)))
    assert one.text == other.text == TEXT and np.array_equal(one.weights, other.weights)


def test_the_strongest_head_is_the_one_whose_last_row_holds_the_largest_weight(model, tokenizer):
    traced = trace(model, tokenizer, TEXT)
    layer, head = traced.strongest()
    by_hand = traced.attention()[:, :, -1, 1:-1].max(axis=-1)
    assert by_hand[layer, head] == by_hand.max()
    assert trace(model, tokenizer, "나는").strongest() is None


def test_texts_that_are_too_short_or_too_long(model, tokenizer):
    with pytest.raises(ValueError, match="the text is empty"):
        trace(model, tokenizer, "")
    with pytest.raises(ValueError, match=r"tokens long with its start mark, the model sees 40: shorten it"):
        trace(model, tokenizer, "뷁" * 14)  # three tokens each
    assert trace(model, tokenizer, "뷁" * 12).weights.shape[-1] <= 40
