"""The plain model with its weights laid out for writing, one token at a time."""

import copy

import torch
from torch import nn

from model.gpt import GPT


def for_writing(model: GPT, dtype: torch.dtype = torch.float32) -> GPT:
    """Return a copy of `model` in `dtype` that multiplies one vector by a matrix faster; the numbers are the same.

    On a processor each weight is stored input by input: a product with a single vector then reads memory in order
    (docs/speed.md).
    """
    made = copy.deepcopy(model).eval()
    for parameter in made.parameters():  # not the tables of positions, which stay exact
        parameter.data = parameter.data.to(dtype)
    if made.device.type == "cpu":
        for module in made.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.data = module.weight.data.mT.contiguous().mT
    return made
