"""Attention as text: a table of who looks at whom, and the row of the last one as bars."""

from collections.abc import Sequence
from typing import IO

import numpy as np
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

MASKED = "░░░"
BAR = 24  # cells of a weight of one
LEGEND = f"rows look, columns are looked at (누가 → 누구를) · {MASKED} what the mask forbids"
SHADES = ("grey50", "white", "bright_white")  # of weights up to a tenth, up to a third, and above


def console(plain: bool, to: IO[str] | None = None) -> Console:
    """Return where to print; `plain` is without colours and frames."""
    return Console(file=to, no_color=plain or None, color_system=None if plain else "auto", highlight=False)


def matrix(
    names: Sequence[str], numbers: np.ndarray, columns: Sequence[str] | None = None, plain: bool = False
) -> Table:
    """Return (R, S) numbers as a table, rows named by `names`; what is -inf or masked as NaN is shown as forbidden."""
    table = Table(box=None if plain else box.SIMPLE, pad_edge=False)
    table.add_column("")
    for name in columns if columns is not None else names:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for name, row in zip(names, numbers, strict=True):
        table.add_row(Text(name), *(digits(value) for value in row))
    return table


def digits(value: float) -> Text:
    """Return a number with three decimals, or the sign of what the mask forbids."""
    if not np.isfinite(value):
        return Text(MASKED, style="dim")
    return Text(f"{value:.3f}", style=SHADES[int(abs(value) > 0.1) + int(abs(value) > 1 / 3)])


def bars(name: str, names: Sequence[str], weights: np.ndarray) -> Text:
    """Return one row as lines, the strongest first: what is looked at, its weight, and the weight as a bar."""
    width = max(map(cell_len, names))
    lines = Text()
    for at in np.argsort(-weights, kind="stable"):
        space = " " * (width - cell_len(names[at]))
        lines.append(f"{name} → {names[at]}{space}  {weights[at]:.3f} {'█' * round(BAR * float(weights[at]))}\n")
    return lines


def fits(names: Sequence[str], width: int) -> bool:
    """Whether a table between `names` is no wider than so many cells."""
    return max(map(cell_len, names)) + sum(max(cell_len(name), 5) + 2 for name in names) <= width
