"""The optimizer and one update by it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from training.config import TrainConfig


class NonFinite(ArithmeticError):
    """The loss or the gradient is no number, so that a step would ruin the weights."""


def make_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """Return AdamW (Loshchilov & Hutter 2019); matrices are pulled towards zero, norms and biases are not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    fused = parameters[0].device.type in ("cpu", "cuda")
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=fused)


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats, summed over all targets: (B, T, V) and (B, T) -> ()."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def update(
    model: Callable[[Tensor], Tensor],
    optimizer: Optimizer,
    batches: Sequence[tuple[Tensor, Tensor]],
    max_norm: float,
    autocast: Callable[[], AbstractContextManager],
    scaler: torch.amp.GradScaler,
) -> float:
    """Take one step on `batches`, pairs of (B, T) inputs and targets; return the mean loss over all their targets.

    Raises NonFinite before the step where the loss or the gradient is no finite number.
    """
    count = sum(targets.numel() for _, targets in batches)
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in batches:  # however the step is split, its gradient is the same
        with autocast():
            loss = summed_loss(model(inputs), targets) / count
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    # fp16's scaler leaves out a step that overflows and scales down; anywhere else that is the end of the run.
    if total != total or abs(total) == float("inf") or not (scaler.is_enabled() or norm.isfinite()):
        raise NonFinite(f"the loss is {total:.4g}, the length of its gradient {norm.item():.4g}")
    scaler.step(optimizer)
    scaler.update()
    return total
