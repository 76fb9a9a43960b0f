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
    """Return the optimizer that `config` names; matrices are pulled towards zero, norms and biases are not."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [parameter for name, parameter in named if parameter.dim() == 2 and name.startswith("blocks.")]
    tables = [parameter for name, parameter in named if parameter.dim() == 2 and not name.startswith("blocks.")]
    vectors = [parameter for _, parameter in named if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": tables, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    kind = Muon if config.optimizer == "muon" else AdamW
    fused = named[0][1].device.type in ("cpu", "cuda")
    return kind(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=fused)


class Muon(AdamW):
    """Muon for the matrices inside the blocks, its first group (Jordan et al. 2024); AdamW for all the rest.

    The step of a matrix is its averaged gradient with every singular value brought near one, scaled to the root mean
    square that AdamW's steps have, 0.2, so that both share one rate (Liu et al. 2025, "Muon is scalable", eq. 4).
    torch.optim.Muon multiplies in bf16 alone, which a processor without native bf16 does some hundred times slower.
    """

    MOMENTUM = 0.95

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        group = self.param_groups[0]
        for parameter in group["params"]:
            gradient, state = parameter.grad, self.state[parameter]
            if not state:  # the keys are AdamW's, so that its state is saved and loaded like this one
                state["step"], state["exp_avg"] = torch.tensor(0.0), torch.zeros_like(parameter)
            state["step"] += 1
            average = state["exp_avg"].lerp_(gradient, 1 - self.MOMENTUM)
            ahead = gradient.lerp(average, self.MOMENTUM)  # Nesterov's look ahead
            # Queries, keys and values lie in one matrix, but are three maps.
            parts = ahead.split(ahead.size(1)) if ahead.size(0) == 3 * ahead.size(1) else [ahead]
            direction = torch.cat([orthogonal(part) * 0.2 * max(part.shape) ** 0.5 for part in parts])
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
            parameter.grad = None  # AdamW leaves out what has no gradient
        super().step(closure)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return `matrix` with its singular values brought to about one, by five Newton-Schulz steps.

    The polynomial is Jordan et al.'s, steep at zero: the values end between 0.7 and 1.2, which serves as well as one.
    (M, N) -> (M, N).
    """
    x = matrix.mT if matrix.size(0) > matrix.size(1) else matrix
    x = x / x.norm().clamp_min(1e-30)  # no larger: early gradients of queries and keys are tiny
    for _ in range(5):
        a = x @ x.mT
        x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if matrix.size(0) > matrix.size(1) else x


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
