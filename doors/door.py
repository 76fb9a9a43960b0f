"""What every door does alike: its flags, its exit code, faults in one line, the environment set for torch."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

from data.files import FULL
from machine.streams import Tolerant, complete_streams, lead_nowhere

DONE, FAULT, INTERRUPTED = 0, 1, 130
# How torch, the C++ library and Windows say it.
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "cannot allocate memory")

# Threads of OpenMP spin while they wait for each other. Where one of them has lost its core to another program, such
# as a browser, the rest spin until it is back: training took six times as long (bench/busy.py). So they spin briefly
# and then sleep. GNU's runtime counts turns, LLVM's and Intel's milliseconds (these two have not been tried).
SPIN_BRIEFLY = {"GOMP_SPINCOUNT": "2500", "KMP_BLOCKTIME": "1"}


class Parser(argparse.ArgumentParser):
    """Flags that may not be abbreviated, since scripts outlive new flags; --help shows every default."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, allow_abbrev=False)
        self.add_argument("--debug", action="store_true", help="show where a fault arose")

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add a flag; its default is shown where there is one."""
        default = settings.get("default")
        if default is not None and default is not argparse.SUPPRESS and default != []:
            settings["help"] += f" (default: {default})"
        return super().add_argument(*names, **settings)


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Add what sampling, looking and evaluating share."""
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run to use; left out, the newest under runs/")
    parser.add_argument(
        "--step",
        type=at_least(0),
        metavar="N",
        help="use the snapshot nearest to this step; left out, the best weights",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="where to compute")
    parser.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="dtype of the weights; auto is fp32",
    )


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number within its bounds, as argparse wants it."""

    def read(text: str) -> int:
        if not least <= int(text) < 2**62:
            raise argparse.ArgumentTypeError(f"must be {least} or more and below 2^62, not {text}")
        return int(text)

    read.__name__ = "whole number"  # argparse names it for what is no number
    return read


def notice(line: str) -> None:
    """Say something on stderr, where it does not mix with a result; where that cannot be, it is left out."""
    print(line, file=sys.stderr, flush=True)


def run_door(
    main: Callable[[list[str] | None], int], arguments: list[str] | None = None, memory: str = "close other programs"
) -> int:
    """Run `main` and return its exit code; anything that a person can mend becomes one line and exit code 1.

    memory: what to do in this door where memory is not enough.
    """
    for name, value in SPIN_BRIEFLY.items():
        os.environ.setdefault(name, value)  # read when torch is imported, which a door does after its command line
    complete_streams()
    stderr = sys.stderr
    sys.stderr = cast(TextIO, Tolerant(stderr))
    try:
        return guarded(main, arguments, memory)
    finally:
        sys.stderr = stderr


def guarded(main: Callable[[list[str] | None], int], arguments: list[str] | None, memory: str) -> int:
    """Run `main` and return its exit code, every fault in one line."""
    fault: Exception
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    try:
        return main(arguments)
    except KeyboardInterrupt:
        notice("stopped")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, head for example
        lead_nowhere(sys.stdout)
        return FAULT
    except Exception as error:
        fault = error
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY):
            message = f"out of memory: {memory}"
        elif isinstance(error, (ValueError, OSError, ArithmeticError)):
            message = describe(error)
        else:
            message = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]} (--debug shows where)"
    if debug:
        traceback.print_exception(fault)
    notice(f"error: {message}")
    return FAULT


def describe(error: Exception) -> str:
    """Return the message of `error` in one line."""
    if isinstance(error, OSError) and error.errno in FULL:
        where = f" that holds {error.filename}" if error.filename else ""
        return f"the disk{where} is full: free some space and go on; what was saved before is as it was"
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    return " ".join(str(error).split())
