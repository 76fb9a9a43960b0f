"""Train a model on your text: python train.py --data.path my.txt --train.minutes 5

Settings come from the config, flags go over them. A default shown here holds where the config says nothing.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from doors.door import DONE, Parser, describe, notice, run_door
from machine.streams import Tolerant
from run.config import MAY_CHANGE, PROJECT, Config, add_flags, as_yaml, by_name, given, read_config, sealed

if TYPE_CHECKING:
    from data.prepare import Prepared

DEFAULT = PROJECT / "configs" / "tiny.yaml"
MEMORY = "lower --train.micro_batch_size, --model.context or --model.width"


def main(arguments: list[str] | None = None) -> int:
    """Train, whether or not what is said on the way can be shown."""
    stdout = sys.stdout
    shown = Tolerant(stdout)
    sys.stdout = cast(TextIO, shown)
    try:
        return prepare_and_train(arguments)
    finally:
        sys.stdout = stdout
        if shown.fault is not None:
            notice(f"what is printed could not be shown to its end ({describe(shown.fault)}); metrics.jsonl has it all")


def prepare_and_train(arguments: list[str] | None) -> int:
    """Read the command line, prepare the text, train."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings to start from (default: configs/tiny.yaml)"
    )
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="folder of the run (default: runs/NAME after the config)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run, or with the newest one under runs/")
    parser.add_argument(
        "--init-from", dest="train.init_from", metavar="DIR", default=argparse.SUPPRESS,
        help="start from the weights and tokenizer of this run, as --train.init_from",
    )  # fmt: skip
    add_flags(parser)
    options = parser.parse_args(arguments)
    overrides = given(options)
    for one, other in (("train.steps", "train.minutes"), ("data.path", "data.dataset")):
        if {one, other} <= set(overrides):
            parser.error(f"--{one} and --{other} exclude each other")
    if options.resume and "train.init_from" in overrides:
        parser.error("--init-from begins a new run, --resume goes on with an old one")
    # Only now, so that --help answers at once.
    from data.files import replace_file
    from data.prepare import prepare
    from data.read import Text, enough
    from run.folder import RUNS, check_free, claimed, locked, newest_run, open_parts
    from training import auto
    from training.log import say
    from training.loop import train

    own = None
    if options.resume:
        folder = options.run or newest_run()
        before, own = open_parts(folder)
        config = resumed(folder, before, overrides)
        if options.config:
            say(f"{options.config} is not read: with --resume the settings are those of {folder / 'config.yaml'}")
    else:
        path = options.config or DEFAULT
        folder = options.run or RUNS / path.stem
        if options.run:
            check_free(folder)
        config = read_config(path, overrides)
        if config.train.init_from:
            overrides |= inherited(Path(config.train.init_from), overrides)
            config = read_config(path, overrides)
        if config.auto and (clashing := [name for name in auto.CHOSEN if name in overrides]):
            raise ValueError(
                f"{', '.join('--' + name for name in clashing)} cannot be given where the config has auto, which "
                "chooses them: leave out auto (--auto false) or these"
            )

    text = Text(config.data, say, offline=options.resume and "data.dataset" not in overrides)
    prepared = prepare(enough(text, say), config.tokenizer, config.train.eval_tokens, say, own=own)
    if config.train.steps == 0:
        say("prepared; 0 steps to train")
        return DONE
    if options.resume and finished(folder, before, config):
        say(f"{folder} is finished; --train.steps or --train.minutes may ask for more")
        return DONE
    if config.auto:
        config = auto.choose(config, prepared, say)
    if not options.resume and "model.context" not in overrides:
        config = fitted(config, prepared)
    if options.resume:
        lock = locked(folder)
    else:
        wanted = folder
        folder, lock = claimed(wanted, fixed=options.run is not None)
        if folder != wanted:
            say(f"{wanted} exists: this run is {folder}")
    with lock:
        if not options.resume:
            replace_file(folder / "tokenizer.model", prepared.tokenizer.model)
        replace_file(folder / "config.yaml", sealed(as_yaml(config)))
        say(f"run: {folder}")
        stopped_by = train(config, prepared, folder, options.resume)
    if stopped_by:
        say(f"stopped and saved; go on by: python train.py --resume --run {folder}")
        return 128 + stopped_by
    say(f"done: {folder} · try: python sample.py --run {folder} --prompt 나는")
    return DONE


def fitted(config: Config, prepared: "Prepared") -> Config:
    """Return `config` with a context that the text can fill; a lower one is said."""
    from training.log import say

    tokens = len(prepared.train.ids)
    if config.model.context < tokens:
        return config
    say(f"context: {tokens - 1} in place of {config.model.context}, since the text has only {tokens} tokens")
    return replace(config, model=replace(config.model, context=tokens - 1))


def resumed(folder: Path, before: Config, overrides: dict[str, Any]) -> Config:
    """Return the settings `before` of the run in `folder` with those of `overrides` that may change."""
    from training.log import say

    known = by_name(before)
    refused = [name for name, value in overrides.items() if name not in MAY_CHANGE and value != known[name]]
    if refused:
        raise ValueError(
            f"{', '.join('--' + name for name in refused)} cannot change in a run that is under way: "
            f"{folder / 'config.yaml'} has {', '.join(f'{name} {known[name]}' for name in refused)}"
        )
    changed = {name: overrides[name] for name in ("train.steps", "train.minutes") if name in overrides}
    for name, value in changed.items():
        if value != known[name]:
            say(
                f"{name} is now {value} (was {known[name]}): the learning rate goes on as in a run of that length "
                "and falls to its end by then"
            )
    return read_config(folder / "config.yaml", overrides, own=True)


def inherited(folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a run must share with the one in `folder` whose weights it starts from."""
    from run.folder import open_parts

    config, _ = open_parts(folder)
    shared = {
        name: value for name, value in by_name(config).items() if name.startswith("model.") and name != "model.dropout"
    }
    shared["tokenizer.path"] = str((folder / "tokenizer.model").resolve())
    clashing = [name for name, value in shared.items() if name in overrides and overrides[name] != value]
    if clashing:
        raise ValueError(
            f"{', '.join('--' + name for name in clashing)} must stay as in {folder}, whose weights are taken"
        )
    return shared


def finished(folder: Path, before: Config, config: Config) -> bool:
    """Whether the run in `folder`, of the settings `before`, has taken all the steps, or minutes, of `config`."""
    from run import checkpoint
    from run.folder import STATE, begun

    if not begun(folder):
        return False
    progress = checkpoint.load(folder / STATE, tensors=False)[1]
    if config.train.steps is not None:
        return progress.step >= config.train.steps
    return progress.finished and before.train.minutes == config.train.minutes


if __name__ == "__main__":
    sys.exit(run_door(main, memory=MEMORY))
