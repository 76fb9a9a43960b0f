"""How much of what a model writes stands word for word in the text it was trained on."""

from collections.abc import Callable, Iterable

LENGTH = 30  # characters of a stretch


def copied_share(samples: list[str], documents: Iterable[str], length: int = LENGTH) -> float:
    """Return the share of the `length`-character stretches of `samples` that stand word for word in `documents`."""
    wanted = [stretch for text in samples for stretch in stretches(text, length)]
    missing = missing_from(documents, set(wanted), lambda text: stretches(text, length))
    return sum(stretch not in missing for stretch in wanted) / max(len(wanted), 1)


def missing_from(documents: Iterable[str], wanted: set[str], parts: Callable[[str], list[str]]) -> set[str]:
    """Return those of `wanted` that are among the `parts` of none of the documents, which are read once."""
    missing = set(wanted)
    for document in documents:
        missing.difference_update(parts(document))
    return missing


def stretches(text: str, length: int = LENGTH) -> list[str]:
    """Return every run of `length` characters in `text`, one beginning at each character."""
    return [text[start : start + length] for start in range(len(text) - length + 1)]
