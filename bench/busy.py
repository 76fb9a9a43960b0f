"""How long training and writing take while another program keeps a core busy, as a browser does.

python -m bench.busy [--before CHECKOUT]

Whole processes: so many steps of the default run, and a text of so many tokens that it writes. With --before, another
checkout of the project takes its turns too, and ratios are to its times on the free machine.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.measure import PROJECT, in_turn, parser, ratios, report, seconds, spread


def main(arguments: list[str] | None = None) -> int:
    """Let every checkout train and write in turn, on the free machine and on the busy one."""
    flags = parser(__doc__)
    flags.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout of the project")
    flags.add_argument("--steps", type=int, default=150, metavar="N", help="of training (150)")
    flags.add_argument("--tokens", type=int, default=400, metavar="N", help="to write (400)")
    flags.add_argument("--busy", type=int, default=1, metavar="N", help="processes that compute beside (1)")
    options = flags.parse_args(arguments)
    checkouts = {"malssi": PROJECT}
    if options.before:
        checkouts["before"] = options.before.resolve()
    with tempfile.TemporaryDirectory() as name:
        tasks: dict[str, Callable[[], float]] = {}
        for checkout, place in checkouts.items():
            commands = {
                "training": partial(train, place, Path(name) / checkout, options),
                "writing": partial(write, place, Path(name) / checkout, options),
            }
            for what, command in commands.items():
                command()  # so that the text is prepared, and there is a run to write
                for machine, others in (("free", 0), ("busy", options.busy)):
                    tasks[f"{what}, {checkout}, {machine}"] = partial(beside, others, command)
        found = in_turn(tasks, options.repeats)
    first = "before" if options.before else "malssi"
    rows = [
        {
            "what, code, machine": name,
            "seconds": spread(values),
            f"times {first} on the free machine": ratios(values, found[f"{name.split(',')[0]}, {first}, free"]),
        }
        for name, values in sorted(found.items())
    ]
    report(f"{options.steps} steps, {options.tokens} tokens, a core busy or not", rows, options)
    return 0


def train(place: Path, folder: Path, options: argparse.Namespace) -> None:
    """Train the default run of the checkout `place` in a new folder beside those of the turns before."""
    run = folder / str(len(list(folder.glob("*"))))
    door(place, "train.py", "--train.steps", str(options.steps), "--run", str(run))


def write(place: Path, folder: Path, options: argparse.Namespace) -> None:
    """Let the first run of the checkout write."""
    asked = ("--tokens", str(options.tokens), "--no-stop", "--seed", "1")
    door(place, "sample.py", "--run", str(folder / "0"), *asked)


def door(place: Path, *arguments: str) -> None:
    """Run a door of the checkout `place`."""
    subprocess.run([sys.executable, *arguments], cwd=place, capture_output=True, check=True)


def beside(others: int, command: Callable[[], None]) -> float:
    """Return the seconds that `command` takes beside so many processes that compute without end."""
    with busy(others):
        return seconds(command)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` cores busy within."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
