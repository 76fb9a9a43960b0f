"""Bits per character after so many minutes: a config of this project against a plain fp32 loop at its best rate.

The plain loop has the config's shape and batch, or with --recipe nanoGPT's for a laptop, its tokenizer, learned
positions, AdamW, 5 % of warm-up and a cosine down to a tenth; its rate falls with the time, so that it ends when the
minutes do. Both are measured on the whole validation file, or on the text's own validation side.

python -m bench.quality --minutes 5 --text reviews-train.txt --validation reviews-val.txt
"""

import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from bench.measure import in_turn, parser, report, spread
from bench.plain import Plain, cosine, plain_step, random_windows
from bench.time_to_quality import add_text, measured, open_text
from data.prepare import Prepared
from data.tokens import Tokens
from machine.device import choose_device
from model.config import ModelConfig
from run import checkpoint
from run.config import PROJECT, Config
from run.folder import build
from training import auto
from training.loop import train

RECIPE = ModelConfig(layers=4, heads=4, width=128, context=64)


def main(arguments: list[str] | None = None) -> int:
    """Train each for the same minutes."""
    flags = parser(__doc__, repeats=1)
    add_text(flags)
    flags.add_argument("--minutes", type=float, default=5.0, metavar="M", help="of training for each (5)")
    flags.add_argument("--config", type=Path, default=PROJECT / "configs" / "tiny.yaml", metavar="FILE")
    flags.add_argument(
        "--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3], metavar="X", help="of the plain loop"
    )
    flags.add_argument(
        "--recipe",
        action="store_true",
        help="give the plain loop nanoGPT's shape and batch for a laptop, not the config's",
    )
    options = flags.parse_args(arguments)
    config, prepared, validation = open_text(options)
    config = replace(config, train=replace(config.train, steps=None, minutes=options.minutes))
    if config.auto:
        config = auto.choose(config, prepared, print)
    seeds = iter(range(1, 1000))
    ours = options.config.name
    tasks = {ours: lambda: malssi(config, prepared, validation, next(seeds))}
    peer = replace(config, model=RECIPE, train=replace(config.train, batch_size=12)) if options.recipe else config
    for rate in options.rates:
        tasks[f"plain loop at {rate:g}"] = partial(plain, peer, prepared, validation, rate)
    found = in_turn(tasks, options.repeats)
    best = min((figure for name, runs in found.items() if name != ours for figure, _ in runs), default=float("nan"))
    rows = [
        {
            "contender": name,
            "bits per character": spread([figure for figure, _ in runs], digits=4),
            "against the best plain loop": spread([figure / best for figure, _ in runs]),
            "steps": spread([steps for _, steps in runs]),
        }
        for name, runs in found.items()
    ]
    report(f"Quality after {options.minutes:g} minutes", rows, options)
    return 0


def malssi(config: Config, prepared: Prepared, validation: Tokens, seed: int) -> tuple[float, int]:
    """Train as `train.py` does, all that it does on the way included; return bits per character and steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(replace(config, train=replace(config.train, seed=seed)), prepared, folder)
        weights, progress = checkpoint.load(folder / "model.safetensors")
        model = build(config.model, prepared.tokenizer.vocab_size)
        checkpoint.load_weights(model, weights, folder)
        return measured(model.to(choose_device("auto")), validation), progress.step


def plain(config: Config, prepared: Prepared, validation: Tokens, rate: float) -> tuple[float, int]:
    """Train the plain loop; return bits per character and steps."""
    torch.manual_seed(1)
    shape, seconds = config.model, 60 * (config.train.minutes or 0)
    device, generator = choose_device("auto"), torch.Generator().manual_seed(1)
    model = Plain(prepared.tokenizer.vocab_size, shape.layers, shape.heads, shape.width, shape.context).to(device)
    step, steps, started = plain_step(model), 0, time.perf_counter()
    while (progress := (time.perf_counter() - started) / seconds) < 1:
        inputs, targets = random_windows(prepared.train.ids, config.train.batch_size, shape.context, generator)
        step(inputs.to(device), targets.to(device), cosine(progress, rate, rate / 10, 0.05))
        steps += 1
    return measured(model, validation), steps


if __name__ == "__main__":
    sys.exit(main())
