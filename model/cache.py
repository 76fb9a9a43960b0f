"""Keys and values of positions already read, so that a new token costs one position and not all of them again."""

from torch import Tensor


class LayerCache:
    """The keys and values of one layer, in two buffers as long as the context."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """keys, values: (B, H, context, D) each, empty."""
        self.keys, self.values, self.length = keys, values, 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of T positions, (B, H, T, D) each; return those of all S so far, (B, H, S, D)."""
        start, self.length = self.length, self.length + k.size(2)
        self.keys[:, :, start : self.length] = k
        self.values[:, :, start : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Cache(list[LayerCache]):
    """One `LayerCache` a layer."""

    @property
    def length(self) -> int:
        """Positions read so far."""
        return self[0].length


def empty_cache(layers: int, shape: tuple[int, int, int, int], like: Tensor) -> Cache:
    """Return a cache for `layers` layers of `shape` (B, H, context, D), of the dtype and device of `like`."""
    return Cache(LayerCache(like.new_zeros(shape), like.new_zeros(shape)) for _ in range(layers))
