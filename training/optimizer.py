"""The optimizer and one update by it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from model.attention import split_qkv
from training.config import TrainConfig


class NonFinite(ArithmeticError):
    """The loss or the gradient is no number, so that a step would ruin the weights."""


def make_optimizer(model: nn.Module, config: TrainConfig, products: torch.dtype = torch.float32) -> Optimizer:
    """Return the optimizer that `config` names; matrices are pulled towards zero, norms and biases are not.

    products: the type in which Muon multiplies.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    inside = [(name, parameter) for name, parameter in named if parameter.dim() == 2 and name.startswith("blocks.")]
    tables = [parameter for name, parameter in named if parameter.dim() == 2 and not name.startswith("blocks.")]
    vectors = [parameter for _, parameter in named if parameter.dim() < 2]
    groups = [
        {"params": [parameter for _, parameter in inside], "weight_decay": config.weight_decay},
        {"params": tables, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = named[0][1].device.type in ("cpu", "cuda")
    settings: dict[str, Any] = {"lr": config.learning_rate, "betas": (config.beta1, config.beta2), "fused": fused}
    if config.optimizer == "adamw":
        return AdamW(groups, **settings)
    return Muon(groups, [name.endswith("attention.qkv.weight") for name, _ in inside], products, **settings)


class Muon(AdamW):
    """Muon for the matrices inside the blocks, its first group (Jordan et al. 2024); AdamW for all the rest.

    The step of a matrix is its averaged gradient with every singular value brought near one, scaled to the root mean
    square that AdamW's steps have, 0.2, so that both share one rate (Liu et al. 2025, "Muon is scalable", eq. 4).
    torch.optim.Muon multiplies in bf16 alone, which a processor without native bf16 does some hundred times slower,
    and takes one matrix after the other; here all of one shape go together.
    """

    MOMENTUM = 0.95

    def __init__(self, groups: list[dict[str, Any]], qkv: list[bool], products: torch.dtype, **settings: Any) -> None:
        """qkv: for each matrix of the first group, whether it maps to queries, keys and values at once."""
        super().__init__(groups, **settings)
        self.qkv, self.products = qkv, products
        # AdamW's fused kernel skips a step whose gradients overflowed; Muon's part would not. So the scaler does it.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        group = self.param_groups[0]
        matrices, gradients = group["params"], [parameter.grad for parameter in group["params"]]
        for parameter in matrices:
            if not self.state[parameter]:  # the keys are AdamW's, so that its state is saved and loaded like this one
                self.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter)}
            self.state[parameter]["step"] += 1
        averages = [self.state[parameter]["exp_avg"] for parameter in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - self.MOMENTUM)
        ahead = torch._foreach_lerp(gradients, averages, self.MOMENTUM)  # Nesterov's look ahead
        # Queries, keys and values lie in one matrix, but are three maps.
        parts = [
            part
            for matrix, is_qkv in zip(ahead, self.qkv, strict=True)
            for part in (split_qkv(matrix, dim=0) if is_qkv else (matrix,))
        ]
        for shape in {part.shape for part in parts}:
            alike = [part for part in parts if part.shape == shape]
            directions = orthogonal(torch.stack(alike), self.products) * (0.2 * max(shape) ** 0.5)
            torch._foreach_copy_(alike, list(directions))  # into `ahead`, of which these are parts
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, ahead, alpha=-group["lr"])
        for parameter in matrices:
            parameter.grad = None  # AdamW leaves out what has no gradient
        super().step(closure)


def orthogonal(matrices: Tensor, products: torch.dtype = torch.float32) -> Tensor:
    """Return `matrices` with their singular values brought to about one, by five Newton-Schulz steps.

    The polynomial is Jordan et al.'s, steep at zero: the values end between 0.7 and 1.2, which serves as well as one.
    (..., M, N) -> (..., M, N), multiplied in the type `products`.
    """
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)).to(products)  # no larger: some gradients are tiny
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (2.0315 * (a @ a) - 4.7750 * a) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def update(
    summed_loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    batches: Sequence[tuple[Tensor, Tensor]],
    max_norm: float,
    autocast: Callable[[], AbstractContextManager],
    scaler: torch.amp.GradScaler,
) -> float:
    """Take one step on `batches`, pairs of (B, T) inputs and targets; return the mean loss over all their targets.

    summed_loss: gives the cross-entropy summed over the targets, such as a model's `loss`.
    Raises NonFinite before the step where the loss or the gradient is no finite number.
    """
    count = sum(targets.numel() for _, targets in batches)
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in batches:  # however the step is split, its gradient is the same
        with autocast():
            loss = summed_loss(inputs, targets) / count
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
