"""Standard streams that never stop the work: what cannot be shown is left out, and that is known afterwards."""

import io
import os
import sys
import unicodedata
from contextlib import suppress
from typing import Any, TextIO


class Tolerant:
    """A text stream whose reader may go away: the first fault is kept, and nothing is written after it."""

    fault: Exception | None = None

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write `text`, unless writing has failed before."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, unless writing has failed before."""
        self._try(self.stream.flush)

    def _try(self, action: Any) -> None:
        if self.fault is None:
            try:
                action()
            except (OSError, ValueError) as error:  # a full disk, a closed terminal or pipe; a closed file
                self.fault = error
                # What lies in the stream's buffer would fail once more when Python ends.
                lead_nowhere(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def lead_nowhere(stream: TextIO) -> None:
    """Let what is still written to the file behind `stream` be lost, so that Python ends without a fault."""
    with suppress(OSError, ValueError), open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def complete_streams() -> None:
    """Put something in place of streams that do not exist, and let a console show what it can."""
    sys.stdin = sys.stdin or io.StringIO()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def visible(text: str) -> str:
    """Return `text` with what could drive a terminal made visible: control characters and changes of direction."""
    return "".join(character if shows(character) else f"‹{ord(character):02X}›" for character in text)


TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of what follows


def shows(character: str) -> bool:
    """Whether a character only shows itself; format characters that join letters or emoji do."""
    return character in "\n\t" or (unicodedata.category(character) != "Cc" and character not in TURNING)
