"""The peers: what a person writes who knows PyTorch and nothing of this project's ways to be fast.

A training loop and a sampler in fp32, uncompiled: the whole batch, the whole logits, torch's own fused attention and
AdamW as they come, one forward pass over everything for each new token. And the same with transformers' GPT-2.
"""

import math
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig


class Plain(nn.Module):
    """A decoder-only transformer as textbooks have it: pre-norm, learned positions, exact GELU, a tied head."""

    def __init__(self, vocab_size: int, layers: int, heads: int, width: int, context: int) -> None:
        super().__init__()
        self.config = ModelConfig(layers=layers, heads=heads, width=width, context=context)
        self.token, self.position = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width, bias=False),
                    "qkv": nn.Linear(width, 3 * width, bias=False),
                    "out": nn.Linear(width, width, bias=False),
                    "norm2": nn.LayerNorm(width, bias=False),
                    "up": nn.Linear(width, 4 * width, bias=False),
                    "down": nn.Linear(4 * width, width, bias=False),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = "out.weight" in name or "down.weight" in name
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if writes else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> logits (B, T, V)."""
        B, T = ids.shape
        x = self.token(ids) + self.position.weight[:T]
        for layer in self.layers:
            parts: Any = layer
            q, k, v = parts["qkv"](parts["norm1"](x)).view(B, T, 3, self.config.heads, -1).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + parts["out"](heads.transpose(1, 2).flatten(2))
            x = x + parts["down"](F.gelu(parts["up"](parts["norm2"](x))))
        return F.linear(self.norm(x), self.token.weight)


def transformers_gpt2(vocab_size: int, layers: int, heads: int, width: int, context: int) -> nn.Module:
    """Return GPT-2 of the same shape from the transformers library, without dropout; its `forward` gives logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab_size,
            n_layer=layers,
            n_head=heads,
            n_embd=width,
            n_positions=context,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=None,
        )
    )


class Step(Protocol):
    """Takes one step on (B, T) inputs and targets and returns its loss."""

    def __call__(self, inputs: Tensor, targets: Tensor, rate: float = 1e-3) -> float:
        """Return the mean cross-entropy before the step."""


def plain_step(model: nn.Module) -> Step:
    """Return a function that trains `model` by AdamW, a step a call."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))

    def step(inputs: Tensor, targets: Tensor, rate: float = 1e-3) -> float:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        logits = model(inputs)
        logits = getattr(logits, "logits", logits)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def cosine(progress: float, highest: float, lowest: float, warmup: float) -> float:
    """Return the rate that nanoGPT gives: up in a straight line, then down half a cosine to `lowest`."""
    if progress < warmup:
        return highest * (progress + 1e-9) / warmup
    down = (progress - warmup) / (1 - warmup)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * min(down, 1.0))) / 2


def random_windows(ids: np.ndarray, batch: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return windows that begin anywhere, as nanoGPT draws them: two (batch, context)."""
    starts = torch.randint(len(ids) - context, (batch, 1), generator=generator)
    windows = torch.from_numpy(ids[(starts + torch.arange(context + 1)).numpy()].astype(np.int64))
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def plain_sample(model: nn.Module, ids: Tensor, tokens: int, context: int) -> Tensor:
    """Draw `tokens` more tokens, reading everything anew for each: (1, T) -> (1, T + tokens)."""
    for _ in range(tokens):
        logits = model(ids[:, -context:])[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(dim=-1), 1)], dim=1)
    return ids
