"""Let a model continue a text: python sample.py --prompt 나는 (layers, heads and steps count from 0 everywhere)"""

import argparse
import json
import math
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doors.door import DONE, Parser, add_reading_flags, at_least, notice, run_door
from machine.streams import visible

if TYPE_CHECKING:
    from model.generate import Choice
    from writing.writer import Continuation, Writer
MEMORY = "lower --count or --tokens"


def make_parser() -> Parser:
    """Return the parser of this door's flags."""
    parser = Parser(__doc__)
    add_reading_flags(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", default="", metavar="TEXT", help="the text to continue (--prompt=-… for a leading dash)"
    )
    source.add_argument("--prompt-file", type=Path, metavar="FILE", help="read the prompt from this file")
    source.add_argument(
        "--interactive", action="store_true", help="stay loaded and continue each line of standard input"
    )
    parser.add_argument("--tokens", type=at_least(0), default=200, metavar="N", help="most tokens to write")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.6,
        metavar="X",
        help="below 1 safer, above 1 wilder, 0 always the likeliest",
    )
    parser.add_argument(
        "--top-k", type=at_least(0), default=0, metavar="N", help="sample from the N likeliest tokens; 0 is off"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=0.8,
        metavar="X",
        help="keep the likeliest tokens up to probability X; 1 is off",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.1,
        metavar="X",
        help="above 1, less of what is there already; 1 is off",
    )
    parser.add_argument("--stop", nargs="+", default=[], metavar="TEXT", help="end before any of these texts")
    parser.add_argument("--count", type=at_least(1), default=1, metavar="N", help="continuations, written in one batch")
    parser.add_argument(
        "--seed", type=at_least(0), metavar="N", help="same seed, same text; left out, drawn and printed"
    )
    parser.add_argument(
        "--no-stop", action="store_true", help="go on past the end of a document, a blank line in its place"
    )
    parser.add_argument(
        "--show-next",
        type=at_least(0),
        default=0,
        metavar="K",
        help="show each step's K likeliest tokens instead of the text",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of text")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, open the run, continue the prompt."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    # Only now, so that --help answers at once.
    import torch

    from data.read import decode
    from machine.device import PRECISIONS, choose_device
    from model.generate import Choice
    from run.folder import open_run
    from writing.writer import Writer

    try:
        choice = Choice(options.temperature, options.top_k, options.top_p, options.repetition_penalty)
    except ValueError as error:
        parser.error(f"--{error}")
    run = open_run(options.run, choose_device(options.device, notice), options.step, notice)
    if options.top_k > run.tokenizer.vocab_size:
        notice(f"top-k {options.top_k} is above the vocabulary: {run.tokenizer.vocab_size} taken")
    writer = Writer(run.model, run.tokenizer, PRECISIONS.get(options.precision, torch.float32))
    if options.interactive:
        return interact(writer, choice, options)
    prompt = options.prompt
    if options.prompt_file:
        prompt = decode(options.prompt_file.read_bytes(), str(options.prompt_file))
    write(writer, choice, options, prompt)
    return DONE


def interact(writer: "Writer", choice: "Choice", options: argparse.Namespace) -> int:
    """Continue each line of standard input until it ends."""
    from data.read import decode

    notice("a prompt a line; Ctrl-D ends")
    while (raw := ask("> ")) is not None:
        try:
            line = raw if isinstance(raw, str) else decode(raw, "the line")
            write(writer, choice, options, line.removesuffix("\n").removesuffix("\r"))
        except ValueError as error:  # a bad line ends the line, not the session
            notice(f"error: {error}")
    return DONE


def ask(sign: str) -> str | bytes | None:
    """Return the next line of standard input, None at its end; the sign goes to stderr, away from the text.

    In bytes where there are any, since they follow no locale.
    """
    if sys.stdin.isatty():
        print(sign, end="", file=sys.stderr, flush=True)
    return getattr(sys.stdin, "buffer", sys.stdin).readline() or None


def write(writer: "Writer", choice: "Choice", options: argparse.Namespace, prompt: str) -> None:
    """Continue `prompt` as the options say, on stdout."""
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    if options.seed is None:
        notice(f"seed: {seed}")
    if prompt.endswith(" "):
        notice("the prompt ends in a space; the model continues better without one")
    context = writer.model.config.context
    if len(writer.prompt_ids(prompt)) > context:
        notice(f"the prompt is longer than the context: the model reads its last {context} tokens")

    streaming = options.count == 1 and not options.json and not options.show_next

    def stream(_: "Continuation", text: str) -> None:
        if streaming:
            print(show(text), end="", flush=True)

    from data.read import clean

    # A file or a pipe gets the text as it is; a terminal is not to be driven by it.
    show = visible if sys.stdout.isatty() else str
    if streaming:
        print(show(clean(prompt)), end="", flush=True)
    written = writer.write(
        prompt,
        options.tokens,
        choice,
        [seed + number for number in range(options.count)],
        stops=tuple(options.stop),
        no_stop=options.no_stop,
        show_next=options.show_next,
        say=stream,
    )
    for number, text in enumerate(written):
        if options.json:
            print(json.dumps(as_json(text, writer, options.show_next), ensure_ascii=False, allow_nan=False), flush=True)
            continue
        if options.count > 1:
            notice(f"{number}:")
        if options.show_next:
            show_next(text, writer)
        else:
            print("" if streaming else show(text.prompt + text.completion), flush=True)
        if text.unfinished:
            notice("the bytes of a last character are incomplete: left out")


def as_json(text: "Continuation", writer: "Writer", show: int) -> dict[str, Any]:
    """Return what `--json` prints of one continuation."""
    return {
        "prompt": text.prompt,
        "text": text.prompt + text.completion,
        "completion": text.completion,
        "ids": text.ids,
        "prompt_tokens": len(text.ids) - len(text.log_probabilities) - 1,
        "log_probabilities": text.log_probabilities,
        "stopped": text.stopped,
        "seed": text.seed,
        **({"next": text.next} if show else {}),
    }


def show_next(text: "Continuation", writer: "Writer") -> None:
    """Print each step's likeliest tokens as bars, the one that was taken marked."""
    from data.tokenizer import MARK

    chosen = text.ids[len(text.ids) - len(text.log_probabilities) :]
    before = list(text.ids[: len(text.ids) - len(chosen)])
    for step, likeliest in enumerate(text.next):
        taken = chosen[step] if step < len(chosen) else MARK  # past the last token it was the end
        print(writer.tokenizer.decode(before)[-40:].replace("\n", "⏎"))
        if step < len(chosen) and taken not in [entry["id"] for entry in likeliest]:
            likeliest = [*likeliest, {"id": taken, "probability": math.exp(text.log_probabilities[step])}]
        for entry in likeliest:
            bar = "█" * round(30 * entry["probability"])
            sign = "→" if entry["id"] == taken else " "
            print(f"  {sign} {entry['probability']:6.1%} {bar} {writer.tokenizer.label(entry['id'])}")
        before.append(taken)
    print(text.prompt + text.completion)


if __name__ == "__main__":
    sys.exit(run_door(main, memory=MEMORY))
