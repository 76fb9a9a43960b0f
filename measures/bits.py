"""Bits per character: what a model makes of documents, in a figure that any tokenizer can be compared by."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.tokenizer import MARK
from machine.device import as_tensors
from model.generate import finite
from model.gpt import GPT

NOT_COUNTED = -100  # a target that cross_entropy leaves out


def total_bits(model: GPT, ids: np.ndarray, batch_size: int = 32) -> float:
    """Return the sum of -log2 p over every token of `ids` but the first.

    ids: (tokens,), cut into consecutive windows of the context without overlap, the last one short.
    """
    return bits_of_windows(model, ids, np.arange(0, len(ids) - 1, model.config.context), batch_size)


def document_bits(model: GPT, ids: np.ndarray, batch_size: int = 32) -> float:
    """Return the same sum, each document being read from its own mark, as when it is written.

    ids: (tokens,), the mark before, between and after the documents; one longer than the context is cut into
    consecutive windows from its mark on.
    """
    marks = np.flatnonzero(ids == MARK)
    starts = [np.arange(begin, end, model.config.context) for begin, end in zip(marks[:-1], marks[1:], strict=True)]
    return bits_of_windows(model, ids, np.concatenate(starts), batch_size)


@torch.no_grad()
def bits_of_windows(model: GPT, ids: np.ndarray, starts: np.ndarray, batch_size: int) -> float:
    """Return the sum of -log2 p over every token of `ids` but the first, in float64 from fp32 logits.

    starts: where windows begin, the first at 0, each reaching to the next; a token is predicted from those before it in
    its window alone. No dropout, no autocast, no generator; the model's mode is kept.
    """
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    lengths = np.diff(starts, append=len(ids) - 1)
    longest_first = np.argsort(-lengths, kind="stable")  # so that windows of about one length are computed together
    nats = 0.0
    for at in range(0, len(starts), batch_size):
        batch = longest_first[at : at + batch_size]
        within = np.arange(lengths[batch[0]])
        counted = within < lengths[batch, None]
        places = np.where(counted, starts[batch, None] + within, 0)
        targets = np.where(counted, ids[places + 1].astype(np.int64), NOT_COUNTED)
        nats += float(finite(losses(model, *as_tensors(ids[places], targets, device))).cpu().double().sum())
    model.train(was_training)
    return nats / math.log(2)


def losses(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return -ln p of each target, 0 where it is not counted: (B, T) and (B, T) -> (B · T,)."""
    return F.cross_entropy(
        model(inputs).flatten(0, 1).float(), targets.flatten(), reduction="none", ignore_index=NOT_COUNTED
    )
