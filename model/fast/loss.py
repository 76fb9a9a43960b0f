"""Cross-entropy over the vocabulary, a stretch of positions at a time: the logits never stand in memory together."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits at a time: as many as make the products large, and of them in fp32 as few as stay in a processor's cache.
BLOCK = {"cpu": 2**23, "cuda": 2**27}
STRETCH = {"cpu": 2**19, "cuda": 2**27}


def logits_at_once(tokens: int, vocab_size: int, device: torch.device) -> int:
    """Return for how many of so many tokens the logits stand in memory at once."""
    return min(tokens, max(BLOCK[device.type] // vocab_size, 1)) if device.type in BLOCK else tokens


def summed_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats of the logits x · weightᵀ, summed over all targets.

    x: (N, C); weight: (V, C); targets: (N,). Returns a scalar in fp32. Within autocast, products are in its dtype.
    """
    if x.device.type not in BLOCK:
        return F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return by_stretches(x, weight, targets)[0]


@torch.library.custom_op("malssi::cross_entropy", mutates_args=())  # so that compiling takes it as it is
def by_stretches(x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss and its gradients by x and weight.

    They are taken while the logits are at hand: softmax minus the target, whatever the loss is used for.
    """
    table = weight.to(x.dtype)
    loss, dx, dweight = x.new_zeros((), dtype=torch.float32), torch.empty_like(x), torch.zeros_like(weight)
    rows, few = (max(numbers[x.device.type] // len(weight), 1) for numbers in (BLOCK, STRETCH))
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        logits = x[block] @ table.mT
        for part, target in zip(logits.split(few), targets[block, None].split(few), strict=True):
            p = part.float()
            highest = p.amax(dim=1)
            loss -= p.gather(1, target).sum()
            torch.softmax(p, dim=1, out=p)
            loss += (highest - p.amax(dim=1).log()).sum()  # the logarithm of the sum of exponentials
            part.copy_(p.scatter_add_(1, target, p.new_full(target.shape, -1.0)))  # the gradient by the logits
        torch.mm(logits, table, out=dx[block])
        dweight += logits.mT @ x[block]
    return loss, dx, dweight


def keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Keep what the backward pass needs."""
    ctx.save_for_backward(*output[1:])


def scale(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
    """Return the gradients of x, weight and targets."""
    dx, dweight = ctx.saved_tensors
    return dx * dloss, dweight * dloss, None


by_stretches.register_fake(
    lambda x, weight, targets: (x.new_empty((), dtype=torch.float32), torch.empty_like(x), torch.empty_like(weight))
)
by_stretches.register_autograd(scale, setup_context=keep)
