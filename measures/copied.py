"""How much of what a model writes stands word for word in the text it was trained on."""

from collections.abc import Iterable


def copied_share(samples: list[str], documents: Iterable[str], length: int = 30) -> float:
    """Return the share of the `length`-character stretches of `samples` that stand word for word in `documents`."""
    wanted = [stretch for text in samples for stretch in stretches(text, length)]
    if not wanted:
        return 0.0
    missing = set(wanted)
    for document in documents:
        missing.difference_update(stretches(document, length))
    return sum(stretch not in missing for stretch in wanted) / len(wanted)


def stretches(text: str, length: int) -> list[str]:
    """Return every run of `length` characters in `text`, one beginning at each character."""
    return [text[start : start + length] for start in range(len(text) - length + 1)]
