"""Measure a model in bits per character: python evaluate.py [--data.path other.txt --data.unit line]"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doors.door import DONE, Parser, add_reading_flags, at_least, notice, run_door
from run.config import PROJECT, add_flags, given

if TYPE_CHECKING:
    from data.read import Text
    from run.folder import Run
    from writing.writer import Continuation

SAMPLES, WRITTEN, SAMPLE_TOKENS = 100, 200, 200
AT_ONCE = 50  # texts written together, so that memory stays small
FIGURES = {
    "unknown_eojeol": "eojeol that occur nowhere in the training text",
    "copied_sentences": "sentences that stand word for word in the training text",
    "copied_stretches": "stretches of 30 characters that stand word for word in the training text",
    "repeated_sentences": "sentences that stand in the same text before",
    "ended": "texts that end by themselves with every quote closed",
    "distinct_openings": "different openings of three eojeol",
    "self_addressed": "quotes whose speaker calls himself",
    "names": "names in a text",
    "late_names": "names that come first after a third of the text",
}
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
        "--writing", action="store_true", help="also figures on 200 texts that it writes: new words, repetition, names"
    )
    parser.add_argument(
        "--batch-size", type=at_least(1), default=32, metavar="N", help="windows at once; the figure is the same"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    options = parser.parse_args(arguments)
    # Only now, so that --help answers at once.
    from data.tokens import encode
    from machine.device import choose_device
    from measures.bits import document_bits, total_bits
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
    own_bits = document_bits(run.model, tokens.ids, options.batch_size)
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
        "document_bits_per_character": own_bits / tokens.characters,
    }
    for flag in ("--copied", "--writing"):
        if getattr(options, flag.removeprefix("--")) and train is None:
            raise ValueError(f"{flag} compares with the run's own training text: leave out --data.path, or name that")
    if options.copied and train is not None:
        result |= copied(run, train, documents)
    if options.writing and train is not None:
        result["writing"] = writing(run, side, train, documents)
    print(json.dumps(result, ensure_ascii=False, allow_nan=False) if options.json else as_text(result))
    return DONE


def find_documents(run: "Run", options: argparse.Namespace) -> tuple[str, Iterable[str], Iterable[str] | None]:
    """Return the side to measure, its documents, and the training documents if the text is the run's own.

    The run's own text, or some of its files, gives its validation side, or the training side where it has no other; any
    other text, named by --data.path or --data.dataset, is measured whole. Raises ValueError where the text that
    config.yaml names is no longer the recorded one, or where some of its files hold no validation document.
    """
    from data.read import Stretches, Text, enough
    from data.split import survey

    flags = {name.removeprefix("data."): value for name, value in given(options).items() if name.startswith("data.")}
    named = {"path", "dataset"} & set(flags)
    config = replace(run.config.data, **({"path": (), "dataset": None} if named else {}) | flags)
    text = Text(config, notice, offline=not named)
    own = measured = enough(text)
    found = survey(own)
    if found.hash != run.progress.text:
        if not named:
            raise ValueError(
                f"the text in {config.where} is no longer the one that {run.folder} was trained on: "
                "name that one, or another to measure whole, by --data.path"
            )
        if config.limit and "limit" not in flags:  # that was for training
            text = Text(replace(config, limit=None))
        whole = whole_text(run, text) if set(flags) == {"path"} else None
        if whole is None:
            return "all", text, None
        own = enough(whole)
        found = survey(own)
        if found.hash != run.progress.text:
            notice(f"the text of {run.folder} has changed: the model may have been trained on what is measured here")
            return "all", text, None
        measured = Stretches(text) if isinstance(own, Stretches) else text
        if found.parted and next(iter(found.side(measured, validation=True)), None) is None:
            raise ValueError(f"{config.where} holds no validation document of {run.folder}: name more of its text")
    if not found.parted:
        return "training", measured, own
    return "validation", found.side(measured, validation=True), found.side(own, validation=False)


def whole_text(run: "Run", text: "Text") -> "Text | None":
    """Return the text that a run was trained on where all files of `text` are among its files."""
    from data.read import Text

    try:
        whole = Text(run.config.data)
    except (OSError, ValueError):  # no longer there
        return None
    files, known = ({os.path.realpath(file) for file in each.files} for each in (text, whole))
    return whole if files <= known else None


def copied(run: "Run", train: Iterable[str], measured: Iterable[str]) -> dict[str, float]:
    """Return how much of 100 samples stands word for word in the training text, and of the validation text."""
    from measures.copied import copied_share

    return {
        "copied": copied_share([text.completion for text in write(run, SAMPLES)], train),
        "copied_validation": copied_share(list(measured), train),
    }


def writing(run: "Run", side: str, train: Iterable[str], measured: Iterable[str]) -> dict[str, Any]:
    """Return the figures on 200 texts that the model writes, each beside that of the validation documents."""
    from measures.writing import Text, compared

    stories = [os.path.realpath(path) for path in run.config.data.path]
    names = bool(stories) and all(Path(path).is_relative_to(PROJECT / "data" / "corpus") for path in stories)
    if not names:
        notice("not malssi's own corpus: the figures on names are left out, since they count those of its stories")
    written = [Text(text.completion, text.stopped == "end") for text in write(run, WRITTEN)]
    validation = [Text(document, True) for document in measured] if side == "validation" else []
    return compared(written, validation, train, names)


def write(run: "Run", count: int) -> "list[Continuation]":
    """Let the model write so many texts from nothing, by the default settings and the seeds 0 and on."""
    from writing.writer import DEFAULT, Writer

    writer = Writer(run.model, run.tokenizer)
    seeds = range(count)
    return [
        text
        for at in range(0, count, AT_ONCE)
        for text in writer.write("", SAMPLE_TOKENS, DEFAULT, list(seeds[at : at + AT_ONCE]))
    ]


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as lines to read."""
    lines = [
        f"{result['run']} at step {result['step']}: {result['bits_per_character']:.4f} bits per character, "
        f"{result['bits_per_byte']:.4f} per byte; {result['document_bits_per_character']:.4f} bits per character where "
        "each document is read from its beginning",
        f"{result['documents']:,} documents, {result['tokens']:,} tokens, {result['characters']:,} characters, "
        f"{result['bytes']:,} bytes",
    ]
    if "copied" in result:
        lines.append(
            f"of the 30-character stretches of {SAMPLES} samples {result['copied']:.1%} stand in the training text, "
            f"of the {result['side']} text {result['copied_validation']:.1%}"
        )
    for name, values in result.get("writing", {}).items():
        model, validation = (as_figure(name, values[side]) for side in ("model", "validation"))
        lines.append(f"{model:>7} {validation:>7}  {FIGURES[name]}")
    if "writing" in result:
        lines.insert(-len(result["writing"]), f"of {WRITTEN} texts that it writes, and of the validation documents:")
    return "\n".join(lines)


def as_figure(name: str, value: float | None) -> str:
    """Return a figure as it is printed: a number of names, otherwise a share; a dash where there is none."""
    return "-" if value is None else f"{value:.2f}" if name == "names" else f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(run_door(main, memory=MEMORY))
