"""A run's safetensors files: each replaced whole, checked by its checksum, never unpickled."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import safetensors.torch
from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from data.files import BLANK, read_header, replace_file, seal, verify
from data.tokenizer import Tokenizer
from model.config import ModelConfig
from model.gpt import GPT
from run.config import AtLeastZero, explain

FORMAT = "malssi-run/2"


@dataclass(frozen=True)
class Progress:
    """What is known of a run beside its numbers: saved as JSON in the metadata of its files."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    step: AtLeastZero
    text: str  # hash of the documents
    tokenizer: str  # hash of tokenizer.model
    epoch: AtLeastZero = 0
    used: AtLeastZero = 0  # pieces of this epoch already taken, as data/batches.py cuts them
    seconds: float = 0.0
    threads: Annotated[int, Ge(1), Le(1024)] = 1
    precision: Literal["fp32", "bf16", "fp16"] | None = None  # of the matrix products
    compiled: bool | None = None
    skipped: AtLeastZero = 0  # steps left out since their fp16 gradients overflowed
    finished: bool = False
    best: float = math.inf  # validation bits per character of the best weights so far, those of model.safetensors
    made_with: dict[str, str] = field(default_factory=dict)  # versions and processor, as machine/about.py names them


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
    header = read_header(path)
    try:
        about = json.loads(header.get("__metadata__", {}).get("malssi", "{}"))
        # From its bytes, since the library opens no file whose name is not UTF-8.
        found = safetensors.torch.load(path.read_bytes()) if tensors else {}
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


def load_weights(model: GPT, weights: dict[str, Tensor], path: Path) -> None:
    """Copy `weights` into `model`; raises ValueError that names the file where they do not fit."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{path} does not fit the model that config.yaml beside it describes: {' '.join(str(error).split())[:200]}"
        ) from None


def check_shape(path: Path, config: ModelConfig, vocab_size: int) -> None:
    """Raise ValueError where the weights in `path` are not of this shape, before memory is taken for a model of it."""
    header = read_header(path)
    shapes = {name.removeprefix("model."): tuple(about["shape"]) for name, about in header.items() if name[0] != "_"}
    layers = sum(name.endswith(".attention.qkv.weight") for name in shapes)
    if shapes.get("token.weight") != (vocab_size, config.width) or layers != config.layers:
        raise ValueError(f"{path} does not fit the model that config.yaml and tokenizer.model beside it describe")


def check_tokenizer(folder: Path, tokenizer: Tokenizer, progress: Progress, name: str) -> None:
    """Raise ValueError where the weights were trained with another tokenizer than the one beside them."""
    if tokenizer.hash != progress.tokenizer:
        raise ValueError(f"{folder / name} was not trained with {folder / 'tokenizer.model'}: their tokenizers differ")
