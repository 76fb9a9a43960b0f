"""The stack of blocks between two uses of one matrix: tokens to vectors at the bottom, vectors to tokens at the top."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Look
from model.block import Block
from model.cache import Cache, LayerCache, empty_cache
from model.config import ModelConfig
from model.position import rotary_table, sinusoidal_table

INITIAL_STD = 0.02


class GPT(nn.Module):
    """A decoder-only transformer in GPT-2's layout (Radford et al. 2019), its head tied to the token embedding."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        """Build with random weights from torch's global generator."""
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.token = nn.Embedding(vocab_size, config.width)
        self.position: nn.Parameter | Tensor | None = None
        if config.position == "learned":
            self.position = nn.Parameter(torch.empty(config.context, config.width))
        elif config.position == "sinusoidal":
            # Scaled to the size of the embeddings, which it would drown at the start otherwise.
            table = INITIAL_STD * math.sqrt(2) * sinusoidal_table(config.context, config.width)
            del self.position
            self.register_buffer("position", table, persistent=False)
        rotary = rotary_table(config.context, config.head_width) if config.position == "rotary" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, rotary) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=config.bias)
        self.initialise()

    def initialise(self) -> None:
        """Draw every matrix from N(0, 0.02²), those that write into the residual stream from 1/√(2·layers) of it.

        So GPT-2 does: the sum of 2·layers contributions keeps the variance of one. Biases start at 0, norms at 1.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                nn.init.normal_(
                    parameter, std=INITIAL_STD / math.sqrt(2 * self.config.layers) if writes else INITIAL_STD
                )
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits of the token after each position.

        ids: (B, T), the T newest tokens; a cache holds what is known of earlier ones and takes these in.
        Returns (B, T, V). Raises ValueError where old and new together pass the context.
        """
        return self.head(self.body(ids, cache))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats, summed over all targets: two (B, T) -> ()."""
        return F.cross_entropy(self(ids).flatten(0, 1).float(), targets.flatten(), reduction="sum")

    def body(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return each position's last vector: (B, T) -> (B, T, C)."""
        x = self.embed(ids, cache.length if cache else 0)
        for block, layer in self.layers(cache):
            x = block(x, layer)
        return x

    def look(self, ids: Tensor, cache: Cache | None = None, mask: bool = True) -> tuple[Tensor, list[Look]]:
        """Return the logits as `forward` does without dropout, and every layer's `Look`."""
        x = self.embed(ids, cache.length if cache else 0)
        looks = []
        for block, layer in self.layers(cache):
            x, look = block.look(x, layer, mask)
            looks.append(look)
        return self.head(x), looks

    def layers(self, cache: Cache | None) -> list[tuple[Block, LayerCache | None]]:
        """Return every block, with its layer of the cache if there is one."""
        blocks = cast(list[Block], list(self.blocks))
        return list(zip(blocks, cache or [None] * len(blocks), strict=True))

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Give each token its vector, and its position's where positions are added: (B, T) -> (B, T, C)."""
        stop = start + ids.size(1)
        if stop > self.config.context:
            raise ValueError(f"{stop} tokens are more than the context of {self.config.context}")
        x = self.token(ids)
        if self.position is not None:
            x = x + self.position[start:stop].to(x.dtype)
        return self.dropout(x)

    def head(self, x: Tensor) -> Tensor:
        """Compare each position's last vector with every token's first one: (B, T, C) -> (B, T, V)."""
        return F.linear(self.norm(x), self.token.weight)

    def empty_cache(self, batch: int = 1) -> Cache:
        """Return a cache for `batch` sequences, with room for the context."""
        shape = (batch, self.config.heads, self.config.context, self.config.head_width)
        return empty_cache(self.config.layers, shape, like=self.token.weight)

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.token.weight.device

    @property
    def parameter_count(self) -> int:
        """Numbers that are learned; the tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())
