"""Signals that ask a run to stop: the step is finished and saved before it ends."""

import signal
from types import FrameType
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C; docker stop or a batch system; a closed terminal (not on Windows)


class Stopping:
    """Within a `with`, notes the first signal that asks to stop; a second one ends the process as usual.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """

    signal = 0  # number of the signal that came, 0 until then

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        for name in SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.__exit__()
