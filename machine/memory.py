"""Memory: how much is free, and a setting by which the C library keeps what a step frees."""

import ctypes
import re
import sys
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def hold_memory() -> None:
    """Let the process keep the memory that it frees, where the C library is glibc.

    A training step frees and takes the same hundreds of MB. Handed back to the system in between, each page is cleared
    and mapped again: at width 384 some 80,000 page faults a step, a tenth of its time (docs/speed.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_MAX, 0)  # a block mapped on its own goes back whenever it is freed


def free_memory(device: torch.device) -> float:
    """Return the bytes that are free on `device`; infinite where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        return float("inf")
    return 1024.0 * int(found[1]) if found else float("inf")
