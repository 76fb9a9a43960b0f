"""From tokens to eojeol, the words between two spaces: a model's tokens are finer than what a reader looks for."""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from data.tokenizer import MARK, SPACE, UNKNOWN, Tokenizer

Unit = Literal["eojeol", "token"]
NAMES = {MARK: "〈시작〉", UNKNOWN: "〈모름〉"}
SIGNS = str.maketrans({SPACE: "␣", "\n": "⏎", "\t": "⇥"})


@dataclass(frozen=True)
class Group:
    """Tokens `start` to `end`, the last left out, and how a person reads them."""

    text: str
    start: int
    end: int


def labels(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return each token as a person reads it; of a character in bytes, the character and which part of it: `뷁 1/3`."""
    found = [NAMES.get(id) or tokenizer.token(id).translate(SIGNS) for id in ids]
    at = 0
    while at < len(ids):
        count = character_bytes(tokenizer, ids, at)
        if count:
            character = b"".join(tokenizer.bytes_of(id) for id in ids[at : at + count]).decode("utf-8", "replace")
            for part in range(count):
                found[at + part] = f"{character} {part + 1}/{count}"
        at += count or 1
    return found


def character_bytes(tokenizer: Tokenizer, ids: list[int], at: int) -> int:
    """Return how many byte tokens from `at` on make up one character; 0 where there is another kind of token."""
    if not is_byte(tokenizer, ids[at]):
        return 0
    first = tokenizer.bytes_of(ids[at])[0]
    length = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    run = [is_byte(tokenizer, id) for id in ids[at : at + length]]
    return run.index(False) if False in run else len(run)


def is_byte(tokenizer: Tokenizer, id: int) -> bool:
    """Whether the token of `id` is one byte of a character."""
    token = tokenizer.token(id)
    return len(token) == 6 and token.startswith("<0x")


def eojeol(tokenizer: Tokenizer, ids: list[int]) -> list[Group]:
    """Return the eojeol that tokens make up.

    The mark and a line end stand alone; a token that begins with a space opens an eojeol, and all others join the one
    that is open.
    """
    number, numbers = -1, []
    alone = True
    for id in ids:
        before, alone = alone, id in NAMES or tokenizer.token(id) == "\n"
        if alone or before or tokenizer.token(id).startswith(SPACE):
            number += 1
        numbers.append(number)
    groups = []
    for _, members in groupby(range(len(ids)), numbers.__getitem__):
        places = list(members)
        first, raw = ids[places[0]], b"".join(tokenizer.bytes_of(ids[place]) for place in places)
        text = NAMES.get(first) or (raw.decode("utf-8", "replace").removeprefix(" ").translate(SIGNS) or "␣")
        groups.append(Group(text, places[0], places[-1] + 1))
    return groups


def by_groups(weights: np.ndarray, groups: list[Group], last: bool = False) -> np.ndarray:
    """Return attention between groups, each row of which sums to one as before.

    What is looked at is summed, what looks is averaged (Clark et al. 2019, "What does BERT look at?", section 4); with
    `last` a group looks as its last token does, the one that has read all of it. (…, T, T) -> (…, G, G).
    """
    starts = [group.start for group in groups]
    summed = np.add.reduceat(weights.astype(np.float64), starts, axis=-1)
    if last:
        return summed[..., [group.end - 1 for group in groups], :]
    sizes = np.array([group.end - group.start for group in groups])
    return np.add.reduceat(summed, starts, axis=-2) / sizes[:, None]
