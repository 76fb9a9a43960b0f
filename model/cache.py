"""Keys and values of positions already read, so that a new piece costs one position and not all again."""

from torch import Tensor


class LayerCache:
    """The keys and values of one layer, side by side in a buffer as long as the context."""

    def __init__(self, room: Tensor) -> None:
        """room: (B, 2 · H, context, D), empty; keys come in its first H heads, values in the others.

        It may be of a narrower type than what comes, which is then rounded to it.
        """
        self.room, self.length = room, 0

    def append(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of T positions; return those of all S so far.

        new: (B, 2 · H, T, D), keys first. Returns two (B, H, S, D).
        """
        start, T = self.length, new.size(2)
        self.length = start + T
        self.room.narrow(2, start, T).copy_(new)
        keys, values = self.room.narrow(2, 0, self.length).to(new.dtype).chunk(2, dim=1)
        return keys, values


class Cache(list[LayerCache]):
    """One `LayerCache` a layer."""

    @property
    def length(self) -> int:
        """Positions read so far."""
        return self[0].length


def empty_cache(layers: int, shape: tuple[int, int, int, int], like: Tensor) -> Cache:
    """Return a cache for `layers` layers of `shape` (B, H, context, D), of the type and device of `like`."""
    B, H, context, D = shape
    return Cache(LayerCache(like.new_zeros(B, 2 * H, context, D)) for _ in range(layers))
