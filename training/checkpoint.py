"""A run's files: each replaced whole, none ever unpickled."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import safetensors.torch
import torch
from annotated_types import Ge, Le
from filelock import AcquireReturnProxy, FileLock, Timeout
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer

from data import tokenizer
from data.files import BLANK, replace_file, seal, verify
from data.tokenizer import Tokenizer
from model.config import ModelConfig
from model.gpt import GPT
from training.config import AtLeastZero, Config, explain, read_config

FORMAT = "malssi-run/2"
RUNS = Path("runs")


@dataclass(frozen=True)
class Progress:
    """What is known of a run beside its numbers: saved as JSON in the metadata of its files."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    step: AtLeastZero
    text: str  # hash of the documents
    tokenizer: str  # hash of tokenizer.model
    epoch: AtLeastZero = 0
    used: AtLeastZero = 0  # windows of this epoch already taken
    seconds: float = 0.0
    threads: Annotated[int, Ge(1), Le(1024)] = 1
    precision: Literal["fp32", "bf16", "fp16"] | None = None  # of the matrix products
    finished: bool = False
    best: float = math.inf  # validation bits per character of the best weights so far, those of model.safetensors


def save(path: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Save `tensors` and `progress` as safetensors with a checksum of all of it, replacing the file whole."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One entry, since several come in no fixed order.
    metadata = json.dumps({"format": FORMAT, **asdict(progress), "sha256": BLANK.decode("ascii")})
    content = memoryview(safetensors.torch.save(tensors, {"malssi": metadata}))
    end = 8 + int.from_bytes(content[:8], "little")
    header = seal(bytes(content[8:end]), hashlib.sha256(content[end:]).digest())
    replace_file(path, content[:8], header, content[end:])


def load(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], Progress]:
    """Load a file that `save` wrote, to the CPU; raises ValueError or OSError in one line that names it.

    tensors=False reads the progress alone and leaves the tensors on the disk.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, so the run cannot be used")
    verify(path)
    try:
        with safe_open(path, "pt", device="cpu") as file:
            about = json.loads((file.metadata() or {}).get("malssi", "{}"))
            found = {name: file.get_tensor(name) for name in (file.keys() if tensors else [])}
        form = about.pop("format", None)
        about.pop("sha256")
        progress = TypeAdapter(Progress).validate_python(about) if form == FORMAT else None
    except ValidationError as error:
        raise ValueError(f"{path} is damaged: {'; '.join(explain(fault) for fault in error.errors())}") from None
    except (SafetensorError, ValueError, KeyError, RecursionError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if progress is None:
        raise ValueError(f"{path} is of format {form!r}, not {FORMAT!r}")
    return found, progress


def state_tensors(model: GPT, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> dict[str, Tensor]:
    """Return everything that training needs to go on as if it had never stopped, by name."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()})
    tensors["generator.cpu"] = torch.get_rng_state()
    device = model.token.weight.device
    if device.type == "cuda":
        tensors["generator.cuda"] = torch.cuda.get_rng_state(device)
    if scaler.is_enabled():
        tensors["scaler.scale"] = torch.tensor(scaler.get_scale())
    return tensors


def restore(
    tensors: dict[str, Tensor], model: GPT, optimizer: Optimizer, scaler: torch.amp.GradScaler, path: Path
) -> None:
    """Put what `state_tensors` returned back in its place. Raises ValueError where the two do not fit."""
    load_weights(
        model, {name.removeprefix("model."): tensors[name] for name in tensors if name.startswith("model.")}, path
    )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"optimizer\.(\d{1,9})\.(\w+)", name):
            index = int(match[1])
            if index >= len(parameters) or tensor.dim() and tensor.shape != parameters[index].shape:
                raise ValueError(f"{path} does not fit the model that config.yaml beside it describes: {name}")
            state.setdefault(index, {})[match[2]] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    try:
        torch.set_rng_state(tensors["generator.cpu"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} is damaged: no state of the random generator ({error})") from None
    device = model.token.weight.device
    if device.type == "cuda" and "generator.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["generator.cuda"], device)
    if scaler.is_enabled() and "scaler.scale" in tensors:
        scaler.load_state_dict({**scaler.state_dict(), "scale": tensors["scaler.scale"].item()})


def load_weights(model: GPT, weights: dict[str, Tensor], path: Path) -> None:
    """Copy `weights` into `model`; raises ValueError that names the file where they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{path} does not fit the model that config.yaml beside it describes: {' '.join(str(error).split())[:200]}"
        ) from None


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


def open_run(folder: Path | None, device: torch.device) -> Run:
    """Open the run in `folder`, or the newest one under `runs/`. Raises ValueError or OSError in one line."""
    folder = folder or newest_run()
    config, by = open_parts(folder)
    weights, progress = load(folder / "model.safetensors")
    check_tokenizer(folder, by, progress, "model.safetensors")
    model = build(config.model, by.vocab_size)
    load_weights(model, weights, folder / "model.safetensors")
    return Run(folder, config, by, model.to(device).eval(), progress)


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
    config, by = read_config(folder / "config.yaml", check=True), tokenizer.load(folder / "tokenizer.model")
    for name in ("model.safetensors", "state.safetensors"):
        if (folder / name).is_file():
            check_shape(folder / name, config.model, by.vocab_size)
    return config, by


def check_shape(path: Path, config: ModelConfig, vocab_size: int) -> None:
    """Raise ValueError where the weights in `path` are not of this shape, before memory is taken for a model of it."""
    try:
        with safe_open(path, "pt") as file:
            names = sorted(file.keys())
            shapes = {name.removeprefix("model."): tuple(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    layers = sum(name.endswith(".attention.qkv.weight") for name in shapes)
    if shapes.get("token.weight") != (vocab_size, config.width) or layers != config.layers:
        raise ValueError(f"{path} does not fit the model that config.yaml and tokenizer.model beside it describe")


def check_tokenizer(folder: Path, by: Tokenizer, progress: Progress, name: str) -> None:
    """Raise ValueError where the weights were trained with another tokenizer than the one beside them."""
    if by.hash != progress.tokenizer:
        raise ValueError(f"{folder / name} was not trained with {folder / 'tokenizer.model'}: their tokenizers differ")


def begun(folder: Path) -> bool:
    """Whether a run has anything to go on from; one killed before its first save has not, and starts anew.

    Raises ValueError or OSError in one line where its weights have come further, so that the state is lost.
    """
    if (folder / "state.safetensors").exists():
        return True
    if (folder / "model.safetensors").exists() and load(folder / "model.safetensors", tensors=False)[1].step > 0:
        raise FileNotFoundError(f"{folder / 'state.safetensors'} is missing, so the run cannot be resumed")
    return False


def newest_run() -> Path:
    """Return the run under `runs/` whose weights were written last."""
    runs = list(RUNS.glob("*/model.safetensors"))
    if not runs:
        raise FileNotFoundError(f"no run under {RUNS.resolve()}: train one by python train.py, or name one by --run")
    return max(runs, key=lambda path: path.stat().st_mtime_ns).parent
