"""The folder of a run: found, locked, checked for what a stranger may have put there, and opened."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout

from data import tokenizer as tokenizers
from data.tokenizer import Tokenizer
from model.config import ModelConfig
from model.gpt import GPT
from run.checkpoint import Progress, check_shape, check_tokenizer, load, load_weights
from run.config import Config, read_config

RUNS = Path("runs")
STATE, WEIGHTS = "state.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Run:
    """A run as the reading doors use it: its best weights in evaluation mode, and its tokenizer."""

    folder: Path
    config: Config
    tokenizer: Tokenizer
    model: GPT
    progress: Progress


def locked(folder: Path) -> AcquireReturnProxy:
    """Hold the run in `folder` alone, within a `with`; the system lets go when the process ends, however it ends.

    Raises ValueError where another process holds it.
    """
    try:
        return FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder} is being trained by another process: wait for it, or name another --run") from None


def open_run(
    folder: Path | None, device: torch.device, step: int | None = None, say: Callable[[str], None] = lambda line: None
) -> Run:
    """Open the run in `folder`, or the newest one under `runs/`, with its best weights.

    step: take the snapshot nearest to this step instead, and `say` which. Raises ValueError or OSError in one line.
    """
    folder = folder or newest_run()
    config, tokenizer = open_parts(folder)
    path = folder / WEIGHTS
    if step is not None:
        path = nearest_snapshot(folder, step)
        check_shape(path, config.model, tokenizer.vocab_size)
    weights, progress = load(path)
    check_tokenizer(folder, tokenizer, progress, path.name)
    model = build(config.model, tokenizer.vocab_size)
    load_weights(model, weights, path)
    if step is not None:
        say(f"weights of step {progress.step}: {path}")
    return Run(folder, config, tokenizer, model.to(device).eval(), progress)


def nearest_snapshot(folder: Path, step: int) -> Path:
    """Return the snapshot of the run whose step is nearest to `step`, of two the earlier. Raises FileNotFoundError."""
    found = snapshots(folder)
    if not found:
        raise FileNotFoundError(
            f"{folder} has no snapshots, so --step cannot be used: leave it out for the best weights"
        )
    return found[min(found, key=lambda other: (abs(other - step), other))]


def snapshots(folder: Path) -> dict[int, Path]:
    """Return the snapshots of a run by step."""
    paths = (folder / "snapshots").glob("step-*.safetensors")
    matches = ((re.fullmatch(r"step-(\d{1,15})", path.stem), path) for path in paths)
    return {int(match[1]): path for match, path in matches if match}


def build(config: ModelConfig, vocab_size: int) -> GPT:
    """Return a model whose weights are about to be loaded, without drawing from the global generator."""
    with torch.random.fork_rng(devices=[]):
        return GPT(config, vocab_size)


def open_parts(folder: Path) -> tuple[Config, Tokenizer]:
    """Return the settings and the tokenizer of a run. Raises ValueError or OSError in one line.

    Nothing of a run is trusted: a link could lead out of it, a large number could ask for memory that its weights do
    not need.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no run in {folder}: there is no such folder")
    for name in ("config.yaml", "tokenizer.model"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"no run in {folder}: {name} is missing")
    for path in (*folder.iterdir(), *(folder / "snapshots").glob("*")):
        if path.is_symlink():
            raise ValueError(f"{path} is a link; a run holds its own files: put the file itself in its place")
        if not path.is_file() and not path.is_dir():
            raise ValueError(f"{path} is no plain file: a run holds files and folders alone")
    config, tokenizer = read_config(folder / "config.yaml", own=True), tokenizers.load(folder / "tokenizer.model")
    for name in (WEIGHTS, STATE):
        if (folder / name).is_file():
            check_shape(folder / name, config.model, tokenizer.vocab_size)
    return config, tokenizer


def begun(folder: Path) -> bool:
    """Whether a run has anything to go on from; one killed before its first save has not, and starts anew.

    Raises ValueError or OSError in one line where its weights have come further, so that the state is lost.
    """
    if (folder / STATE).exists():
        return True
    if (folder / WEIGHTS).exists() and load(folder / WEIGHTS, tensors=False)[1].step > 0:
        raise FileNotFoundError(f"{folder / STATE} is missing, so the run cannot be resumed")
    return False


def newest_run() -> Path:
    """Return the run under `runs/` whose weights were written last."""
    runs = list(RUNS.glob("*/model.safetensors"))
    if not runs:
        raise FileNotFoundError(f"no run under {RUNS.resolve()}: train one by python train.py, or name one by --run")
    return max(runs, key=lambda path: path.stat().st_mtime_ns).parent


def occupied(folder: Path) -> bool:
    """Whether the folder holds a run: one that never came to its first weights leaves it free."""
    return any((folder / name).exists() for name in (WEIGHTS, STATE))


def check_free(folder: Path) -> None:
    """Raise ValueError where the folder holds a run."""
    if occupied(folder):
        raise ValueError(f"{folder} holds a run already: go on with it by --resume, or name another --run")


def claimed(folder: Path, fixed: bool) -> tuple[Path, AcquireReturnProxy]:
    """Make and lock the folder of a new run; return it with its lock.

    fixed: the folder was named, so that one that is taken is refused with ValueError; otherwise the next of folder-2,
    folder-3, … is taken. Looking and claiming are one act under the lock.
    """
    for name in (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 10_000))):
        try:
            name.mkdir(parents=True, exist_ok=True)
            lock = locked(name)
        except (FileExistsError, ValueError):  # no folder, or another process's
            if fixed:
                raise
            continue
        if not occupied(name):
            return name, lock
        lock.lock.release()
        if fixed:
            break
    check_free(folder)
    raise ValueError(f"no name is free beside {folder}: name one by --run")
