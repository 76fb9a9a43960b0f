"""How the model knows the order of tokens: a fixed table to add, or a rotation of queries and keys."""

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
    """Return what `rotate` multiplies by: (2, context, D), the cosines of every position's angles, and their sines."""
    angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies(head_width)  # (context, D / 2)
    return torch.stack([torch.cat([angles.cos(), angles.cos()], 1), torch.cat([-angles.sin(), angles.sin()], 1)])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn each pair of dimensions by its position's angle (RoFormer, Su et al. 2021), so that the product of a
    query and a key depends on their distance alone. The pairs are dimension i and i + D/2.

    x: (B, H, T, D); table: (2, T, D) in fp32, the rows of these T positions. Returns (B, H, T, D) in the dtype of x.
    """
    cosines, sines = table  # in fp32, since half precision would blur the angles of far positions
    return (x * cosines + x.roll(x.size(-1) // 2, dims=-1) * sines).to(x.dtype)
