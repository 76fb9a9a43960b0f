"""The loss by stretches is the cross-entropy of the logits, and so are its gradients."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from model.fast import loss
from model.fast.training import fast_loss
from tests.conftest import V, make_model, wide

N, C = 23, 20


def inputs(scale=1.0):
    return scale * torch.randn(N, C), torch.randn(V, C), torch.randint(V, (N,))


@pytest.mark.parametrize("stretch", [1, 5, 23, 1024])
@pytest.mark.parametrize("scale", [1.0, 100.0])  # the second makes probabilities that fp32 cannot hold
def test_stretches_change_nothing(stretch, scale):
    x, weight, targets = inputs(scale)
    found = []
    for by in ("torch", "stretches"):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        with mock.patch.dict(loss.STRETCH, cpu=stretch):
            total = (
                F.cross_entropy(a @ b.mT, targets, reduction="sum")
                if by == "torch"
                else loss.summed_loss(a, b, targets)
            )
        (total / 7).backward()
        found.append((total, a.grad, b.grad))
    assert_close(*found, rtol=1e-4, atol=1e-4)


def test_within_autocast_the_gradients_are_those_of_bf16():
    x, weight, targets = inputs()
    found = []
    for low in (False, True):
        a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            total = loss.summed_loss(a, b, targets)
        total.backward()
        assert total.dtype == a.grad.dtype == b.grad.dtype == torch.float32
        found.append((total.item(), a.grad, b.grad))
    (exact, da, db), (total, la, lb) = found
    assert total == pytest.approx(exact, rel=0.01) and total != exact
    assert (la - da).norm() < 0.02 * da.norm() and (lb - db).norm() < 0.02 * db.norm()


def test_a_models_loss_is_that_of_its_logits():
    model = wide()
    ids, targets = torch.randint(V, (2, 3, 7))
    by_logits = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="sum")
    assert_close(fast_loss(model)(ids, targets), by_logits)
    assert_close(model.loss(ids, targets), by_logits)
    fast_loss(model)(ids, targets).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    by_logits.backward()
    for one, parameter in zip(gradients, model.parameters(), strict=True):
        assert_close(one, parameter.grad, atol=1e-4, rtol=1e-4)


def test_a_loss_that_is_no_number_stays_none():
    model = make_model()
    model.blocks[0].feed_forward.up.weight.data[0, 0] = torch.nan
    assert fast_loss(model)(*torch.randint(V, (2, 3, 7))).isnan()
