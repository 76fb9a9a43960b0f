"""A figure of matplotlib that looks the same whatever back-end or style the environment asks for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """Give a figure of so many inches on the Agg canvas; settings of matplotlib are its own defaults within."""
    asked = os.environ.pop("MPLBACKEND", None)  # a notebook's, perhaps not installed here: importing would fail
    try:
        import matplotlib
    finally:
        if asked is not None:
            os.environ["MPLBACKEND"] = asked
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        made = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(made)
        yield made
