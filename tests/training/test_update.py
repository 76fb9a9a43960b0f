"""One update: its gradient does not depend on how it is split, and a bad one is stopped before the step."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from tests.conftest import V, make_model
from training.config import TrainConfig
from training.optimizer import NonFinite, make_optimizer, update

CONFIG = TrainConfig(steps=1, learning_rate=1e-2)
SCALER = torch.amp.GradScaler("cpu", enabled=False)


def step(model, batches, max_norm=1.0):
    optimizer = make_optimizer(model, CONFIG)
    return update(model, optimizer, batches, max_norm, nullcontext, SCALER)


def test_a_split_batch_gives_the_same_step():
    inputs, targets = torch.randint(V, (2, 8, 9))
    models = [make_model() for _ in range(3)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    losses = [
        step(model, list(zip(inputs.split(size), targets.split(size), strict=True)))
        for model, size in zip(models, (8, 3, [1, 5, 2]), strict=True)
    ]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    for model in models[1:]:
        gradients = [(a.grad, b.grad) for a, b in zip(models[0].parameters(), model.parameters(), strict=True)]
        for one, other in gradients:
            assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_batches_count_by_their_targets():
    short, long = torch.randint(V, (2, 2, 3)), torch.randint(V, (2, 4, 9))
    model = make_model()
    separate = [torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in (short, long)]
    loss = step(model, [tuple(short), tuple(long)])
    assert loss == pytest.approx((6 * separate[0] + 36 * separate[1]) / 42, rel=1e-5)


def test_the_gradient_is_clipped():
    model = make_model()
    inputs, targets = torch.randint(V, (2, 8, 9))
    step(model, [(inputs, targets)], max_norm=0.01)
    norm = math.sqrt(sum(parameter.grad.square().sum().item() for parameter in model.parameters()))
    assert norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_number_stops_before_the_step(poison):
    model = make_model()
    inputs, targets = torch.randint(V, (2, 8, 9))
    model.blocks[1].feed_forward.up.weight.data[3, 2] = poison
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(NonFinite, match="the loss is nan"):
        step(model, [(inputs, targets)])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(7), before[name].nan_to_num(7))


def test_only_matrices_decay():
    groups = make_optimizer(make_model(bias=True), CONFIG).param_groups
    assert {parameter.dim() for parameter in groups[0]["params"]} == {2} and groups[0]["weight_decay"] == 0.1
    assert {parameter.dim() for parameter in groups[1]["params"]} == {1} and groups[1]["weight_decay"] == 0
