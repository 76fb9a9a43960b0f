"""What every door does alike: its common flags, its exit code, a fault told in one line."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from data.files import FULL

DONE, FAULT, INTERRUPTED = 0, 1, 130


class Parser(argparse.ArgumentParser):
    """Flags that may not be abbreviated, since scripts outlive new flags."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, allow_abbrev=False)
        self.add_argument("--debug", action="store_true", help="show where a fault arose")


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Add what sampling, looking and evaluating share."""
    parser.add_argument("--run", type=Path, metavar="DIR", help="the run to use; left out, the newest under runs/")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="where to compute")
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16", "fp16"), default="auto", help="type of the weights (auto: fp32)"
    )


def notice(line: str) -> None:
    """Say something on stderr, where it does not mix with a result."""
    print(line, file=sys.stderr, flush=True)


def run_door(main: Callable[[list[str] | None], int], arguments: list[str] | None = None) -> int:
    """Run `main` and return its exit code; anything that a person can mend becomes one line and exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # a console in another encoding shows what it can and never stops a run
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    fault: Exception
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    try:
        return main(arguments)
    except KeyboardInterrupt:
        notice("stopped")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, head for example
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAULT
    except (ValueError, OSError, ArithmeticError) as error:
        fault, message = error, describe(error)
    except Exception as error:
        fault = error
        if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
            message = "out of memory: lower --train.micro_batch_size, --model.context or --model.width"
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
