"""How the model is told the order of pieces: a fixed table to add, or a rotation of queries and keys."""

import torch
from torch import Tensor

BASE = 10_000.0


def frequencies(size: int) -> Tensor:
    """Return the angle a position adds in each pair of dimensions: (size / 2,), from 1 down to about 1/10,000."""
    return BASE ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)


def sinusoidal_table(context: int, width: int) -> Tensor:
    """Return the fixed table of Vaswani et al. 2017, section 3.5: (context, width), sines and cosines in turn."""
    angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies(width)  # (context, width / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def rotary_table(context: int, head_width: int) -> Tensor:
    """Return cosines and sines of every position's angles: (2, context, D / 2)."""
    angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies(head_width)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn each pair of dimensions by its position's angle (RoFormer, Su et al. 2021), so that the product of a
    query and a key depends on their distance alone. The pairs are dimension i and i + D/2.

    x: (B, H, T, D); table: (2, T, D / 2), the rows of these T positions. Returns (B, H, T, D).
    """
    cosines, sines = table.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
