"""One step of writing in C, compiled on the machine it runs on where that has a compiler: see step.c.

The library is made once and kept in the user's cache folder, under a name that holds everything it depends on.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.cache import Cache, empty_cache
from model.gpt import GPT

SOURCE = Path(__file__).with_name("step.c")
# What -ffast-math brings, but for what changes how the whole process computes, infinities and NaN.
FLAGS = (
    "-O3 -march=native -fPIC -shared -fopenmp -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math"
).split()
LANES = 64  # as in step.c
Long, Pointer = ctypes.c_long, ctypes.c_void_p


class Matrix(ctypes.Structure):
    """Of step.c."""

    _fields_ = [("weight", Pointer), ("bias", Pointer), ("in_", Long), ("out", Long)]


class Norm(ctypes.Structure):
    """Of step.c."""

    _fields_ = [("weight", Pointer), ("bias", Pointer)]


class Layer(ctypes.Structure):
    """Of step.c."""

    _fields_ = [
        ("attention_norm", Norm), ("qkv", Matrix), ("output", Matrix), ("feed_forward_norm", Norm), ("up", Matrix),
        ("down", Matrix), ("cache", Pointer),
    ]  # fmt: skip


class Model(ctypes.Structure):
    """Of step.c."""

    _fields_ = [
        *((name, Long) for name in ("B", "width", "heads", "context", "layers", "half", "narrow", "tanh", "stride")),
        ("eps", ctypes.c_float), ("rotary", Pointer), ("norm", Norm), ("head", Matrix),
        *((name, Pointer) for name in ("normed", "mixed", "gathered", "hidden")),
    ]  # fmt: skip


class NativeGPT:
    """Gives the logits that the model it is made of gives; one new piece a text goes through step.c."""

    def __init__(self, model: GPT, half: bool) -> None:
        """half: keep that step's weights, keys and values in bf16, its arithmetic in fp32.

        Raises OSError where nothing can be compiled, ValueError for a model that is not on the processor in fp32.
        """
        if model.device.type != "cpu" or model.token.weight.dtype != torch.float32:
            raise ValueError("step.c reads fp32 on the processor alone")
        self.step = library()
        self.original, self.config, self.device = model, model.config, model.device
        self.kept: list[Tensor] = []  # what the pointers lead to
        config, rotary = model.config, model.layers(None)[0][0].attention.rotary
        self.vocab_size, self.half, self.stride = model.vocab_size, half, filled(config.width)
        self.model = Model(
            0, config.width, config.heads, config.context, config.layers, half, half, config.activation == "gelu_tanh",
            self.stride, model.norm.eps, self.pointer(rotary), self.norm(model.norm), self.matrix(model.token.weight),
        )  # fmt: skip
        self.layers = (Layer * config.layers)(
            *(
                Layer(
                    self.norm(block.attention_norm),
                    self.linear(block.attention.qkv),
                    self.linear(block.attention.output),
                    self.norm(block.feed_forward_norm),
                    self.linear(block.feed_forward.up),
                    self.linear(block.feed_forward.down),
                )  # fmt: skip
                for block, _ in model.layers(None)
            )
        )
        self.room: dict[str, Tensor] = {}

    def empty_cache(self, batch: int = 1) -> Cache:
        """Return a cache for `batch` sequences, with room for the context."""
        like = torch.empty(0, dtype=torch.bfloat16 if self.half else torch.float32)
        config = self.config
        return empty_cache(config.layers, (batch, config.heads, config.context, config.head_width), like)

    def __call__(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits of the piece after each position, as `GPT.forward` does: (B, T) -> (B, T, V)."""
        if cache is None or ids.size(1) > 1:
            return self.original(ids, cache)
        B, at = len(ids), cache.length
        x, logits = torch.zeros(B, self.stride), torch.empty(B, 1, self.model.head.out)
        x[:, : self.config.width] = self.original.embed(ids, at)[:, 0]
        if self.model.B != B:
            self.make_room(B)
        self.model.narrow = cache[0].room.dtype == torch.bfloat16
        for layer, entry in zip(self.layers, cache, strict=True):
            layer.cache, entry.length = entry.room.data_ptr(), at + 1
        self.step(self.model, self.layers, at, x.data_ptr(), logits.data_ptr())
        return logits[:, :, : self.vocab_size]

    def make_room(self, B: int) -> None:
        """Take what a step of B texts needs on its way."""
        layer = self.layers[0]
        sizes = {"normed": self.stride, "gathered": self.stride, "mixed": layer.qkv.out, "hidden": layer.up.out}
        self.room = {name: torch.zeros(B, size) for name, size in sizes.items()}
        for name, tensor in self.room.items():
            setattr(self.model, name, tensor.data_ptr())
        self.model.B = B

    def pointer(self, tensor: Tensor | None) -> int | None:
        """Keep `tensor` and return where its numbers lie."""
        if tensor is None:
            return None
        self.kept.append(tensor.detach().contiguous())
        return self.kept[-1].data_ptr()

    def norm(self, norm: nn.LayerNorm) -> Norm:
        """Return the norm as step.c takes it."""
        return Norm(self.pointer(norm.weight), self.pointer(norm.bias))

    def linear(self, linear: nn.Linear) -> Matrix:
        """Return weight and bias as step.c takes them."""
        return self.matrix(linear.weight, linear.bias)

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Matrix:
        """Return a weight (out, in) and its bias (out,) as step.c takes them."""
        (out, in_), more = weight.shape, filled(len(weight)) - len(weight)
        blocks = nn.functional.pad(weight.detach(), (0, 0, 0, more)).view(-1, LANES, in_).mT
        bias = None if bias is None else nn.functional.pad(bias.detach(), (0, more))
        laid = blocks
        if self.half:  # outputs n and n + 16 side by side
            laid = blocks.to(torch.bfloat16).unflatten(-1, (-1, 2, 16)).mT
        return Matrix(self.pointer(laid), self.pointer(bias), in_, out + more)


def filled(size: int) -> int:
    """Return `size`, or the next multiple of LANES."""
    return -(-size // LANES) * LANES


@cache
def library() -> Any:
    """Return `step` of step.c, compiled. Raises OSError where this machine cannot compile it."""
    compiler = next(filter(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang")), None)
    if sys.platform != "linux" or compiler is None:
        raise OSError("no C compiler")
    cpuinfo = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0] if Path("/proc/cpuinfo").exists() else b""
    flags = b"".join(line for line in cpuinfo.splitlines() if line.lower().startswith((b"flags", b"features")))
    depends = [SOURCE.read_bytes(), " ".join([compiler, *FLAGS, platform.machine()]).encode(), flags]
    name = f"step-{hashlib.sha256(b'|'.join(depends)).hexdigest()[:16]}.so"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "malssi"
    if not (folder / name).exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            draft = Path(scratch) / name
            done = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(draft), "-lm"], capture_output=True)
            if done.returncode:
                raise OSError(f"{compiler} cannot compile {SOURCE.name}")
            os.replace(draft, folder / name)
    # torch has loaded its OpenMP by now, under the name that this library asks for: so both share its threads.
    step = ctypes.CDLL(str(folder / name)).step
    step.argtypes, step.restype = (ctypes.POINTER(Model), ctypes.POINTER(Layer), Long, Pointer, Pointer), None
    return step
