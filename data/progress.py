"""A progress bar for long work on a text."""

from collections.abc import Iterable

from tqdm import tqdm


def bar(documents: Iterable[str] | None, size: int | None, what: str) -> tqdm:
    """Return a progress bar on stderr, shown on a terminal when it takes longer than a second."""
    unit = {"unit": " documents"} if size is None else {"unit": "B", "unit_scale": True}
    return tqdm(documents, what, size, leave=False, disable=None, delay=1, dynamic_ncols=True, **unit)
