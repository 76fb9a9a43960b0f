"""Windows over the tokens that know their place: every epoch shows each document from its beginning, shuffled."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from data.tokenizer import MARK

CHUNK = 2**20  # tokens searched at once for marks


@dataclass
class Place:
    """How far the windows have come; with the seed it decides all that follows."""

    epoch: int = 0
    used: int = 0  # pieces of this epoch already taken


class Windows:
    """Fills windows of `context` inputs, and as many targets one position later, with pieces of the text.

    A piece is a whole document, its mark in front; a document longer than the context is cut into several, elsewhere
    in each epoch. Every window begins with a piece, so that a model sees who a story is about, and goes on with the
    next ones until it is full. A piece that does not fit whole begins the next window once more: nothing is padded, and
    each token is read at least once in an epoch. Attention is not kept from crossing the mark.
    """

    def __init__(self, ids: np.ndarray, context: int, seed: int, place: Place | None = None) -> None:
        """ids: (tokens,), the mark first and last. Raises ValueError where they do not fill one window and its target."""
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
        self.begins, self.order = self.drawn(self.place.epoch)

    def drawn(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where the pieces of `epoch` begin, with the end of the last, and their numbers in the order of use.

        Decided by seed and epoch alone, so that any place can be found again.
        """
        generator = np.random.default_rng((self.seed, epoch))
        cuts = np.arange(generator.integers(self.context), self.marks[-1], self.context)
        document = np.searchsorted(self.marks, cuts, side="right") - 1
        cuts = cuts[np.diff(self.marks)[document] > self.context]
        begins = np.union1d(self.marks, cuts)
        return begins, generator.permutation(len(begins) - 1)

    def next(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next `size` windows as (inputs, targets), each (size, context) of int64; epochs follow on."""
        at = np.stack([self._window() for _ in range(size)])
        return self.ids[at].astype(np.int64), self.ids[at + 1].astype(np.int64)

    def _window(self) -> np.ndarray:
        """Return the positions of the next window's inputs in the text, (context,)."""
        parts, room = [], self.context
        while room:
            if self.place.used == len(self.order):
                self.place = Place(self.place.epoch + 1)
                self.begins, self.order = self.drawn(self.place.epoch)
            begin, end = self.begins[self.order[self.place.used] + np.arange(2)]
            self.place.used += int(end - begin <= room)
            parts.append(np.arange(begin, min(end, begin + room)))
            room -= len(parts[-1])
        return np.concatenate(parts)


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
