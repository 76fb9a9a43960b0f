"""The worked example of a first lesson on self-attention: four tokens, four numbers each, all maps the identity."""

import math
from typing import NamedTuple

import numpy as np

TOKENS = ("나는", "사과를", "맛있게", "먹었다")
X = np.array(
    [
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0, 1.0],
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 1.0, 1.0, 0.0],
    ]
)


class Steps(NamedTuple):
    """What comes out of each step, (4, 4) each."""

    scores: np.ndarray  # QKᵀ / √4, -inf where the mask forbids
    weights: np.ndarray  # each row sums to one
    context: np.ndarray  # the weighted sums of the values


def steps(mask: bool) -> Steps:
    """Return softmax(XXᵀ / √4) X, step by step; with the mask no token sees a later one."""
    scores = X @ X.T / math.sqrt(X.shape[1])
    if mask:
        scores[np.triu_indices(len(X), 1)] = -math.inf
    exponentials = np.exp(scores)
    weights = exponentials / exponentials.sum(axis=1, keepdims=True)
    return Steps(scores, weights, weights @ X)
