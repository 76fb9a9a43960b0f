"""The learning rate by value, and what the config files say."""

import pytest
from pytest import approx

from run.config import TrainConfig
from training.schedule import learning_rate

CONFIG = TrainConfig(steps=100, learning_rate=1e-3, warmup=0.1, final_share=0.1)


@pytest.mark.parametrize(
    "progress, share",
    [
        (0, 0.01),
        (0.05, 0.5),
        (0.1, 1.0),
        (0.325, 0.1 + 0.9 * 0.853553),
        (0.55, 0.55),
        (0.775, 0.1 + 0.9 * 0.146447),
        (1, 0.1),
        (1.5, 0.1),
    ],
)
def test_the_rate_by_value(progress, share):
    assert learning_rate(progress, CONFIG) == approx(1e-3 * share, rel=1e-5)


@pytest.mark.parametrize("warmup", [0, 0.5, 1])
def test_it_is_never_zero_at_the_start_and_never_above_the_highest(warmup):
    config = TrainConfig(steps=10, learning_rate=1e-3, warmup=warmup)
    rates = [learning_rate(step / 10, config) for step in range(10)]
    assert all(0 < rate <= 1e-3 for rate in rates)
