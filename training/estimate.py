"""What training will take, worked out beforehand: operations a token, and memory."""

import torch

from model.config import ModelConfig
from model.fast.loss import logits_at_once
from model.gpt import GPT

SHARE_USED = 0.4  # of the rate of one matrix product; the default run was measured at 0.44


def flops_per_token(model: GPT) -> int:
    """Return the floating-point operations of training on one token, forward and backward pass.

    Six a parameter, and the scores and sums of attention (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, B).
    """
    shape = model.config
    return 6 * model.parameter_count + 12 * shape.layers * shape.width * shape.context


def memory_needed(
    shape: ModelConfig, parameters: int, vocab_size: int, sequences: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return about how many bytes training holds with so many `sequences` at once.

    Weights, gradient and the optimizer's two averages; all but the gradient once more while they are saved; what the
    forward pass keeps for the backward pass; and the logits that stand in memory at once, with their gradient.
    """
    tokens = sequences * shape.context
    kept = 20 * shape.width * shape.layers * dtype.itemsize * tokens
    return (16 + 12) * parameters + kept + 12 * vocab_size * logits_at_once(tokens, vocab_size, device)


def sequences_at_once(
    shape: ModelConfig, parameters: int, vocab_size: int, batch_size: int, dtype: torch.dtype, device: torch.device,
    memory: float,
) -> int:  # fmt: skip
    """Return how many of `batch_size` sequences fit into so many bytes of `memory`, 0 where not one does."""
    size = batch_size
    while size and memory_needed(shape, parameters, vocab_size, size, dtype, device) > memory:
        size //= 2
    return size
