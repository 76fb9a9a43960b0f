"""Measure a model in bits per character: python evaluate.py [--data.path other.txt --data.unit line]"""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from training.config import add_flags, given
from training.door import DONE, Parser, add_reading_flags, notice, run_door

if TYPE_CHECKING:
    from training.checkpoint import Run

SAMPLES, SAMPLE_TOKENS = 100, 200


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, find the documents, measure."""
    parser = Parser(__doc__)
    add_reading_flags(parser)
    add_flags(parser, only=("data.path", "data.unit", "data.encoding"))
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
    from data.prepare import encode
    from training.checkpoint import open_run
    from training.device import choose_device
    from training.evaluate import total_bits

    if options.precision in ("bf16", "fp16"):
        notice("bits per character are defined in fp32: measured in fp32")
    run = open_run(options.run, choose_device(options.device, notice))
    train, documents = find_documents(run, options)
    tokens = encode(documents, run.tokenizer)
    bits = total_bits(run.model, tokens.ids, options.batch_size)
    result: dict[str, Any] = {
        "run": str(run.folder),
        "step": run.progress.step,
        "documents": tokens.documents,
        "pieces": tokens.targets,
        "characters": tokens.characters,
        "bytes": tokens.bytes,
        "bits_per_character": bits / tokens.characters,
        "bits_per_byte": bits / tokens.bytes,
    }
    if options.copied:
        result |= copied(run, train, documents)
    print(json.dumps(result, ensure_ascii=False) if options.json else as_text(result))
    return DONE


def find_documents(run: "Run", options: argparse.Namespace) -> tuple[list[str] | None, list[str]]:
    """Return the training documents, if the text is the run's own, and those to measure on.

    The run's own text gives its validation side; any other text, named by --data.path, is measured whole.
    Raises ValueError where the text that config.yaml names is no longer the recorded one.
    """
    from dataclasses import replace

    from data.read import enough, read_documents, split, text_hash

    flags = {name.removeprefix("data."): value for name, value in given(options).items() if name.startswith("data.")}
    config = replace(run.config.data, **flags)
    documents = read_documents(config, notice)
    own = enough(documents)
    if text_hash(own) == run.progress.text:
        train, validation = split(own)
        notice(f"the run's own text: its {len(validation):,} validation documents are measured")
        return train, validation
    if "path" in flags:
        if config.limit:  # that was for training
            documents = read_documents(replace(config, limit=None))
        notice(f"not the run's own text: all of its {len(documents):,} documents are measured")
        return None, documents
    raise ValueError(
        f"the text in {', '.join(config.path)} is no longer the one that {run.folder} was trained on: "
        "name that one, or another to measure whole, by --data.path"
    )


def copied(run: "Run", train: list[str] | None, validation: list[str]) -> dict[str, float]:
    """Return how much of 100 samples stands word for word in the training text, and of the validation text."""
    if train is None:
        raise ValueError("--copied compares with the run's own training text: leave out --data.path, or name that text")
    from training.evaluate import copied_share
    from training.write import USUAL, Writer

    written = Writer(run.model, run.tokenizer).write("", SAMPLE_TOKENS, USUAL, list(range(SAMPLES)))
    return {
        "copied": copied_share([text.completion for text in written], train),
        "copied_validation": copied_share(validation, train),
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as lines to read."""
    lines = [
        f"{result['run']} at step {result['step']}: {result['bits_per_character']:.4f} bits per character, "
        f"{result['bits_per_byte']:.4f} per byte",
        f"{result['documents']:,} documents, {result['pieces']:,} pieces, {result['characters']:,} characters, "
        f"{result['bytes']:,} bytes",
    ]
    if "copied" in result:
        lines.append(
            f"of the 30-character stretches of {SAMPLES} samples {result['copied']:.1%} stand in the training text, "
            f"of the validation text {result['copied_validation']:.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_door(main))
