"""The optimizers: AdamW, and Muon for the matrices inside the blocks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from model.attention import split_qkv
from run.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig, products: torch.dtype = torch.float32) -> Optimizer:
    """Return the optimizer that `config` names; matrices are pulled towards zero, norms and biases are not.

    products: the dtype in which Muon multiplies.
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
    settings: dict[str, Any] = {"lr": config.rate, "betas": (config.beta1, config.beta2), "fused": fused}
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
        """Take one step; the gradients of the matrices are used up by it."""
        group = self.param_groups[0]
        matrices: list[Tensor] = group["params"]
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix, gradient in zip(matrices, gradients, strict=True):
            state = self.state[matrix]
            if not state:  # the keys are AdamW's, so that its state is saved and loaded like this one
                state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(matrix)}
            state["step"] += 1
            state["exp_avg"].lerp_(gradient, 1 - self.MOMENTUM)
            gradient.lerp_(state["exp_avg"], self.MOMENTUM)  # Nesterov's look ahead
        # Queries, keys and values lie in one matrix, but are three maps.
        parts = [
            part
            for gradient, is_qkv in zip(gradients, self.qkv, strict=True)
            for part in (split_qkv(gradient, dim=0) if is_qkv else (gradient,))
        ]
        for shape in {part.shape for part in parts}:
            alike = [part for part in parts if part.shape == shape]
            directions = orthogonal(torch.stack(alike), self.products) * (0.2 * max(shape) ** 0.5)
            for part, direction in zip(alike, directions, strict=True):
                part.copy_(direction)  # into the gradients, of which these are parts
        for matrix, gradient in zip(matrices, gradients, strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(gradient, alpha=-group["lr"])
            matrix.grad = None  # AdamW leaves out what has no gradient
        super().step(closure)


def orthogonal(matrices: Tensor, products: torch.dtype = torch.float32) -> Tensor:
    """Return `matrices` with their singular values brought to about one, by five Newton-Schulz steps.

    The polynomial is Jordan et al.'s, steep at zero: the values end between 0.7 and 1.2, which serves as well as one.
    (..., M, N) -> (..., M, N), multiplied in the dtype `products`.
    """
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-30)).to(products)  # no larger: some gradients are tiny
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (2.0315 * (a @ a) - 4.7750 * a) @ x
    return (x.mT if tall else x).to(matrices.dtype)
