"""Causal multi-head self-attention: each position gathers from itself and from those before it."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import blockwise
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


class Attention(nn.Module):
    """softmax(QKᵀ / √D) V for every head at once (Vaswani et al. 2017, section 3.2)."""

    rotary: Tensor | None

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
        q, k, v = self.qkv(x).view(B, T, 3, self.head_count, C // self.head_count).permute(2, 0, 3, 1, 4)
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
        """Let each position gather from itself and from those before it, by the fused kernel.

        x: (B, T, C), the T newest positions; a cache holds the keys and values of earlier ones. Returns (B, T, C).
        """
        q, k, v = self.project(x)
        q, k = self.place(q, k, cache.length if cache else 0)
        if cache is not None:
            k, v = cache.append(torch.cat([k, v], dim=1))  # two (B, H, S, D)
        elif q.dtype == torch.bfloat16 and q.device.type == "cpu":
            return self.merge(blockwise.attend(q, k, v))
        T, S = q.size(2), k.size(2)
        heads = F.scaled_dot_product_attention(
            q,
            k,
            v,
            # The kernel's own causal mask lines up the first query with the first key: right only while T equals S.
            attn_mask=None if T in (1, S) else ~later(q, k),
            is_causal=T == S,
        )
        return self.merge(heads)

    def look(self, x: Tensor, cache: LayerCache | None = None, mask: bool = True) -> tuple[Tensor, Look]:
        """Do what `forward` does without dropout, written out, and return every number on the way too.

        mask=False lets each position see those after it as well, which the model never learnt.
        """
        q, k, v = self.project(x)  # three (B, H, T, D)
        turned, keys = self.place(q, k, cache.length if cache else 0)
        values = v
        if cache is not None:
            keys, values = cache.append(torch.cat([keys, v], dim=1))  # two (B, H, S, D)
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
