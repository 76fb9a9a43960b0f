"""Measure a model in bits per character: python evaluate.py [--data.path other.txt --data.unit line]"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from doors.door import DONE, Parser, add_reading_flags, notice, run_door
from run.config import add_flags, given

if TYPE_CHECKING:
    from run.folder import Run

SAMPLES, SAMPLE_TOKENS = 100, 200
MEMORY = "lower --batch-size"


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, find the documents, measure."""
    parser = Parser(__doc__)
    add_reading_flags(parser)
    add_flags(parser, only=("data.",))
    parser.add_argument(
        "--copied", action="store_true", help="also the share of samples that stand in the training text"
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="windows at once; the figure is the same"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    options = parser.parse_args(arguments)
    if options.batch_size < 1:
        parser.error(f"--batch-size must be 1 or more, not {options.batch_size}")
    # Only now, so that --help answers at once.
    from data.tokens import encode
    from machine.device import choose_device
    from measures.bits import total_bits
    from run.folder import open_run

    if options.precision in ("bf16", "fp16"):
        notice("bits per character are defined in fp32: measured in fp32")
    run = open_run(options.run, choose_device(options.device, notice), options.step, notice)
    side, documents, train = find_documents(run, options)
    tokens = encode(documents, run.tokenizer)
    notice(
        f"not the run's own text: all of its {tokens.documents:,} documents are measured"
        if side == "all"
        else f"the run's own text: its {tokens.documents:,} {side} documents are measured"
    )
    bits = total_bits(run.model, tokens.ids, options.batch_size)
    result: dict[str, Any] = {
        "run": str(run.folder),
        "step": run.progress.step,
        "side": side,
        "documents": tokens.documents,
        "tokens": tokens.targets,
        "characters": tokens.characters,
        "bytes": tokens.bytes,
        "bits_per_character": bits / tokens.characters,
        "bits_per_byte": bits / tokens.bytes,
    }
    if options.copied:
        result |= copied(run, train, documents)
    print(json.dumps(result, ensure_ascii=False, allow_nan=False) if options.json else as_text(result))
    return DONE


def find_documents(run: "Run", options: argparse.Namespace) -> tuple[str, Iterable[str], Iterable[str] | None]:
    """Return the side to measure, its documents, and the training documents if the text is the run's own.

    The run's own text gives its validation side, or the training side where it has no other; any other text, named by
    --data.path or --data.dataset, is measured whole. Raises ValueError where the text that config.yaml names is no
    longer the recorded one.
    """
    from data.read import Text, enough
    from data.split import survey

    flags = {name.removeprefix("data."): value for name, value in given(options).items() if name.startswith("data.")}
    named = {"path", "dataset"} & set(flags)
    config = run.config.data
    if named:
        config = replace(config, **{"path": (), "dataset": None} | flags)
    elif flags:
        config = replace(config, **flags)
    text = Text(config, notice, offline=not named)
    own = enough(text)
    found = survey(own)
    if found.hash == run.progress.text:
        train, validation = (found.side(own, validation) for validation in (False, True))
        return ("validation", validation, train) if found.parted else ("training", train, train)
    if named:
        if config.limit and "limit" not in flags:  # that was for training
            text = Text(replace(config, limit=None))
        return "all", text, None
    raise ValueError(
        f"the text in {config.where} is no longer the one that {run.folder} was trained on: "
        "name that one, or another to measure whole, by --data.path"
    )


def copied(run: "Run", train: Iterable[str] | None, measured: Iterable[str]) -> dict[str, float]:
    """Return how much of 100 samples stands word for word in the training text, and of the validation text."""
    if train is None:
        raise ValueError("--copied compares with the run's own training text: leave out --data.path, or name that text")
    from measures.copied import copied_share
    from writing.writer import DEFAULT, Writer

    written = Writer(run.model, run.tokenizer).write("", SAMPLE_TOKENS, DEFAULT, list(range(SAMPLES)))
    return {
        "copied": copied_share([text.completion for text in written], train),
        "copied_validation": copied_share(list(measured), train),
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as lines to read."""
    lines = [
        f"{result['run']} at step {result['step']}: {result['bits_per_character']:.4f} bits per character, "
        f"{result['bits_per_byte']:.4f} per byte",
        f"{result['documents']:,} documents, {result['tokens']:,} tokens, {result['characters']:,} characters, "
        f"{result['bytes']:,} bytes",
    ]
    if "copied" in result:
        lines.append(
            f"of the 30-character stretches of {SAMPLES} samples {result['copied']:.1%} stand in the training text, "
            f"of the {result['side']} text {result['copied_validation']:.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_door(main, memory=MEMORY))
