"""What the measurements share: contenders take turns, figures come with their spread and with the machine."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

Figure = TypeVar("Figure")
PROJECT = Path(__file__).resolve().parent.parent


def parser(description: str | None, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the flags of every measurement."""
    made = argparse.ArgumentParser(description=description, allow_abbrev=False)
    made.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"turns of each ({repeats})")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    return made


def add_shape(made: argparse.ArgumentParser, **defaults: int) -> None:
    """Give `made` a flag for each size, such as --width."""
    for name, value in defaults.items():
        made.add_argument(f"--{name}", type=int, default=value, metavar="N", help=f"({value})")


def seconds(task: Callable[[], Any]) -> float:
    """Return how long `task` takes."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def in_turn(tasks: Mapping[str, Callable[[], Figure]], repeats: int) -> dict[str, list[Figure]]:
    """Call each task once a turn, so that a machine that slows down slows all alike; return what each gave."""
    found: dict[str, list[Figure]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            found[name].append(task())
    return found


class Apart:
    """A task in a process of its own, so that what it sets there is lent to no other; called, gives what it gives."""

    def __init__(self, make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
        """make: makes the task from `arguments`, there; both can be pickled."""
        self.process = ProcessPoolExecutor(1, get_context("spawn"), _begin, (make, *arguments))

    def __call__(self) -> Any:
        """Do the task once."""
        return self.process.submit(_go_on).result()


def _begin(make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
    global _task
    _task = make(*arguments)


def _go_on() -> Any:
    return _task()


_task: Callable[[], Any]


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Return the median of `values` with the least and the most."""
    return {
        "median": significant(statistics.median(values), digits),
        "least": significant(min(values), digits),
        "most": significant(max(values), digits),
    }


def ratios(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return the spread of the ratios turn by turn."""
    return spread([a / b for a, b in zip(of, to, strict=True)])


def significant(value: float, digits: int) -> float:
    """Round to so many significant digits."""
    return float(f"{value:.{digits}g}")


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, commit, versions."""
    import torch

    found: dict[str, Any] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(),
    }
    if torch.cuda.is_available():
        found["card"] = torch.cuda.get_device_name()
    with suppress(PackageNotFoundError):
        found["transformers"] = version("transformers")
    return found


def processor() -> str:
    """Return the name that the processor gives itself, with what it can do in bf16."""
    from machine.about import processor_name
    from machine.device import native_bf16

    return f"{processor_name()}, {'native' if native_bf16() else 'no native'} bf16"


def commit() -> str:
    """Return the short hash of the commit that is measured, marked where code has changed since."""

    def git(*asked: str) -> str:
        return subprocess.run(["git", *asked], cwd=PROJECT, capture_output=True, encoding="utf-8", check=True).stdout

    try:
        changed = git("diff", "--name-only", "HEAD", "--", "*.py", "*.yaml").strip()
        return git("rev-parse", "--short", "HEAD").strip() + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def report(title: str, rows: Sequence[Mapping[str, Any]], options: argparse.Namespace, **more: Any) -> None:
    """Print `rows` as a Markdown table under the machine, and write all of it as JSON where that is asked for."""
    about = machine()
    print(f"\n=== {title}\n" + " · ".join(f"{name} {value}" for name, value in about.items()))
    for name, value in more.items():
        print(f"{name.replace('_', ' ')}: {shown(value)}")
    columns = list(rows[0])
    cells = [[shown(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (columns, ["-" * width for width in widths], *cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
    if options.json:
        content = {"title": title, "machine": about, "settings": vars(options), **more, "rows": list(rows)}
        options.json.write_text(json.dumps(content, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")


def shown(value: Any) -> str:
    """Return a figure for a table: a spread as its median with least and most behind."""
    if isinstance(value, Mapping):
        return f"{number(value['median'])} ({number(value['least'])}–{number(value['most'])})"
    return number(value) if isinstance(value, (int, float)) else str(value)


def number(value: float) -> str:
    """Return a number with as many digits as a reader wants."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
