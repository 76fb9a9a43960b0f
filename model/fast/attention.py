"""Causal attention from plain matrix products, a block of queries at a time: nothing T×T is kept.

On a processor that multiplies bf16 itself this is two to three times as fast as torch's own kernel, which spends its
time outside the products (docs/speed.md); everything else is declined and left to torch's kernel.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.attention import causal_attention

BLOCK = 256  # queries at a time: the keys after a block are left out, which saves up to half of the products
SCRATCH = 2**21  # scores at a time, so that they stay in the processor's cache


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what `causal_attention` returns, by blocks where that is faster: three (B, H, T, D) -> (B, H, T, D)."""
    if q.dtype == torch.bfloat16 and q.device.type == "cpu":
        return by_blocks(q, k, v)
    return causal_attention(q, k, v)


def has_amx() -> bool:
    """Whether this processor multiplies bf16 in tiles; no public name of torch says so before 2.11."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())


@torch.library.custom_op("malssi::attend", mutates_args=())  # so that compiling takes it as it is
def by_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what every head gathers, softmax(QKᵀ / √D) V with the causal mask: three (B, H, T, D) -> (B, H, T, D)."""
    heads = torch.empty(q.shape, dtype=q.dtype)
    if has_amx():  # there torch's kernel is faster in the forward pass, though not in the backward pass
        return heads.copy_(causal_attention(q, k, v))
    q, k, v, gathered = (x.flatten(0, 1) for x in (q, k, v, heads))
    for n, t, s in blocks(q):
        torch.bmm(weights(q[n, t], k[n, s]), v[n, s], out=gathered[n, t])
    return heads


@torch.library.custom_op("malssi::attend_backward", mutates_args=())
def attend_backward(dheads: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; each block's weights are computed again (Dao et al. 2022, section 3.1)."""
    gradients = (
        torch.empty(q.shape, dtype=q.dtype),
        torch.empty(k.shape, dtype=k.dtype),
        torch.empty(v.shape, dtype=v.dtype),
    )
    dq, dk, dv = (gradient.flatten(0, 1) for gradient in gradients)
    dheads, q, k, v = (x.flatten(0, 1) for x in (dheads, q, k, v))
    scale = q.size(-1) ** -0.5
    for n, t, s in blocks(q):
        p = weights(q[n, t], k[n, s])
        dscores = dheads[n, t] @ v[n, s].mT
        softmax_backward(dscores, p)
        add = partial(torch.baddbmm, beta=s.stop < k.size(1))  # the first block of some heads sees, and sets, every key
        add(dv[n, s], p.mT, dheads[n, t], out=dv[n, s])
        add(dk[n, s], dscores.mT, q[n, t], alpha=scale, out=dk[n, s])
        torch.baddbmm(dq[n, t], dscores, k[n, s], beta=0, alpha=scale, out=dq[n, t])
    return gradients


def softmax_backward(dp: Tensor, p: Tensor) -> None:
    """Turn the gradient of the weights `p` into that of their scores, in place, by torch's kernel if it is there."""
    if fused := getattr(torch, "_softmax_backward_data", None):
        fused(dp, p, -1, p.dtype, grad_input=dp)
    else:
        dp.sub_((dp * p).sum(-1, keepdim=True)).mul_(p)


def blocks(q: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the parts of (N, T, D) to be done one by one: heads, their queries, and the keys that these may see."""
    N, T, _ = q.shape
    heads = max(SCRATCH // (min(BLOCK, T) * T), 1)
    for n in range(0, N, heads):
        for t in reversed(range(0, T, BLOCK)):
            yield slice(n, n + heads), slice(t, t + BLOCK), slice(0, min(t + BLOCK, T))


def weights(q: Tensor, k: Tensor) -> Tensor:
    """Return the attention of queries on keys that end where they do: (N, T, D) and (N, S, D) -> (N, T, S)."""
    T, S = q.size(1), k.size(1)
    mask = torch.full((T, S), -math.inf, dtype=q.dtype).triu(S - T + 1)
    scores = torch.baddbmm(mask, q, k.mT, alpha=q.size(-1) ** -0.5)
    return torch.softmax(scores, dim=-1, out=scores)


def keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    """Keep what the backward pass needs."""
    ctx.save_for_backward(*inputs)


by_blocks.register_fake(lambda q, k, v: torch.empty(q.shape, dtype=q.dtype, device=q.device))
attend_backward.register_fake(
    lambda dheads, *inputs: tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
)
by_blocks.register_autograd(lambda ctx, dheads: attend_backward(dheads, *ctx.saved_tensors), setup_context=keep)
