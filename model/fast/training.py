"""The loss of the plain model, computed the fastest way that its device knows; the numbers are the same."""

from collections.abc import Callable

from torch import Tensor

from model.fast.attention import attend
from model.fast.loss import BLOCK, summed_loss
from model.gpt import GPT


def fast_loss(model: GPT) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what `model.loss` computes, two (B, T) -> ().

    The logits never stand whole, and on a processor attention goes by blocks; on other devices than a processor or a
    CUDA card this is `model.loss` itself.
    """
    if model.device.type not in BLOCK:
        return model.loss
    if model.device.type == "cpu":
        for block, _ in model.layers(None):
            block.attention.kernel = attend

    def loss(ids: Tensor, targets: Tensor) -> Tensor:
        x = model.norm(model.body(ids))
        return summed_loss(x.flatten(0, 1), model.token.weight, targets.flatten())

    return loss
