"""Cross-entropy over the vocabulary, a stretch of positions at a time: the logits never stand in memory together."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 2**23  # logits at a time: as many as make the products large
STRETCH = 2**19  # of them in fp32 at a time: as few as stay in the processor's cache


def summed_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats of the logits x · weightᵀ, summed over all targets.

    x: (N, C); weight: (V, C); targets: (N,). Returns a scalar in fp32. Within autocast, products are in its type.
    """
    if x.device.type != "cpu":  # where memory is fast, there is nothing to gain
        return F.cross_entropy(F.linear(x, weight).float(), targets, reduction="sum")
    if torch.is_autocast_enabled("cpu"):
        x = x.to(torch.get_autocast_dtype("cpu"))
    return by_stretches(x, weight, targets)[0]


@torch.library.custom_op("malssi::cross_entropy", mutates_args=())  # so that compiling takes it as it is
def by_stretches(x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss and its gradients by x and weight.

    They are taken while the logits are at hand: softmax minus the target, whatever the loss is used for.
    """
    table = weight.to(x.dtype)
    loss, dx, dweight = torch.zeros(()), torch.empty_like(x), torch.zeros_like(weight)
    rows, few = (max(numbers // len(weight), 1) for numbers in (BLOCK, STRETCH))
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        logits = x[block] @ table.mT
        for part, right in zip(logits.split(few), targets[block, None].split(few), strict=True):
            p = part.float()
            highest = p.amax(dim=1)
            loss -= p.gather(1, right).sum()
            torch.softmax(p, dim=1, out=p)
            loss += (highest - p.amax(dim=1).log()).sum()  # the logarithm of the sum of exponentials
            part.copy_(p.scatter_add_(1, right, torch.full(right.shape, -1.0)))  # the gradient by the logits
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
