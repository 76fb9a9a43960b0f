"""One HTML file that shows a trace: it opens from disk, asks for nothing, and holds every number it shows."""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from model.attention import split_qkv
from model.gpt import GPT
from view.trace import Trace

FORMAT = "malssi-trace/1"
PARTS = Path(__file__).with_name("page")
SCRIPTS = ("words.js", "engine.js", "views.js")
ROOM = 2 * 2**20  # bytes of queries, keys and values up to which they stay in fp32, and of weights likewise
Precision = Literal["auto", "fp32", "fp16"]


def page(traced: Trace, model: GPT, about: dict[str, Any], layers: Sequence[int], precision: Precision = "auto") -> str:
    """Return the page of one text: the application, and the numbers of these layers beside it.

    about: what is known of the run, shown as it is.
    """
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = safetensors.numpy.save(*arrays(traced, model, about, layers, precision))
    data = base64.b64encode(packed.compress(raw) + packed.flush()).decode("ascii")
    style = (PARTS / "page.css").read_text(encoding="utf-8")
    scripts = [(PARTS / "vendor" / "htm-preact.js").read_text(encoding="utf-8"), application()]
    allowed = f"script-src {' '.join(map(source_hash, scripts))}; style-src {source_hash(style)}"
    parts = {
        "policy": f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'",
        "style": style,
        "plain": html.escape(plain(traced)),
        "data": data,
        "vendor": scripts[0],
        "script": scripts[1],
    }
    # In one pass, so that nothing in a part is taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], (PARTS / "page.html").read_text(encoding="utf-8"))


def application() -> str:
    """Return the page's own script: its parts in order, in one function that waits for the trace to be unpacked."""
    parts = [(PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['"use strict";', "(async () => {", *parts, "})();\n"])


def source_hash(source: str) -> str:
    """Return how a content policy names a script or style by what it holds."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode('utf-8')).digest()).decode('ascii')}'"


def arrays(
    traced: Trace, model: GPT, about: dict[str, Any], layers: Sequence[int], precision: Precision
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the numbers that the page needs, and what they are, as a safetensors file holds them.

    Queries and keys are those before rotation. `columns`: for each head one column of its maps to q, k and v, and
    `mixing` one row of the map behind the heads, so that the page works out one entry of each product in sight.
    """
    chosen = list(layers)
    config, blocks = model.config, [model.layers(None)[layer][0] for layer in chosen]
    exact = 3 * traced.q[chosen].nbytes <= ROOM if precision == "auto" else precision == "fp32"
    T, D = traced.q.shape[-2:]
    lower = np.tril_indices(T)
    weights = traced.weights[chosen][:, :, lower[0], lower[1]]
    fine = weights.nbytes <= ROOM
    columns = [
        torch.stack([part.view(config.heads, D, config.width)[:, 0] for part in split_qkv(weight, dim=0)], dim=1)
        for weight in (block.attention.qkv.weight.detach() for block in blocks)
    ]
    norms = [
        [[norm.weight, np.zeros(config.width) if norm.bias is None else norm.bias] for norm in pair]
        for pair in ((block.attention_norm, block.feed_forward_norm) for block in blocks)
    ]
    biases = [
        np.zeros((config.heads, 3))
        if bias is None
        else np.stack([numbers(part).reshape(config.heads, D)[:, 0] for part in split_qkv(bias, dim=0)], axis=1)
        for bias in (block.attention.qkv.bias for block in blocks)
    ]
    mixing = [block.attention.output.weight[0] for block in blocks]
    mixing_bias = [
        0.0 if block.attention.output.bias is None else float(block.attention.output.bias.detach()[0])
        for block in blocks
    ]
    made = {
        "weights": weights if fine else (weights * 65535).round().astype(np.uint16),
        **{name: getattr(traced, name)[chosen].astype(np.float32 if exact else np.float16) for name in "qkv"},
        "before": traced.before[chosen].astype(np.float32 if exact else np.float16),
        "between": traced.between[chosen].astype(np.float32 if exact else np.float16),
        "columns": np.stack([numbers(column) for column in columns]),
        "column_biases": np.stack(biases).astype(np.float32),
        "mixing": np.stack([numbers(row) for row in mixing]),
        "mixing_biases": np.array(mixing_bias, dtype=np.float32),
        "norms": np.array([[[numbers(part) for part in norm] for norm in pair] for pair in norms], dtype=np.float32),
    }
    meta = {
        "format": FORMAT,
        "text": traced.text,
        "ids": traced.ids,
        "tokens": traced.tokens,
        "groups": [[group.text, group.start, group.end] for group in traced.groups],
        "layers": chosen,
        "shape": {
            "layers": config.layers, "heads": config.heads, "width": config.width, "head_width": D,
            "context": config.context, "vocabulary": model.vocab_size,
        },
        "position": config.position,
        "epsilon": model.norm.eps,
        "exact": exact,
        "fine": fine,
        "difference": traced.difference,
        "strongest": traced.strongest(),
        "about": about,
    }  # fmt: skip
    return {name: by_planes(array) for name, array in made.items()}, {"meta": json.dumps(meta)}


def by_planes(array: np.ndarray) -> np.ndarray:
    """Return the same shape with the first bytes of all numbers first, then the second ones: so it packs smaller."""
    planes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T
    return np.frombuffer(planes.tobytes(), array.dtype).reshape(array.shape)


def numbers(values: Tensor | np.ndarray) -> np.ndarray:
    """Return weights as an fp32 array."""
    return values.detach().float().cpu().numpy() if isinstance(values, Tensor) else values.astype(np.float32)


def plain(traced: Trace) -> str:
    """Return the last row of the strongest head as text, for where scripts are off."""
    layer, head = traced.strongest() or (0, 0)
    row = traced.attention()[layer, head, -1]
    lines = [f"{traced.groups[-1].text} → {group.text}  {row[at]:.3f}" for at, group in enumerate(traced.groups)]
    return "\n".join([traced.text, f"layer {layer}, head {head}", *lines])
