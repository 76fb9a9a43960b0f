"""One block: look around, then think, each added to what was there (pre-norm, as in GPT-2)."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attention, Look
from model.cache import LayerCache
from model.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """Two linear layers with a GELU between, four times as wide inside, at each position alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.down = nn.Linear(4 * config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: ModelConfig, rotary: Tensor | None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=config.bias)
        self.attention = Attention(config, rotary)
        self.feed_forward_norm = nn.LayerNorm(config.width, bias=config.bias)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        return self.think(x, self.attention(self.attention_norm(x), cache))

    def look(self, x: Tensor, cache: LayerCache | None = None, mask: bool = True) -> tuple[Tensor, Look]:
        """Do what `forward` does by the written-out attention, and return what it looked at too."""
        gathered, look = self.attention.look(self.attention_norm(x), cache, mask)
        return self.think(x, gathered), look

    def think(self, x: Tensor, gathered: Tensor) -> Tensor:
        """Add what attention gathered, and what the feed-forward makes of the sum: (B, T, C) -> (B, T, C)."""
        x = x + self.dropout(gathered)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
