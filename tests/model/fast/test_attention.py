"""Attention by blocks is attention: the same numbers and gradients, whatever the blocks."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from model.fast import attention as fast
from model.fast.training import fast_loss
from tests.conftest import V, wide

H, D = 5, 4


def both(T, dtype=torch.float32):
    """Return what torch's own kernel and ours make of the same input: heads and three gradients, each."""
    made = torch.randn(3, 2, T, H, D).to(dtype)
    weighting = torch.randn(2, H, T, D).to(dtype)
    found = []
    for attend in (lambda *inputs: F.scaled_dot_product_attention(*inputs, is_causal=True), fast.by_blocks):
        inputs = [part.transpose(1, 2).detach().requires_grad_() for part in made]  # not contiguous, as in the model
        heads = attend(*inputs)
        heads.backward(weighting)
        found.append([heads, *(part.grad for part in inputs)])
    return found


@pytest.mark.parametrize("T", [1, 7, 8, 9, 23])
@pytest.mark.parametrize("block, scratch", [(128, 2**20), (8, 2**20), (8, 8 * 23 * 3), (1, 1)])
def test_blocks_change_nothing(T, block, scratch):
    with mock.patch.multiple(fast, BLOCK=block, SCRATCH=scratch):
        theirs, ours = both(T)
    for one, other in zip(theirs, ours, strict=True):
        assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_torch_without_its_private_kernel_gives_the_same_gradients(monkeypatch):
    theirs, ours = both(9)
    monkeypatch.delattr(torch, "_softmax_backward_data")
    torch.manual_seed(0)
    again = both(9)[1]
    for one, other, another in zip(theirs, ours, again, strict=True):
        assert_close(one, another, atol=1e-6, rtol=1e-5)
        assert_close(other, another, atol=1e-6, rtol=1e-5)


def test_in_bf16_the_error_is_that_of_bf16():
    theirs, ours = both(200)
    low, lower = both(200, torch.bfloat16)
    for exact, kernel, blocks in zip(theirs, low, lower, strict=True):
        assert (blocks.float() - exact).norm() < 2 * (kernel.float() - exact).norm() + 0.01 * exact.norm()


def test_no_weights_are_kept():
    """What lies between the ways there and back grows with T, not with its square."""
    kept = []
    for T in (64, 128):
        sizes = []
        inputs = [torch.randn(2, H, T, D, requires_grad=True) for _ in range(3)]
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x):
            fast.by_blocks(*inputs)
        kept.append(sum(sizes))
    assert kept[1] == 2 * kept[0] > 0


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_the_model_takes_it_in_bf16_and_still_cannot_see_the_future(position):
    model, ids = wide(position=position), torch.randint(V, (3, 7))
    changed = ids.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % V
    fast_loss(model)  # sets the kernel
    with torch.autocast("cpu", torch.bfloat16), mock.patch.object(fast, "by_blocks", wraps=fast.by_blocks) as used:
        before, after = model(ids), model(changed)
    assert used.call_count == 4
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])
    assert (before.float() - model(ids)).abs().max() < 0.05 * model(ids).abs().max()


def test_fp32_is_declined_and_left_to_torch():
    model, ids = wide(), torch.randint(V, (3, 7))
    before = model(ids)
    fast_loss(model)
    with mock.patch.object(fast, "by_blocks") as used:
        assert torch.equal(model(ids), before)
    assert not used.called


def test_a_torch_without_the_private_name_is_asked_nothing(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert fast.has_amx() is False
