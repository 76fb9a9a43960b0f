"""Causal multi-head self-attention: each position gathers from itself and from those before it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.cache import LayerCache
from model.config import ModelConfig
from model.position import rotate


class Look(NamedTuple):
    """Every number on the way through one attention layer."""

    q: Tensor  # (B, H, T, D), before rotation
    k: Tensor  # (B, H, T, D), before rotation
    v: Tensor  # (B, H, T, D)
    scores: Tensor  # (B, H, T, S), after division by √D, -inf where the mask forbids
    weights: Tensor  # (B, H, T, S), each row sums to one
    heads: Tensor  # (B, H, T, D), what each head gathered


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what every head gathers by torch's fused kernel: three (B, H, T, D) -> (B, H, T, D)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def split_qkv(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of x that belong to queries, keys and values: three equal thirds along `dim`.

    x: what `Attention.qkv` gives, or its weight or bias with dim 0. No other place knows how the three lie.
    """
    q, k, v = x.chunk(3, dim)
    return q, k, v


class Attention(nn.Module):
    """softmax(QKᵀ / √D) V for every head at once (Vaswani et al. 2017, section 3.2)."""

    rotary: Tensor | None
    kernel: Callable[[Tensor, Tensor, Tensor], Tensor] = staticmethod(causal_attention)  # model/fast may set another

    def __init__(self, config: ModelConfig, rotary: Tensor | None) -> None:
        """rotary: (2, context, D) as `rotary_table` makes it, or None."""
        super().__init__()
        self.head_count = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.output = nn.Linear(config.width, config.width, bias=config.bias)
        self.register_buffer("rotary", rotary, persistent=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, C) -> queries, keys and values, (B, H, T, D) each."""
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.head_count, C // self.head_count).transpose(1, 2) for part in split_qkv(self.qkv(x))
        )
        return q, k, v

    def place(self, q: Tensor, k: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by their positions, `start` and on, where positions are rotary."""
        if self.rotary is None:
            return q, k
        table = self.rotary[:, start : start + q.size(2)]
        return rotate(q, table), rotate(k, table)

    def merge(self, heads: Tensor) -> Tensor:
        """Put the heads side by side and mix them: (B, H, T, D) -> (B, T, C)."""
        return self.output(heads.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Let each position gather from itself and from those before it, by the kernel.

        x: (B, T, C), the T newest positions; a cache holds the keys and values of earlier ones. Returns (B, T, C).
        """
        q, k, v = self.project(x)
        q, k = self.place(q, k, cache.length if cache else 0)
        if cache is None:
            return self.merge(self.kernel(q, k, v))
        k, v = cache.append(k, v)  # two (B, H, S, D)
        # The kernel's own causal mask lines up the first query with the first key: wrong once S is above T.
        mask = None if q.size(2) == 1 else ~later(q, k)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    def look(self, x: Tensor, cache: LayerCache | None = None, mask: bool = True) -> tuple[Tensor, Look]:
        """Do what `forward` does without dropout, written out, and return every number on the way too.

        mask=False lets each position see those after it as well, which the model never learnt.
        """
        q, k, v = self.project(x)  # three (B, H, T, D)
        turned, keys = self.place(q, k, cache.length if cache else 0)
        values = v
        if cache is not None:
            keys, values = cache.append(keys, v)  # two (B, H, S, D)
        scores = turned @ keys.mT / math.sqrt(q.size(-1))  # (B, H, T, S)
        if mask:
            scores = scores.masked_fill(later(turned, keys), -math.inf)
        weights = scores.softmax(dim=-1)  # each row sums to one
        heads = weights @ values  # (B, H, T, D)
        return self.merge(heads), Look(q, k, v, scores, weights, heads)


def later(q: Tensor, k: Tensor) -> Tensor:
    """Return (T, S), True where a key comes after its query; the last query stands beside the last key."""
    T, S = q.size(2), k.size(2)
    return torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1)
