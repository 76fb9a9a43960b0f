"""The same model for reading alone, its weights laid out once the way the processor's matrix kernels want them.

A step of writing multiplies every weight by one vector. Left as training needs them, the weights are laid out anew for
each product, which takes two to three times as long as the product itself; and with so little work a step, what Python
does between the operations counts too, so that here they stand in one line (docs/speed.md).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import later
from model.block import ACTIVATIONS
from model.cache import Cache
from model.gpt import GPT
from model.native import NativeGPT
from model.position import rotate

Packed = Any  # a weight and its bias in a form that only its kernel knows


def for_writing(model: GPT, kind: torch.dtype = torch.float32) -> "GPT | PackedGPT | NativeGPT":
    """Return what writes fastest with the weights of `model` in the type `kind`; on a processor all else is in fp32."""
    if kind != torch.float16:
        with suppress(OSError, ValueError):
            return NativeGPT(model, kind == torch.bfloat16)
    return PackedGPT(model, kind) if packable(model, kind) else model.to(kind)


class PackedGPT:
    """Gives the logits that the model it is made of gives: its matrices in the type `kind`, all else in fp32."""

    def __init__(self, model: GPT, kind: torch.dtype = torch.float32) -> None:
        """Raises ValueError where this torch or device has no such kernels: see `packable`."""
        if not packable(model, kind):
            raise ValueError(f"this torch or device cannot pack weights in {kind}")
        self.model, self.config, self.vocab_size, self.device = model, model.config, model.vocab_size, model.device
        pack, self.multiply = kernels(kind)
        self.head, self.norm = pack(model.token.weight, None), settings(model.norm)
        blocks = [block for block, _ in model.layers(None)]
        self.rotary = blocks[0].attention.rotary
        self.layers = [
            (
                settings(block.attention_norm),
                *(pack(layer.weight, layer.bias) for layer in (block.attention.qkv, block.attention.output)),
                settings(block.feed_forward_norm),
                *(pack(layer.weight, layer.bias) for layer in (block.feed_forward.up, block.feed_forward.down)),
            )
            for block in blocks
        ]

    def empty_cache(self, batch: int = 1) -> Cache:
        """Return a cache for `batch` sequences, with room for the context."""
        return self.model.empty_cache(batch)

    def __call__(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits of the piece after each position, as `GPT.forward` does: (B, T) -> (B, T, V)."""
        (B, T), H, multiply = ids.shape, self.config.heads, self.multiply
        cache = self.empty_cache(B) if cache is None else cache
        start = cache.length
        x = self.model.embed(ids, start)
        activation = ACTIVATIONS[self.config.activation]
        for (norm, qkv, output, second_norm, up, down), room in zip(self.layers, cache, strict=True):
            mixed = multiply(torch.layer_norm(x, *norm), qkv).view(B, T, 3 * H, -1).transpose(1, 2)  # (B, 3 · H, T, D)
            if self.rotary is not None:
                turned = rotate(mixed[:, : 2 * H], self.rotary[:, start : start + T])
                mixed = torch.cat([turned, mixed[:, 2 * H :]], dim=1)
            q, new = mixed.split((H, 2 * H), dim=1)
            k, v = room.append(new)  # two (B, H, S, D)
            mask = None if T == 1 else ~later(q, k)
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(B, T, -1)
            x = x + multiply(heads, output)
            x = x + multiply(activation(multiply(torch.layer_norm(x, *second_norm), up)), down)
        return multiply(torch.layer_norm(x, *self.norm), self.head)


def settings(norm: nn.LayerNorm) -> tuple[Any, ...]:
    """Return what `torch.layer_norm` wants to know of `norm`, without what a call of a module costs."""
    return norm.normalized_shape, norm.weight, norm.bias, norm.eps


def packable(model: GPT, kind: torch.dtype = torch.float32) -> bool:
    """Whether this torch has kernels for weights in `kind`, and the model lies where they work."""
    if kind == torch.float16:
        there = "fbgemm" in torch.backends.quantized.supported_engines
    else:
        there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return model.device.type == "cpu" and there


def kernels(kind: torch.dtype) -> tuple[Callable[[Tensor, Tensor | None], Packed], Callable[[Tensor, Packed], Tensor]]:
    """Return how to pack a weight (out, in) with its bias, and how to multiply (..., in) by it: fp32 in, fp32 out.

    No public names lead to these kernels, which torch's own compiler and quantization call. In fp16 they are the
    fastest for one sequence; in bf16 for many, where the processor multiplies it natively.
    """
    if kind == torch.float16:
        pack = torch.ops.quantized.linear_prepack_fp16.default
        return lambda weight, bias: pack(weight.detach(), bias), torch.ops.quantized.linear_dynamic_fp16.default
    linear, reorder = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkldnn._reorder_linear_weight

    def packed(weight: Tensor, bias: Tensor | None) -> Packed:
        return reorder(weight.detach().to(kind)), None if bias is None else bias.detach().to(kind)

    def multiply(x: Tensor, by: Packed) -> Tensor:
        return linear(x.to(kind), *by, "none", [], "").float()

    return packed, multiply
