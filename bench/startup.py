"""How long whole processes take: a door's help, torch alone, and the wait for the first token that a model writes.

python -m bench.startup [--run DIR]
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.measure import PROJECT, in_turn, parser, ratios, report, seconds, spread
from doors.door import notice

PROMPT = "나는"
BRIEFLY = ["--train.steps", "2"]


def main(arguments: list[str] | None = None) -> int:
    """Start every command in turn."""
    flags = parser(__doc__)
    flags.add_argument("--run", type=Path, metavar="DIR", help="the run that writes; left out, a brief one is trained")
    options = flags.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = options.run.resolve() if options.run else train_briefly(Path(folder) / "run")
        write = ["sample.py", "--run", str(run), "--prompt", PROMPT, "--seed", "1", "--tokens", "20"]
        sample = f"python sample.py --prompt {PROMPT} --tokens 20"
        tasks = {
            "python -c pass": partial(until_the_end, ["-c", "pass"]),
            "import torch": partial(until_first_token, ["-c", f"import torch; print('{PROMPT}.', flush=True)"]),
            **{
                f"python {door}.py --help": partial(until_the_end, [f"{door}.py", "--help"])
                for door in ("train", "sample", "attend", "evaluate")
            },
            f"{sample}, to its first token": partial(until_first_token, write),
            f"{sample}, to its end": partial(until_the_end, write),
        }
        in_turn(tasks, 1)  # so that every file has been read, and lies in memory
        found = in_turn(tasks, options.repeats)
    rows = [{"command": name, "seconds": spread(values)} for name, values in found.items()]
    share = ratios(found["import torch"], found[f"{sample}, to its first token"])
    report("Whole processes", rows, options, share_of_the_first_token_that_importing_torch_takes=share)
    return 0


def train_briefly(run: Path) -> Path:
    """Train a run of a few steps on the shipped corpus and return its folder."""
    notice("no --run is given: training one of a few steps")
    asked = [sys.executable, "train.py", *BRIEFLY, "--run", str(run)]
    subprocess.run(asked, cwd=PROJECT, stdout=subprocess.DEVNULL, check=True)
    return run


def until_the_end(arguments: list[str]) -> float:
    """Return the seconds that Python takes with `arguments`."""
    asked = [sys.executable, *arguments]
    return seconds(lambda: subprocess.run(asked, cwd=PROJECT, stdout=subprocess.DEVNULL, check=True))


def until_first_token(arguments: list[str]) -> float:
    """Return the seconds until something stands behind the prompt, which is written first and by itself."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    start, written, prompt = time.perf_counter(), b"", PROMPT.encode("utf-8")
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=PROJECT, stdout=subprocess.PIPE, bufsize=0, env=environment
    ) as process:
        assert process.stdout
        while len(written) <= len(prompt) and (new := os.read(process.stdout.fileno(), 4096)):
            written += new
        found = time.perf_counter() - start
        written += process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    if not written.removeprefix(prompt).strip():
        raise ValueError(f"no token to wait for: {' '.join(arguments)} writes nothing behind its prompt")
    return found


if __name__ == "__main__":
    sys.exit(main())
