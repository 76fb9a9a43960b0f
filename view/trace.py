"""Every number on the way of one text through a model: what the attention view is drawn from."""

from collections import defaultdict
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.read import clean
from data.tokenizer import MARK, Tokenizer
from model.generate import finite
from model.gpt import GPT
from view.eojeol import Group, Unit, by_groups, eojeol, labels


@dataclass(frozen=True)
class Trace:
    """One text through one model; arrays are fp32, layers and heads count from 0."""

    text: str  # as `clean` returns it
    ids: list[int]  # the mark first
    tokens: list[str]  # as a person reads them
    groups: list[Group]  # eojeol
    q: np.ndarray  # (L, H, T, D), before rotation
    k: np.ndarray  # (L, H, T, D), before rotation
    v: np.ndarray  # (L, H, T, D)
    scores: np.ndarray  # (L, H, T, T), after division by √D, -inf where the mask forbids
    weights: np.ndarray  # (L, H, T, T), each row sums to one
    heads: np.ndarray  # (L, H, T, D), what each head gathered
    before: np.ndarray  # (L, T, C), what each block is given
    between: np.ndarray  # (L, T, C), that with what attention adds, before the feed-forward
    logits: np.ndarray  # (T, V)
    difference: float  # the largest between what the written-out heads gathered and what torch's fused kernel does

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        return self.weights.shape[0], self.weights.shape[1]

    def units(self, unit: Unit) -> list[Group]:
        """Return what looks at each other: eojeol, or every token on its own."""
        if unit == "eojeol":
            return self.groups
        return [Group(token, at, at + 1) for at, token in enumerate(self.tokens)]

    def names(self, unit: Unit) -> list[str]:
        """Return how a person reads each unit."""
        return [group.text for group in self.units(unit)]

    def attention(self, unit: Unit = "eojeol", last: bool = False) -> np.ndarray:
        """Return who looks at whom, (L, H, G, G): rows look, columns are looked at; `last` as in `by_groups`."""
        return by_groups(self.weights, self.units(unit), last)

    def strongest(self, unit: Unit = "eojeol") -> tuple[int, int] | None:
        """Return layer and head whose last row puts the most weight on one earlier unit, the mark left out.

        None where nothing stands before the last unit but the mark.
        """
        earlier = self.attention(unit)[:, :, -1, 1:-1]  # (L, H, G - 2)
        if not earlier.shape[-1]:
            return None
        layer, head = np.unravel_index(earlier.max(axis=-1).argmax(), self.shape)
        return int(layer), int(head)


@torch.inference_mode()
def trace(model: GPT, tokenizer: Tokenizer, text: str, mask: bool = True) -> Trace:
    """Let `model` read `text` and note every number.

    mask=False lets each position see those after it as well, which the model never learnt. Raises ValueError where the
    text is empty or longer than the context.
    """
    text = clean(text)
    ids = [MARK, *tokenizer.encode(text)]
    if len(ids) == 1:
        raise ValueError("the text is empty: there is nothing to look at")
    if len(ids) > model.config.context:
        raise ValueError(
            f"the text is {len(ids)} tokens long with its start mark, the model sees {model.config.context}: shorten it"
        )
    model.eval()  # no dropout
    x = model.embed(torch.tensor([ids], device=model.device))
    found: dict[str, list[Tensor]] = defaultdict(list)
    difference = 0.0
    for block, _ in model.layers(None):
        found["before"].append(x)
        between = x
        x, look = block.look(x, mask=mask)
        found["between"].append(between + block.attention.merge(look.heads))
        for name, tensor in look._asdict().items():
            found[name].append(tensor)
        q, k = block.attention.place(look.q, look.k, 0)
        fused = F.scaled_dot_product_attention(q, k, look.v, is_causal=mask)
        difference = max(difference, cast(float, (fused - look.heads).abs().max().item()))
    arrays = {name: torch.cat(tensors).float().cpu().numpy() for name, tensors in found.items()}
    logits = finite(model.head(x)[0].float().cpu()).numpy()
    return Trace(
        text, ids, labels(tokenizer, ids), eojeol(tokenizer, ids), **arrays, logits=logits, difference=difference
    )
