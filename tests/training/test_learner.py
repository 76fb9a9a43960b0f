"""One update: its gradient does not depend on how it is split, and a bad one is stopped before the step."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from run import checkpoint
from run.config import TrainConfig
from tests.conftest import V, make_model
from training.learner import Learner, NonFinite
from training.optimizer import make_optimizer, orthogonal

CONFIG = TrainConfig(steps=1, optimizer="adamw", learning_rate=1e-2)

PROGRESS = checkpoint.Progress(step=3, text="a", tokenizer="b", epoch=1, used=2, seconds=0.5, best=3.25)


def step(model, batches, max_norm=1.0, config=CONFIG):
    return Learner(model, replace(config, max_norm=max_norm), torch.float32).update(batches, config.rate)


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


def test_adamw_changes_every_parameter():
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
def test_what_is_saved_goes_on_the_same(optimizer, tmp_path):
    config = replace(CONFIG, optimizer=optimizer)
    batches = [tuple(torch.randint(V, (2, 4, 9))) for _ in range(6)]
    learner = Learner(make_model(), config, torch.float32)
    for batch in batches[:3]:
        learner.update([batch], 1e-2)
    checkpoint.save(tmp_path / "state.safetensors", learner.state_tensors(), PROGRESS)
    tensors, progress = checkpoint.load(tmp_path / "state.safetensors")
    assert progress == PROGRESS
    again = Learner(make_model(), config, torch.float32)
    again.restore(tensors, tmp_path)
    for batch in batches[3:]:
        assert learner.update([batch], 1e-2) == again.update([batch], 1e-2)
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


def scaled(optimizer, scale, growth_interval=3):
    """A learner whose loss is scaled as in fp16, on the CPU."""
    learner = Learner(make_model(), replace(CONFIG, optimizer=optimizer), torch.float32)
    learner.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    return learner


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_whose_gradients_overflow_is_skipped_and_counted(optimizer):
    learner = scaled(optimizer, 3e38, growth_interval=1000)
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    batch = tuple(torch.randint(V, (2, 8, 9)))
    assert math.isfinite(learner.update([batch], 1e-2))
    assert learner.skipped == 1 and learner.scaler.get_scale() < 3e38
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.model.state_dict().items())
    for _ in range(150):  # until the scale is low enough
        learner.update([batch], 1e-2)
    assert 1 < learner.skipped < 150
    assert not any(torch.equal(tensor, before[name]) for name, tensor in learner.model.state_dict().items())


def test_the_scaler_goes_on_where_it_was():
    batch = tuple(torch.randint(V, (2, 8, 9)))
    learner, again = scaled("muon", 8.0), scaled("muon", 1.0)
    for _ in range(2):  # one step before the scale grows
        learner.update([batch], 1e-2)
    again.restore(learner.state_tensors(), None)
    for each in (learner, again):
        each.update([batch], 1e-2)
    assert learner.scaler.get_scale() == again.scaler.get_scale() == 16.0


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_compiling_that_fails_is_said_once_and_changes_nothing(monkeypatch, way):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, loss):
            return loss.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no compiler")

    def compiled(loss):
        def fails(inputs, targets):
            if way == "forward":
                raise RuntimeError("no compiler")
            return Broken.apply(loss(inputs, targets))

        return fails

    batches = [tuple(torch.randint(V, (2, 4, 9))) for _ in range(2)]
    said = []
    plain = Learner(make_model(), CONFIG, torch.float32)
    monkeypatch.setattr(torch, "compile", compiled)
    learner = Learner(make_model(), CONFIG, torch.float32, compile=True, say=said.append)
    learner.model.load_state_dict(plain.model.state_dict())
    assert learner.compiled
    for _ in range(2):
        assert learner.update(batches, 1e-2) == plain.update(batches, 1e-2)
    assert said == ["compiling failed (RuntimeError): going on without it"] and not learner.compiled


def test_out_of_memory_while_compiled_is_no_failure_to_compile(monkeypatch):
    def compiled(loss):
        def fails(inputs, targets):
            raise torch.OutOfMemoryError("CUDA out of memory")

        return fails

    monkeypatch.setattr(torch, "compile", compiled)
    learner = Learner(make_model(), CONFIG, torch.float32, compile=True)
    with pytest.raises(torch.OutOfMemoryError):
        learner.update([tuple(torch.randint(V, (2, 4, 9)))], 1e-2)
