"""Attention is causal, the same by both paths, and knows nothing of order by itself."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.conftest import B, T, V, make_model, wide

POSITIONS = ["learned", "rotary", "sinusoidal", "none"]


@pytest.mark.parametrize("position", POSITIONS)
def test_the_future_cannot_be_seen(position, ids):
    tiny = make_model(position=position)
    for t in range(T - 1):
        changed = ids.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % V
        before, after = tiny(ids), tiny(changed)
        assert_close(before[:, : t + 1], after[:, : t + 1])
        assert not torch.allclose(before[:, t + 1 :], after[:, t + 1 :])  # the change did arrive


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_written_out_equals_fused(position, bias, ids):
    tiny = make_model(position=position, bias=bias)
    logits, looks = tiny.look(ids)
    assert_close(logits, tiny(ids), atol=1e-5, rtol=0)
    assert len(looks) == 2
    for look in looks:
        assert look.q.shape == look.k.shape == look.v.shape == look.heads.shape == (B, 5, T, 4)
        assert look.scores.shape == look.weights.shape == (B, 5, T, T)
        assert_close(look.weights.sum(dim=-1), torch.ones(B, 5, T))
        above = torch.ones(T, T, dtype=torch.bool).triu(1)
        assert (look.weights[..., above] == 0).all()
        assert (look.scores[..., above] == -math.inf).all()
        assert_close(look.heads, look.weights @ look.v)


@pytest.mark.parametrize("position", POSITIONS)
def test_both_paths_are_right_when_keys_outnumber_queries(position, ids):
    tiny = make_model(position=position)
    fused, written = tiny.empty_cache(B), tiny.empty_cache(B)
    tiny(ids[:, :4], fused)
    tiny(ids[:, :4], written)
    logits, looks = tiny.look(ids[:, 4:], written)
    assert looks[0].weights.shape == (B, 5, 3, 7)
    assert_close(logits, tiny(ids[:, 4:], fused), atol=1e-5, rtol=0)
    assert_close(logits, tiny(ids)[:, 4:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("tokens", [[7], [1] * 7, [4, 1, 2], [2, 5]])
def test_cached_equals_uncached(position, tokens, ids):
    tiny = make_model(position=position)
    cache = tiny.empty_cache(B)
    assert_close(
        torch.cat([tiny(token, cache) for token in ids.split(tokens, dim=1)], dim=1), tiny(ids), atol=1e-5, rtol=0
    )


def test_without_position_and_mask_order_is_unknown(ids):
    tiny = make_model(position="none")
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    logits, _ = tiny.look(ids, mask=False)
    assert_close(tiny.look(ids[:, order], mask=False)[0], logits[:, order], atol=1e-5, rtol=0)
    # A mask alone already tells the order, and so does any position.
    assert not torch.allclose(tiny.look(ids[:, order])[0], tiny.look(ids)[0][:, order], atol=1e-3)
    for position in POSITIONS[:3]:
        placed = wide(position=position)  # at the initial scale positions hardly show
        moved = placed.look(ids[:, order], mask=False)[0]
        assert not torch.allclose(moved, placed.look(ids, mask=False)[0][:, order], atol=1e-3), position


def test_without_mask_each_position_sees_all(tiny, ids):
    _, looks = tiny.look(ids, mask=False)
    assert (looks[0].weights > 0).all()
    assert_close(looks[0].weights.sum(dim=-1), torch.ones(B, 5, T))


def test_rotary_scores_depend_on_distance_alone():
    from model.position import rotary_table, rotate

    q, k = torch.randn(2, 1, 1, 1, 6)
    table = rotary_table(12, 6)

    def score(i, j):
        return (rotate(q, table[:, i : i + 1]) * rotate(k, table[:, j : j + 1])).sum()

    assert_close(score(5, 2), score(9, 6))
    assert not torch.allclose(score(5, 2), score(5, 3))


def test_dropout_is_off_in_both_paths_when_evaluating(ids):
    tiny = make_model(dropout=0.5)
    assert_close(tiny(ids), tiny(ids))
    assert_close(tiny.look(ids)[0], tiny(ids), atol=1e-5, rtol=0)
    tiny.train()
    assert not torch.allclose(tiny(ids), tiny(ids))
