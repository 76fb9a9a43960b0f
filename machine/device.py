"""Where to compute, in which dtype, and whether to compile: each chosen by asking the machine, and printed."""

import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

COMPILE_SECONDS = 600  # a run shorter than this does not win back the minute that compiling takes

CPU = torch.device("cpu")
Say = Callable[[str], None]


def choose_device(name: str, say: Say = lambda line: None) -> torch.device:
    """Return the device of that name, for `auto` the best there is. Raises ValueError if it is not there.

    With `cpu`, nothing of CUDA is asked or touched.
    """
    if name == "cpu":
        return CPU
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
    return CPU


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


def product_rate(dtype: torch.dtype, device: torch.device = CPU) -> float:
    """Return the floating-point operations a second of a square matrix product on `device`, the best of five."""
    size = 512 if device.type == "cpu" else 4096
    a = torch.ones(size, size, dtype=dtype, device=device)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # reading one number waits for a card to finish
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def choose_precision(
    name: str, device: torch.device, say: Say = lambda line: None, before: str | None = None
) -> torch.dtype:
    """Return the dtype of the matrix products, for `auto` the fastest that is safe, and `say` which and why.

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


def choose_compile(
    wish: str, seconds: float, device: torch.device, say: Say = lambda line: None, before: bool | None = None
) -> bool:
    """Return whether to compile: as asked for, or for `auto` where a run of so many `seconds` wins the time back.

    before: what `auto` was in the run that goes on; it stays so, since compiled sums round differently.
    """
    if wish != "auto":
        return wish == "on"
    able = device.type == "cuda" or (device.type == "cpu" and compiler_found())
    if not able:
        on, why = False, f"not tried on {device.type}" if device.type == "mps" else "no C++ compiler"
    elif before is not None:
        on, why = before, "as this run did before"
    else:
        on = seconds > COMPILE_SECONDS
        why = "the run is long" if on else "too short a run to win its time back"
    say(f"compile: {'on' if on else 'off'} ({why})")
    return on


def as_tensors(inputs: np.ndarray, targets: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return both as int64 on `device`; a card fetches them while the processor goes on."""
    tensors = [torch.from_numpy(array.astype(np.int64)) for array in (inputs, targets)]
    if device.type == "cuda":
        tensors = [tensor.pin_memory() for tensor in tensors]
    one, other = (tensor.to(device, non_blocking=True) for tensor in tensors)
    return one, other
