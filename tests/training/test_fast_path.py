"""Faster must not be different: what bf16 learns stays beside what fp32 learns."""

import pytest
import torch
import torch.nn.functional as F

from model.attention import causal_attention
from model.config import ModelConfig
from model.gpt import GPT
from run.config import TrainConfig
from training.learner import Learner

STEPS, VOCABULARY = 200, 200


def windows(step):
    """Return a batch of a made-up language: each token follows from the two before it, now and then by chance."""
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
    config = TrainConfig(steps=STEPS, optimizer=optimizer)
    learner = Learner(model, config, torch.bfloat16 if fast else torch.float32)
    if not fast:
        learner.loss = lambda inputs, targets: F.cross_entropy(
            model(inputs).flatten(0, 1), targets.flatten(), reduction="sum"
        )
        for block in model.blocks:
            block.attention.kernel = causal_attention
    losses = [learner.update([windows(step)], 5e-3 * (1 - step / STEPS)) for step in range(STEPS)]
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
