"""What can be set: read from a YAML file, overridden on the command line, checked, and kept beside the weights."""

import argparse
import hashlib
import os
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from data.config import DataConfig, TokenizerConfig
from model.config import ModelConfig

PROJECT = Path(__file__).resolve().parent.parent
AtLeastOne = Annotated[int, Ge(1), Le(10**12)]
AtLeastZero = Annotated[int, Ge(0), Le(10**12)]
RATES = {"muon": 1e-2, "adamw": 2e-3}  # where none is set
LONGEST = 100_000  # bytes of a config file
SEAL = b"# sha256 of what follows: "


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, in what steps and at what rate to train."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    steps: Annotated[AtLeastZero | None, "optimizer updates of the run; 0 prepares the text and stops"] = None
    minutes: Annotated[
        Annotated[float, Gt(0), Lt(1e6)] | None, "wall time from the first step to the last save, in place of steps"
    ] = None
    batch_size: Annotated[AtLeastOne, "sequences a step, all processes together"] = 8
    micro_batch_size: Annotated[AtLeastOne | None, "sequences at once, to save memory; left out, the whole batch"] = (
        None
    )
    optimizer: Annotated[Literal["muon", "adamw"], "muon: Muon for the blocks' matrices, AdamW for the rest"] = "muon"
    learning_rate: Annotated[
        Annotated[float, Gt(0), Le(1e30)] | None, "highest learning rate; left out, 1e-2 for muon and 2e-3 for adamw"
    ] = None
    warmup: Annotated[float, Ge(0), Le(1), "share of the run in which the rate rises"] = 0.05
    final_share: Annotated[float, Ge(0), Le(1), "share of the highest rate left at the end"] = 0.0
    weight_decay: Annotated[float, Ge(0), Le(1e6), "pull of matrices towards zero"] = 0.1
    beta1: Annotated[float, Ge(0), Lt(1), "AdamW's decay of the average gradient"] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), "AdamW's decay of the average squared gradient"] = 0.95
    max_norm: Annotated[float, Gt(0), Le(1e30), "gradients are clipped to this norm"] = 1.0
    seed: Annotated[int, Ge(0), Lt(2**63), "decides initial weights, order of the text and dropout"] = 1
    init_from: Annotated[str | None, "start from the weights and tokenizer of the run in this folder"] = None
    eval_every_steps: Annotated[AtLeastOne, "steps between evaluations on the validation documents"] = 500
    eval_tokens: Annotated[
        Annotated[int, Ge(1), Le(200_000)], "validation tokens that an evaluation during training covers at most"
    ] = 50_000
    sample_every_steps: Annotated[AtLeastZero, "steps between samples of text; 0 is off"] = 500
    save_every_steps: Annotated[AtLeastOne, "steps between saves of the whole state"] = 500
    log_every_steps: Annotated[AtLeastOne, "steps between lines of metrics.jsonl"] = 10
    snapshots: Annotated[int, Ge(0), Le(1000), "about how many snapshots of the weights to keep; 0 is off"] = 20

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("exactly one of steps and minutes must be set")

    @property
    def at_once(self) -> int:
        """Sequences that go through the model at once."""
        return self.micro_batch_size or self.batch_size

    @property
    def rate(self) -> float:
        """The highest learning rate: as set, else what suits the optimizer."""
        return self.learning_rate or RATES[self.optimizer]


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=lambda: DataConfig(path=(str(PROJECT / "data/corpus/story-*.txt"),)))
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    train: TrainConfig
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], "where to compute"] = "auto"
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], "type of the matrix products"] = "auto"
    compile: Annotated[Literal["auto", "on", "off"], "compile the model before training"] = "auto"
    wandb: Annotated[Literal["off", "offline", "online"], "log to Weights & Biases too"] = "off"
    auto: Annotated[bool, "choose shape, batch and dropout for this text, machine and time"] = False


# What may be given beside --resume; the text may have moved, since it is known by its hash.
MAY_CHANGE = {
    "train.steps", "train.minutes", "train.log_every_steps", "device", "compile", "wandb", "data.path", "data.dataset"
}  # fmt: skip


ON_AND_OFF = {"yes": "on", "true": "on", "no": "off", "false": "off"}  # for the settings that have these two

# Names that settings had in runs made before.
RENAMED = {"train.eval_pieces": "train.eval_tokens"}

# Settings that replace others.
INSTEAD = (
    ("train", "steps", ("minutes",)),
    ("train", "minutes", ("steps",)),
    ("data", "path", ("dataset", "subset", "split", "revision", "streaming")),
    ("data", "dataset", ("path", "subset", "split", "revision")),
)


def settings() -> dict[str, Any]:
    """Return the annotated type of every setting by its dotted name, such as `train.steps`."""
    hints = {}
    for name, hint in get_type_hints(Config, include_extras=True).items():
        if is_dataclass(hint):
            inner = get_type_hints(hint, include_extras=True)
            hints.update({f"{name}.{part.name}": inner[part.name] for part in fields(hint)})
        elif not name.startswith("__"):
            hints[name] = hint
    return hints


def add_flags(parser: argparse.ArgumentParser, only: tuple[str, ...] = ()) -> None:
    """Give `parser` a flag for every setting, or those whose names start with one of `only`; unset ones are absent."""
    usual = by_name(Config(train=TrainConfig(steps=0)))
    for name, hint in settings().items():
        if only and not name.startswith(only):
            continue
        text = next((part for part in get_args(hint) if isinstance(part, str)), "")
        choices = next(
            (get_args(part) for part in get_args(hint) if get_args(part) and isinstance(get_args(part)[0], str)), None
        )
        kind: dict[str, Any] = {"type": reader(hint), "metavar": name.split(".")[-1].upper()}
        if name == "data.path":
            kind = {"nargs": "+", "metavar": "PATH"}
        elif choices:
            kind = {"type": reader(hint), "choices": choices}
        if usual[name] not in (None, ()) and name not in ("train.steps", "data.path"):
            text += f" (default: {str(usual[name]).lower() if isinstance(usual[name], bool) else usual[name]})"
        parser.add_argument(f"--{name}", dest=name, default=argparse.SUPPRESS, help=text.replace("%", "%%"), **kind)


def reader(hint: Any) -> Any:
    """Return a function from a flag's text to a value of its type, as argparse wants it."""

    def read(text: str) -> Any:
        try:
            return TypeAdapter(hint).validate_python(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(f"{error.errors()[0]['msg'].lower()}, not '{text}'") from None

    return read


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that stood on the command line, by dotted name, paths made absolute."""
    found = {name: value for name, value in vars(arguments).items() if name in settings()}
    if "data.path" in found:
        found["data.path"] = tuple(os.path.abspath(path) for path in found["data.path"])
    for name in {"tokenizer.path", "train.init_from"} & set(found):
        found[name] = os.path.abspath(found[name])
    if os.path.isdir(found.get("data.dataset") or ""):  # else a name on the Hub
        found["data.dataset"] = os.path.abspath(found["data.dataset"])
    return found


class Plain(yaml.SafeLoader):
    """YAML whose scalars stay text: the type of each setting decides how its text is read, as on the command line.

    So `yes` is no number, 1:30 is not 90 and 010 is not 8. References are refused, by which a short file can stand for
    one beyond any memory, and so is a key given twice.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse a reference."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("references (*name) are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key given twice."""
        names = [str(key.value) for key, _ in node.value]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise yaml.YAMLError(f"'{twice}' is given twice")
        return super().construct_mapping(node, deep)


Plain.yaml_constructors = {
    **yaml.SafeLoader.yaml_constructors,
    "tag:yaml.org,2002:bool": yaml.SafeLoader.construct_yaml_str,
}
Plain.yaml_implicit_resolvers = {
    sign: [(tag, pattern) for tag, pattern in found if tag == "tag:yaml.org,2002:null"]
    for sign, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_config(path: Path, overrides: dict[str, Any] | None = None, own: bool = False) -> Config:
    """Read a config file, with `overrides` by dotted name put over it.

    Paths in a config count from its folder; those in configs/ and in a run's config.yaml from the project.
    own: the file is a run's config.yaml: hold it to the checksum in its first line, where it has one.
    Raises ValueError or OSError in one line that names the file and every setting that is wrong.
    """
    with path.open("rb") as file:
        raw = file.read(LONGEST + 1)
    if len(raw) > LONGEST:
        raise ValueError(f"{path} is no config: it is longer than {LONGEST:,} bytes")
    first, _, rest = raw.partition(b"\n")
    if own and first.startswith(SEAL) and first != SEAL + hashlib.sha256(rest).hexdigest().encode("ascii"):
        raise ValueError(
            f"{path} is damaged, or was changed by hand: its checksum does not match; without its first line it is "
            "taken as it is"
        )
    try:
        tree = yaml.load(raw.decode("utf-8-sig"), Plain) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no YAML in UTF-8: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict) or not all(isinstance(part, (dict, str, type(None))) for part in tree.values()):
        raise ValueError(f"{path} must hold sections such as 'model:' with settings in them")
    overrides = overrides or {}
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items() if part is not None}
    for name in {"compile", "wandb"} & set(tree):
        tree[name] = ON_AND_OFF.get(str(tree[name]).lower(), tree[name])
    for before, now in RENAMED.items():
        section, before, now = *before.split("."), now.split(".")[1]
        if isinstance(tree.get(section), dict) and before in tree[section] and now not in tree[section]:
            tree[section][now] = tree[section].pop(before)
    for section, name, others in INSTEAD:
        there = tree.get(section)
        if isinstance(there, dict) and overrides.get(f"{section}.{name}", there.get(name)) != there.get(name):
            for other in others:
                there.pop(other, None)  # the command line silences the file's
    for name, value in overrides.items():
        section, _, setting = name.rpartition(".")
        if section:
            if not isinstance(tree.setdefault(section, {}), dict):
                raise ValueError(f"{path}: {section} must hold settings, not {tree[section]!r}")
            tree[section][setting] = value
        else:
            tree[setting] = value
    try:
        config = TypeAdapter(Config).validate_python(tree)
    except ValidationError as error:
        raise ValueError(f"{path}: {'; '.join(explain(fault) for fault in error.errors())}") from None
    base = PROJECT if own or path.resolve().parent == PROJECT / "configs" else path.resolve().parent
    dataset = config.data.dataset
    if dataset and (base / dataset).is_dir():
        dataset = str(base / dataset)
    return replace(
        config,
        data=replace(config.data, path=tuple(str(base / part) for part in config.data.path), dataset=dataset),
        tokenizer=replace(config.tokenizer, path=config.tokenizer.path and str(base / config.tokenizer.path)),
        train=replace(config.train, init_from=config.train.init_from and str(base / config.train.init_from)),
    )


def explain(fault: Any) -> str:
    """Return one of pydantic's faults as `section.setting: what is wrong`."""
    name = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("function-", "constrained-")))
    if fault["type"] == "unexpected_keyword_argument":
        return f"{name}: no such setting"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" + (
        "" if fault["type"] in ("value_error", "missing") else f" (it is {fault['input']!r})"
    )


def as_yaml(config: Config) -> str:
    """Return `config` as YAML that `read_config` reads back, paths inside the project counted from it."""
    tree = asdict(config)
    tree["data"]["path"] = [portable(path) for path in config.data.path]
    tree["tokenizer"]["path"] = config.tokenizer.path and portable(config.tokenizer.path)
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)


def sealed(text: str) -> bytes:
    """Return the YAML of a config as it lies in the folder of a run: its checksum in a line before it."""
    raw = text.encode("utf-8")
    return SEAL + hashlib.sha256(raw).hexdigest().encode("ascii") + b"\n" + raw


def portable(path: str) -> str:
    """Return `path` counted from the project where it lies inside, so that a moved project finds it again."""
    absolute = Path(path)
    return absolute.relative_to(PROJECT).as_posix() if absolute.is_relative_to(PROJECT) else str(absolute)


def by_name(config: Config) -> dict[str, Any]:
    """Return every setting by its dotted name."""
    tree = asdict(config)
    return {
        name: tree[name] if "." not in name else tree[name.split(".")[0]][name.split(".")[1]] for name in settings()
    }
