"""One update: its gradient does not depend on how it is split, and a bad one is stopped before the step."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from model.fast.training import fast_loss
from tests.conftest import V, make_model
from training import checkpoint
from training.config import TrainConfig
from training.optimizer import NonFinite, make_optimizer, orthogonal, update

CONFIG = TrainConfig(steps=1, learning_rate=1e-2)
SCALER = torch.amp.GradScaler("cpu", enabled=False)


PROGRESS = checkpoint.Progress(step=3, text="a", tokenizer="b", epoch=1, used=2, seconds=0.5, best=3.25)


def step(model, batches, max_norm=1.0, config=CONFIG):
    optimizer = make_optimizer(model, config)
    return update(fast_loss(model), optimizer, batches, max_norm, nullcontext, SCALER)


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
    for group in make_optimizer(make_model(bias=True), CONFIG).param_groups:
        dimensions = {parameter.dim() for parameter in group["params"]}
        assert (dimensions, group["weight_decay"]) in (({2}, 0.1), ({1}, 0))


def test_adamw_is_the_default_and_changes_every_parameter():
    model = make_model(bias=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs, targets = torch.randint(V, (2, 8, 9))
    step(model, [(inputs, targets)])
    assert not [name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])]


def test_orthogonal_brings_singular_values_near_one():
    for shape in ((12, 12), (48, 12), (12, 48)):
        matrix = torch.randn(shape) @ torch.diag(torch.logspace(-1, 1, shape[1]))
        values = torch.linalg.svdvals(orthogonal(matrix))
        assert values.min() > 0.5 and values.max() < 1.3
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        exact = u @ v
        assert (orthogonal(matrix) * exact).sum() / (exact.norm() * orthogonal(matrix).norm()) > 0.97


def test_muon_by_hand():
    """One step from rest, on the matrices alone; the rest is AdamW's."""
    config = replace(CONFIG, optimizer="muon", weight_decay=0.5)
    muon, adamw = make_model(), make_model()
    adamw.load_state_dict(muon.state_dict())
    before = {name: tensor.clone() for name, tensor in muon.state_dict().items()}
    inputs, targets = torch.randint(V, (2, 8, 9))
    step(muon, [(inputs, targets)], max_norm=1e9, config=config)
    step(adamw, [(inputs, targets)], max_norm=1e9, config=replace(config, optimizer="adamw"))
    for name, parameter in adamw.named_parameters():
        after = muon.state_dict()[name]
        if parameter.dim() < 2 or not name.startswith("blocks."):
            assert_close(after, parameter.detach(), msg=name)
            continue
        parts = parameter.grad.split(20) if "qkv" in name else [parameter.grad]
        direction = torch.cat([orthogonal(part) * 0.2 * max(part.shape) ** 0.5 for part in parts])
        assert_close(after, before[name] * (1 - 0.01 * 0.5) - 0.01 * direction, atol=1e-5, rtol=1e-4, msg=name)
        rms = (after - before[name] * 0.995).square().mean().sqrt().item()
        assert 0.01 * 0.2 * 0.6 < rms < 0.01 * 0.2 * 1.3, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_saved_optimizer_goes_on_the_same(optimizer, tmp_path):
    config = replace(CONFIG, optimizer=optimizer)
    batches = [tuple(torch.randint(V, (2, 4, 9))) for _ in range(6)]

    def go(model, made, some):
        for batch in some:
            update(fast_loss(model), made, [batch], 1.0, nullcontext, SCALER)

    model = make_model()
    made = make_optimizer(model, config)
    go(model, made, batches[:3])
    checkpoint.save(tmp_path / "state.safetensors", checkpoint.state_tensors(model, made, SCALER), PROGRESS)
    go(model, made, batches[3:])
    again = make_model()
    made = make_optimizer(again, config)
    tensors, progress = checkpoint.load(tmp_path / "state.safetensors")
    assert progress == PROGRESS
    checkpoint.restore(tensors, again, made, SCALER, tmp_path)
    go(again, made, batches[3:])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_whose_gradients_overflow_is_skipped_by_every_optimizer(optimizer):
    model = make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = make_optimizer(model, replace(CONFIG, optimizer=optimizer))
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    inputs, targets = torch.randint(V, (2, 8, 9))
    scaler.scale(model.loss(inputs, targets)).backward()
    scaler.step(made)
    scaler.update()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert scaler.get_scale() < 3e38
