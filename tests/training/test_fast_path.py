"""Faster must not be different: what bf16 learns stays beside what fp32 learns."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from model.config import ModelConfig
from model.fast.training import fast_loss
from model.gpt import GPT
from training.config import TrainConfig
from training.optimizer import make_optimizer, update

STEPS, VOCABULARY = 200, 200


def windows(step):
    """Return a batch of a made-up language: each piece follows from the two before it, now and then by chance."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(VOCABULARY, (8, 34), generator=generator)
    chance = torch.rand(ids.shape, generator=generator) < 0.1
    for t in range(2, 34):
        ids[:, t] = torch.where(chance[:, t], ids[:, t], (ids[:, t - 1] + 3 * (ids[:, t - 2] % 7)) % VOCABULARY)
    return ids[:, 1:-1], ids[:, 2:]


def learn(optimizer, fast):
    """Return the loss of every step, in bf16 by the fast path or in fp32 by torch's own kernels."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(layers=2, heads=2, width=64, context=32, position="rotary"), VOCABULARY).train()
    made = make_optimizer(
        model, TrainConfig(steps=STEPS, optimizer=optimizer), torch.bfloat16 if fast else torch.float32
    )

    def slow_loss(inputs, targets):
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")

    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if fast else nullcontext
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    losses = []
    for step in range(STEPS):
        for group in made.param_groups:
            group["lr"] = 5e-3 * (1 - step / STEPS)
        losses.append(update(fast_loss(model) if fast else slow_loss, made, [windows(step)], 1.0, autocast, scaler))
    return torch.tensor(losses)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_losses_stay_within_bounds(optimizer):
    """Over 200 steps no loss is 2 % off, the average of any twenty in a row not 0.5 %."""
    exact, fast = learn(optimizer, False), learn(optimizer, True)
    assert exact[-20:].mean() < 0.75 * exact[0]  # something was learnt
    assert not torch.equal(exact, fast)
    off = fast / exact - 1
    assert off.abs().max() < 0.02
    assert off.unfold(0, 20, 1).mean(dim=1).abs().max() < 0.005
