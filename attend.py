"""See who looks at whom: python attend.py "나는 사과를 맛있게 먹었다" (layers and heads count from 0 everywhere)"""

import argparse
import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.files import replace_file
from doors.door import DONE, Parser, add_reading_flags, notice, run_door
from machine.streams import visible

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from view.trace import Trace

FORMATS = ("text", "json", "csv")
FILES = ("html", "png", "json", "csv")
MEMORY = "shorten the text, or name fewer --layers"


def make_parser() -> Parser:
    """Return the parser of this door's flags."""
    parser = Parser(__doc__)
    add_reading_flags(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what the model reads")
    parser.add_argument("--layer", type=int, metavar="L", help="look at this layer, together with --head")
    parser.add_argument("--head", type=int, metavar="H", help="look at this head, together with --layer")
    parser.add_argument(
        "--best",
        action="store_true",
        help="look at the head whose last row puts the most weight on one earlier eojeol; so it is without --layer",
    )
    parser.add_argument("--unit", choices=("eojeol", "token"), default="eojeol", help="what looks at what")
    parser.add_argument("--format", choices=FORMATS, help="text, or every head as json or csv; left out, as -o says")
    parser.add_argument("--plain", action="store_true", help="text without colours and frames")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write there: FILE.html (a page to explore), .png, .json or .csv",
    )
    parser.add_argument("--layers", metavar="A-B", help="only these layers, such as 0-3 or 2 (html, json and csv)")
    parser.add_argument(
        "--page-precision",
        choices=("auto", "fp32", "fp16"),
        default="auto",
        help="dtype of queries, keys and values in the page; auto is fp32 while they are small",
    )
    parser.add_argument("--toy", action="store_true", help="the worked example of four tokens, which needs no run")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, let the model read the text, show it."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    wanted = form(parser, options)
    if (options.layer is None) != (options.head is None):
        parser.error("--layer and --head belong together")
    if options.best and options.layer is not None:
        parser.error("--best chooses layer and head itself")
    if options.toy:
        from view.terminal import console

        show_toy(console(options.plain), options.plain)
        return DONE
    if not options.text:
        parser.error('name a text, such as "나는 사과를 맛있게 먹었다", or --toy')
    # Only now, so that --help answers at once.
    from machine.device import choose_device
    from run.folder import open_run
    from view.trace import trace

    if options.precision in ("bf16", "fp16"):
        notice("attention is shown in fp32")
    run = open_run(options.run, choose_device(options.device, notice), options.step, notice)
    traced = trace(run.model, run.tokenizer, options.text)
    if traced.text != options.text:
        notice("line ends, BOM and composed Hangul (NFC) are as in training")
    if options.layer is not None:
        for name, count in zip(("layer", "head"), traced.shape, strict=True):
            if not 0 <= getattr(options, name) < count:
                raise ValueError(f"--{name} {getattr(options, name)}: this run has {name}s 0 to {count - 1}")
    if wanted == "text":
        from view.terminal import console

        show(traced, options, console(options.plain))
        return DONE
    if wanted == "png":
        picture(traced, options)
        return DONE
    if wanted == "html":
        from view.page import page

        about = {"run": run.folder.name, "step": run.progress.step, "composed": traced.text != options.text}
        made = page(traced, run.model, about, layers(traced, options), options.page_precision)
        notice(f"{options.output}: {len(made.encode('utf-8')) / 1e6:.2f} MB")
    else:
        made = {"json": as_json, "csv": as_csv}[wanted](traced, options)
    if options.output:
        replace_file(options.output, made.encode("utf-8"))
    else:
        sys.stdout.write(made)
    return DONE


def form(parser: Parser, options: argparse.Namespace) -> str:
    """Return the format asked for by --format or by the name after -o."""
    suffix = options.output.suffix.lstrip(".").lower() if options.output else None
    if suffix is not None and suffix not in FILES:
        parser.error(f"-o {options.output}: name a .html, .png, .json or .csv file")
    if suffix and options.format not in (None, suffix):
        parser.error(f"--format {options.format} does not go with -o {options.output}")
    return suffix or options.format or "text"


def show(traced: "Trace", options: argparse.Namespace, to: "Console") -> None:
    """Print one head: who looks at whom, and the last row once more, the strongest first."""
    import numpy as np
    from rich.text import Text

    from view.terminal import LEGEND, bars, fits, matrix

    layers, heads = traced.shape
    names = [visible(name) for name in traced.names(options.unit)]
    chosen = choice(traced, options)
    layer, head = chosen or (0, 0)
    why = "" if options.layer is not None else f": its last row puts the most weight on one earlier {options.unit}"
    if chosen is None:
        why = ": nothing stands before the last one, so the first head is shown"
    weights = traced.attention(options.unit)[layer, head]
    to.print(Text(f"layer {layer} of 0–{layers - 1}, head {head} of 0–{heads - 1}{why}"), soft_wrap=True)
    if fits(names, to.width):
        masked = np.where(np.triu(np.ones_like(weights), 1) > 0, np.nan, weights)
        to.print(matrix(names, masked, plain=options.plain))
        to.print(Text(LEGEND))
    else:
        to.print(Text(f"(too wide for {to.width} columns: the last row alone; --format csv has them all)"))
    to.print(Text(f"‘{names[-1]}’, looking:"))
    to.print(bars(names[-1], names, weights[-1]), end="")
    to.print(Text(f"every row sums to 1 · difference to the fused kernel {traced.difference:.0e}"))


def choice(traced: "Trace", options: argparse.Namespace) -> tuple[int, int] | None:
    """Return layer and head as asked for, or the strongest; None where there is none."""
    return (options.layer, options.head) if options.layer is not None else traced.strongest(options.unit)


def picture(traced: "Trace", options: argparse.Namespace) -> None:
    """Draw one head as a PNG."""
    from view.picture import draw

    layer, head = choice(traced, options) or (0, 0)
    names = traced.names(options.unit)
    found = draw(options.output, f"layer {layer}, head {head}", names, traced.attention(options.unit)[layer, head])
    if not found:
        numbered = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        notice(f"no font with Hangul is installed, so the axes are numbered: {numbered}")


def show_toy(to: "Console", plain: bool) -> None:
    """Print the worked example, every step of it, mask off and on."""
    import numpy as np
    from rich.text import Text

    from view.terminal import LEGEND, matrix
    from view.toy import TOKENS, X, steps

    dimensions = [f"d{number}" for number in range(X.shape[1])]
    to.print(Text("X, and so Q, K and V too, since their maps are the identity"))
    to.print(matrix(TOKENS, X, dimensions, plain))
    for mask in (False, True):
        scores, weights, context = steps(mask)
        weights = np.where(np.isneginf(scores), np.nan, weights)
        to.print(Text(f"mask {'on' if mask else 'off'} — scores QKᵀ / √4"))
        to.print(matrix(TOKENS, scores, plain=plain))
        to.print(Text("weights: softmax of each row, which then sums to 1"))
        to.print(matrix(TOKENS, weights, plain=plain))
        to.print(Text("context: weights × V"))
        to.print(matrix(TOKENS, context, dimensions, plain))
    to.print(Text(LEGEND))
    to.print(
        Text(
            "The last row is the same both ways, since nothing stands after it. Where a text prints 0.388 and 0.623: "
            "exactly they are e / (1 + 2√e + e) = 0.387456… and 0.622459…"
        )
    )


def as_json(traced: "Trace", options: argparse.Namespace) -> str:
    """Return every head as one JSON object."""
    chosen, attention = layers(traced, options), traced.attention(options.unit)
    weights: Any = [[cells(head) for head in attention[layer]] for layer in chosen]
    content = {
        "text": traced.text,
        "ids": traced.ids,
        "tokens": traced.tokens,
        "groups": [vars(group) for group in traced.groups],
        "unit": options.unit,
        "layers": chosen,
        "heads": list(range(traced.shape[1])),
        "weights": weights,
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(traced: "Trace", options: argparse.Namespace) -> str:
    """Return every head as one table, a line a pair; a weight is empty where the mask forbids it."""
    names = traced.names(options.unit)
    attention = traced.attention(options.unit)
    buffer = io.StringIO()
    out = csv.writer(buffer, lineterminator="\n")
    out.writerow(["layer", "head", "query", "key", "query_text", "key_text", "weight"])
    for layer in layers(traced, options):
        for head, weights in enumerate(attention[layer]):
            for query, row in enumerate(cells(weights)):
                for key, weight in enumerate(row):
                    out.writerow([layer, head, query, key, names[query], names[key], "" if weight is None else weight])
    return buffer.getvalue()


def cells(weights: "np.ndarray") -> list[list[float | None]]:
    """Return (G, G) weights as lists, None where the mask forbids."""
    return [
        [float(f"{weight:.6g}") if key <= query else None for key, weight in enumerate(row)]
        for query, row in enumerate(weights.tolist())
    ]


def layers(traced: "Trace", options: argparse.Namespace) -> list[int]:
    """Return the layers that --layers or --layer names, or all. Raises ValueError where the run has none such."""
    if options.layer is not None:
        return [options.layer]
    if options.layers is None:
        return list(range(traced.shape[0]))
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", options.layers)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last < traced.shape[0]:
        raise ValueError(f"--layers {options.layers}: name layers of 0 to {traced.shape[0] - 1}, such as 0-1")
    return list(range(first, last + 1))


if __name__ == "__main__":
    sys.exit(run_door(main, memory=MEMORY))
