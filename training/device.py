"""Where to compute and in what numbers: asked of the machine, said in one line."""

import ctypes
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
COMPILE_SECONDS = 600  # a run shorter than this does not win back the minute that compiling takes

Say = Callable[[str], None]
Loss = Callable[[Tensor, Tensor], Tensor]  # inputs and targets to their summed cross-entropy


def choose_device(name: str, say: Say = lambda line: None) -> torch.device:
    """Return the device of that name, for `auto` the best there is. Raises ValueError if it is not there.

    With `cpu`, nothing of CUDA is asked or touched.
    """
    if name == "cpu":
        return torch.device("cpu")
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if name in ("auto", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    hint = ""
    if nvidia_card() and not torch.backends.cuda.is_built():
        hint = (
            "this torch is built without CUDA though the machine has an NVIDIA card: "
            "https://pytorch.org/get-started/locally has the other build"
        )
    if name != "auto":
        raise ValueError(f"--device {name} is not available{': ' + hint if hint else ', use --device auto or cpu'}")
    if hint:
        say(f"device: cpu, since {hint}")
    return torch.device("cpu")


def hold_memory() -> None:
    """Let the process keep the memory that it frees, where the C library is glibc.

    A training step frees and takes the same hundreds of MB. Handed back to the system in between, each page is cleared
    and mapped anew: at width 384 some 80,000 page faults a step, a tenth of its time (docs/speed.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_MAX, 0)  # a block mapped on its own goes back whenever it is freed


def nvidia_card() -> bool:
    """Whether the machine has an NVIDIA card with its driver."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def native_bf16() -> bool:
    """Whether this processor says that it multiplies bf16 itself (AVX512-BF16 or AMX)."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        return bool(found.get("avx512_bf16") or found.get("amx_bf16"))
    # Before torch 2.11 only these private names ask the processor.
    return any(getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))


def product_rate(dtype: torch.dtype, size: int = 512) -> float:
    """Return the floating-point operations a second of a (size, size) matrix product on the CPU, the best of five."""
    a = torch.ones(size, size, dtype=dtype)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def choose_precision(
    name: str, device: torch.device, say: Say = lambda line: None, before: str | None = None
) -> torch.dtype:
    """Return the type of the matrix products, for `auto` the fastest that is safe, and `say` which and why.

    before: what `auto` was in the run that goes on; it stays so where the device still can.
    Raises ValueError for fp16 where nothing scales the loss.
    """
    if name == "fp16" and device.type != "cuda":
        raise ValueError("--precision fp16 needs CUDA: use fp32 or bf16")
    if name == "auto":
        name, why = "fp32", f"on {device.type}"
        able = device.type == "cuda" or (device.type == "cpu" and before != "fp16" and native_bf16())
        if before in PRECISIONS and (before == "fp32" or able):
            name, why = before, "as this run did before"
        elif device.type == "cuda":
            name = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
            why = "the card multiplies it natively"
        elif device.type == "cpu" and not native_bf16():
            why = "the processor has no native bf16 products"
        elif device.type == "cpu":
            ratio = product_rate(torch.bfloat16) / product_rate(torch.float32)
            name, why = (
                ("bf16" if ratio > 1.2 else "fp32"),
                f"a bf16 product runs at {ratio:.1f} times the rate of fp32",
            )
        say(f"precision: {name} ({why})")
    elif name == "bf16" and device.type == "cpu" and not native_bf16():
        say("precision: bf16 as asked, though this processor has no native bf16 products and will be slow")
    return PRECISIONS[name]


def autocast(device: torch.device, dtype: torch.dtype) -> Callable[[], AbstractContextManager]:
    """Return what to compute the loss within; weights stay fp32 throughout."""
    return nullcontext if dtype == torch.float32 else partial(torch.autocast, device.type, dtype)


def compiler_found() -> bool:
    """Whether there is a C++ compiler, without which torch cannot compile for the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "c++", "clang++", "cl"))


def compiled(loss: Loss, wish: str, seconds: float, device: torch.device, say: Say = lambda line: None) -> Loss:
    """Return `loss`, compiled if `wish` is on, or auto and a run of so many `seconds` wins the time back.

    The model's weights keep their names either way. Where compiling fails, that is said once and the run goes on
    without.
    """
    on = wish == "on"
    if wish == "auto":
        on = device.type != "mps" and compiler_found() and seconds > COMPILE_SECONDS
        if on:
            why = "there is a compiler and the run is long"
        else:
            why = "too short a run to win its time back" if compiler_found() else "no C++ compiler"
        say(f"compile: {'on' if on else 'off'} ({why})")
    if not on:
        return loss
    fast = [torch.compile(loss)]

    def carefully(inputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return fast[0](inputs, targets)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # torch raises many kinds where a compiler is missing or fails
            if fast[0] is loss:
                raise
            say(f"compiling failed ({type(error).__name__}): going on without it")
            fast[0] = loss
            return loss(inputs, targets)

    return carefully
