"""Causal attention from plain matrix products, a block of queries at a time: nothing T×T is kept.

On a processor that multiplies bf16 itself this is two to three times as fast as torch's own kernel, which spends its
time outside the products (docs/speed.md); on others, and on graphics cards, torch's kernel serves.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BLOCK = 128  # queries at a time: the keys after a block are left out, which saves up to half of the products
SCRATCH = 2**20  # scores at a time, so that they stay in the processor's cache


@torch.library.custom_op("malssi::attend", mutates_args=())  # so that compiling takes it as it is
def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what every head gathers, softmax(QKᵀ / √D) V with the causal mask: three (B, H, T, D) -> (B, H, T, D)."""
    heads = torch.empty(q.shape, dtype=q.dtype)
    q, k, v, gathered = scaled(q), k.flatten(0, 1), v.flatten(0, 1), heads.flatten(0, 1)
    for n, t, s in blocks(q):
        gathered[n, t] = weights(q[n, t], k[n, s]) @ v[n, s]
    return heads


@torch.library.custom_op("malssi::attend_backward", mutates_args=())
def attend_backward(dheads: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; each block's weights are computed again (Dao et al. 2022, section 3.1)."""
    gradients = (
        torch.empty(q.shape, dtype=q.dtype),
        torch.zeros(k.shape, dtype=k.dtype),
        torch.zeros(v.shape, dtype=v.dtype),
    )
    dq, dk, dv = (gradient.flatten(0, 1) for gradient in gradients)
    q, k, v, dheads = scaled(q), k.flatten(0, 1), v.flatten(0, 1), dheads.flatten(0, 1)
    for n, t, s in blocks(q):
        p = weights(q[n, t], k[n, s])
        dv[n, s] += p.mT @ dheads[n, t]
        dscores = torch._softmax_backward_data(dheads[n, t] @ v[n, s].mT, p, -1, p.dtype)
        dq[n, t] = dscores @ k[n, s]
        dk[n, s] += dscores.mT @ q[n, t]
    dq *= dq.size(-1) ** -0.5
    return gradients


def scaled(q: Tensor) -> Tensor:
    """Divide queries by √D: (B, H, T, D) -> (B · H, T, D)."""
    return (q * q.size(-1) ** -0.5).flatten(0, 1)


def blocks(q: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the parts of (N, T, D) to be done one by one: heads, their queries, and the keys that these may see."""
    N, T, _ = q.shape
    heads = max(SCRATCH // (min(BLOCK, T) * T), 1)
    for n in range(0, N, heads):
        for t in range(0, T, BLOCK):
            yield slice(n, n + heads), slice(t, t + BLOCK), slice(0, min(t + BLOCK, T))


def weights(q: Tensor, k: Tensor) -> Tensor:
    """Return the attention of queries on keys that end where they do: scaled (N, T, D) and (N, S, D) -> (N, T, S)."""
    scores, T = q @ k.mT, q.size(1)
    later = torch.full((T, T), -math.inf, dtype=q.dtype).triu(1)
    scores[:, :, k.size(1) - T :] += later
    return scores.softmax(dim=-1)


def keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    """Keep what the way back needs."""
    ctx.save_for_backward(*inputs)


attend.register_fake(lambda q, k, v: torch.empty(q.shape, dtype=q.dtype, device=q.device))
attend_backward.register_fake(
    lambda dheads, *inputs: tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
)
attend.register_autograd(lambda ctx, dheads: attend_backward(dheads, *ctx.saved_tensors), setup_context=keep)
