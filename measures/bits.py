"""Bits per character: what a model makes of documents, in a figure that any tokenizer can be compared by."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from machine.device import as_tensors
from model.generate import finite
from model.gpt import GPT


@torch.no_grad()
def total_bits(model: GPT, ids: np.ndarray, batch_size: int = 32) -> float:
    """Return the sum of -log2 p over every token of `ids` but the first, in float64 from fp32 logits.

    ids: (tokens,), cut into consecutive windows of the context without overlap, the last one short; a token is
    predicted from those before it in its window alone. No dropout, no autocast, no generator; the model's mode is kept.
    """
    was_training = model.training
    model.eval()
    device, context = model.token.weight.device, model.config.context
    full = (len(ids) - 1) // context * context
    inputs = ids[:full].reshape(-1, context)
    targets = ids[1 : full + 1].reshape(-1, context)
    batches = [
        (inputs[at : at + batch_size], targets[at : at + batch_size]) for at in range(0, len(inputs), batch_size)
    ]
    if full < len(ids) - 1:
        batches.append((ids[None, full:-1], ids[None, full + 1 :]))
    nats = sum(float(finite(losses(model, *as_tensors(x, y, device))).cpu().double().sum()) for x, y in batches)
    model.train(was_training)
    return nats / math.log(2)


def losses(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return -ln p of each target: (B, T) and (B, T) -> (B · T,)."""
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten(), reduction="none")
