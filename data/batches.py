"""Windows over the tokens that know their place: every epoch shows each document from its beginning, shuffled."""

from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice

import numpy as np

from data.tokenizer import MARK

CHUNK = 2**20  # tokens searched at once for marks
GROUP = 256  # pieces that are packed into windows together


@dataclass
class Place:
    """How far the windows have come; with the seed it decides all that follows."""

    epoch: int = 0
    used: int = 0  # windows of this epoch already taken


class Windows:
    """Fills windows of `context` inputs, and as many targets one position later, with pieces of the text.

    A piece is a whole document, its mark in front; a document longer than the context is cut into several, elsewhere
    in each epoch. A window holds as many whole pieces as fit, so that a model sees who a story is about, and what room
    is left holds the beginning of another: nothing is padded, and each token is read at least once in an epoch.
    Attention is not kept from crossing the mark.
    """

    def __init__(self, ids: np.ndarray, context: int, seed: int, place: Place | None = None) -> None:
        """ids: (tokens,), the mark first and last. Raises ValueError where they do not fill a window and its target."""
        if len(ids) < context + 1:
            raise ValueError(
                f"the training side has {len(ids):,} tokens, and a context of {context} needs at least "
                f"{context + 1:,}: add text or lower --model.context"
            )
        self.ids, self.context, self.seed = ids, context, seed
        self.marks = np.concatenate(
            [at + np.flatnonzero(ids[at : at + CHUNK] == MARK) for at in range(0, len(ids), CHUNK)]
        )
        self.place = place or Place()
        self.coming: Iterator[np.ndarray] = islice(self.windows(self.place.epoch), self.place.used, None)

    def next(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next `size` windows as (inputs, targets), each (size, context) of int64; epochs follow on."""
        taken: list[np.ndarray] = []
        while len(taken) < size:
            more = list(islice(self.coming, size - len(taken)))
            self.place.used += len(more)
            taken += more
            if not more:
                self.place = Place(self.place.epoch + 1)
                self.coming = self.windows(self.place.epoch)
        at = np.stack(taken)
        return self.ids[at].astype(np.int64), self.ids[at + 1].astype(np.int64)

    def windows(self, epoch: int) -> Iterator[np.ndarray]:
        """Yield the positions of the inputs of each window of `epoch`, (context,).

        Seed and epoch alone decide them, so that any place can be found again.
        """
        generator = np.random.default_rng((self.seed, epoch))
        begins = self.pieces(int(generator.integers(self.context)))
        lengths = np.diff(begins)
        order = generator.permutation(len(lengths))
        for start in range(0, len(order), GROUP):
            group = order[start : start + GROUP]
            packed = [group[window] for window in pack(lengths[group].tolist(), self.context)]
            packed = [packed[number] for number in generator.permutation(len(packed))]
            for number in range(len(packed)):
                parts, room = [], self.context
                for piece in chain.from_iterable(islice(cycle(packed), number, None)):
                    parts.append(begins[piece] + np.arange(min(lengths[piece], room)))
                    room -= len(parts[-1])
                    if not room:
                        break
                yield np.concatenate(parts)

    def pieces(self, offset: int) -> np.ndarray:
        """Return where pieces begin, and where the last ends: at the marks, and in long documents at regular cuts."""
        cuts = np.arange(offset, self.marks[-1], self.context)
        document = np.searchsorted(self.marks, cuts, side="right") - 1
        return np.union1d(self.marks, cuts[np.diff(self.marks)[document] > self.context])


def pack(lengths: list[int], room: int) -> list[list[int]]:
    """Return which pieces share a window: the longest one left, then the longest that still fits, and so on."""
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    ordered = sorted(lengths)
    windows = []
    while ordered:
        window, left = [], room
        while at := bisect_right(ordered, left):
            window.append(by_length.pop(at - 1))
            left -= ordered.pop(at - 1)
        windows.append(window)
    return windows


class Batches:
    """Batches of windows, the next one always being cut by a thread while the last one is trained on."""

    def __init__(self, windows: Windows, size: int) -> None:
        self.windows, self.size = windows, size
        self.thread = ThreadPoolExecutor(1)
        self.coming = self.thread.submit(self._cut)

    def next(self) -> tuple[tuple[np.ndarray, np.ndarray], Place]:
        """Return the next (inputs, targets), each (size, context), and the place behind them."""
        found = self.coming.result()
        self.coming = self.thread.submit(self._cut)
        return found

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown()

    def _cut(self) -> tuple[tuple[np.ndarray, np.ndarray], Place]:
        batch = self.windows.next(self.size)
        return batch, replace(self.windows.place)
