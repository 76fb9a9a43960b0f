"""The learning rate over the progress of a run: up, then down along a cosine."""

import math

from run.config import TrainConfig


def learning_rate(progress: float, config: TrainConfig) -> float:
    """Return the rate at `progress`, the share of the run that is done, in steps or in time (0 to 1).

    It rises in a straight line over the share `warmup`, never from 0 itself, so that the first step counts too,
    and falls along half a cosine to `final_share` of the highest (Loshchilov & Hutter 2017, without restarts).
    """
    if progress < config.warmup:
        return config.rate * max(progress / config.warmup, 0.01)
    down = min((progress - config.warmup) / (1 - config.warmup), 1.0) if config.warmup < 1 else 0.0
    share = config.final_share + (1 - config.final_share) * (1 + math.cos(math.pi * down)) / 2
    return config.rate * share
