"""Windows over the tokens that know their place: every epoch visits each token once, in a shuffled order."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np


@dataclass
class Place:
    """How far the windows have come; with the seed it decides all that follows."""

    epoch: int = 0
    used: int = 0  # windows of this epoch already taken


class Windows:
    """Cuts tokens into windows of `context` inputs and as many targets, one position later.

    Each epoch shifts the cuts by a random offset and shuffles them, both by seed and epoch number alone, so that
    any place can be found again. Documents lie packed, the mark between them, and a window may span several:
    attention is not kept from crossing the mark. Every window is full and nothing is padded; what an offset leaves
    over at either end, shorter than a window, comes in with the offset of another epoch.
    """

    def __init__(self, ids: np.ndarray, context: int, seed: int, place: Place | None = None) -> None:
        """ids: (tokens,). Raises ValueError where they do not fill one window and its last target."""
        if len(ids) < context + 1:
            raise ValueError(
                f"the training side has {len(ids):,} tokens, and a context of {context} needs at least "
                f"{context + 1:,}: add text or lower --model.context"
            )
        self.ids, self.context, self.seed = ids, context, seed
        self.place = place or Place()
        self._offset, self._order = self.drawn(self.place.epoch)

    def drawn(self, epoch: int) -> tuple[int, np.ndarray]:
        """Return where the first window of `epoch` begins, and its windows by number in the order of use.

        Four bytes a window are all that grows with the text.
        """
        generator = np.random.default_rng((self.seed, epoch))
        offset = int(generator.integers(min(self.context, len(self.ids) - self.context)))
        order = np.arange((len(self.ids) - 1 - offset) // self.context, dtype=np.uint32)
        generator.shuffle(order)
        return offset, order

    def next(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next `size` windows as (inputs, targets), each (size, context) of int64; epochs follow on."""
        taken: list[int] = []
        while len(taken) < size:
            if self.place.used >= len(self._order):
                self.place = Place(self.place.epoch + 1)
                self._offset, self._order = self.drawn(self.place.epoch)
            more = self._order[self.place.used :][: size - len(taken)]
            self.place.used += len(more)
            taken.extend(self._offset + self.context * more.astype(np.int64))
        windows = self.ids[np.array(taken)[:, None] + np.arange(self.context + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


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
