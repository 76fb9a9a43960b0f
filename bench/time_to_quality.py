"""Seconds of training until a text is known so well: a config of this project against the recipe of a plain loop.

The plain recipe is the one that nanoGPT gives for a laptop: 4 layers of width 128, 4 heads, context 64, batch 12, AdamW
at 1e-3 with 100 steps of warm-up and a cosine down to 1e-4 over 2,000 steps, fp32. Both see the same text by the same
tokenizer, and both are measured on the whole validation file by the project's own rule. The tokenizer and measuring
take no part in the time; everything else does.

python -m bench.time_to_quality --text reviews-train.txt --validation reviews-val.txt
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from bench.measure import in_turn, parser, ratios, report, spread
from bench.plain import Plain, cosine, plain_step, random_windows
from data.config import DataConfig
from data.prepare import Prepared, prepare
from data.read import Text
from data.tokens import Tokens, encode
from machine.device import choose_device
from measures.bits import total_bits
from model.gpt import GPT
from run.config import PROJECT, Config, read_config
from training.loop import Trainer

Race = Iterator[tuple[float, Callable[[], float]]]  # after each step: seconds so far, and a way to measure the model


def main(arguments: list[str] | None = None) -> int:
    """Train both to the target in turn."""
    flags = parser(__doc__, repeats=3)
    add_text(flags)
    flags.add_argument("--target", type=float, default=4.54, metavar="X", help="bits per character to reach (4.54)")
    flags.add_argument("--config", type=Path, default=PROJECT / "configs" / "quick.yaml", metavar="FILE")
    flags.add_argument("--measure-every", type=int, default=20, metavar="N", help="steps between measurements (20)")
    flags.add_argument("--plain-steps", type=int, default=2000, metavar="N", help="length of the plain recipe (2,000)")
    options = flags.parse_args(arguments)
    config, prepared, validation = open_text(options)
    seeds = iter(range(1, 2 * options.repeats + 1))
    every, plain_every = options.measure_every, 5 * options.measure_every
    tasks: dict[str, Callable[[], tuple[float, float]]] = {
        options.config.name: lambda: run(malssi(config, prepared, validation, next(seeds)), options.target, every),
        "plain recipe": lambda: run(
            plain(prepared, validation, next(seeds), options.plain_steps), options.target, plain_every
        ),
    }
    found = in_turn(tasks, options.repeats)
    recipe = found["plain recipe"]
    rows = [
        {
            "contender": name,
            "seconds to the target": spread([reached for reached, _ in runs]),
            "share of the recipe's": ratios([reached for reached, _ in runs], [reached for reached, _ in recipe]),
            "share of the whole recipe": ratios([reached for reached, _ in runs], [whole for _, whole in recipe]),
            "seconds of the whole run": spread([whole for _, whole in runs]),
        }
        for name, runs in found.items()
    ]
    report(f"Time to {options.target} bits per character", rows, options)
    return 0


def run(race: Race, target: float, measure_every: int) -> tuple[float, float]:
    """Return the seconds at which `target` was passed, on a straight line between two measurements, and of the whole.

    Raises ValueError where it was not.
    """
    reached, before, seconds, figure = 0.0, (0.0, math.inf), 0.0, math.inf
    for step, (seconds, measure) in enumerate(race, 1):
        if step % measure_every or reached:
            continue
        figure = measure()
        if figure <= target:
            share = (before[1] - target) / (before[1] - figure) if before[1] < math.inf else 1.0
            reached = before[0] + share * (seconds - before[0])
        before = (seconds, figure)
    if not reached:
        raise ValueError(f"{target} was not reached: {figure:.4f} after {seconds:.0f} seconds")
    return reached, seconds


def add_text(flags: argparse.ArgumentParser) -> None:
    """Add the flags that name a text."""
    flags.add_argument("--text", type=Path, nargs="+", required=True, metavar="PATH", help="to train on")
    flags.add_argument("--unit", choices=("document", "line", "file"), default="line", help="a document is a (line)")
    flags.add_argument("--validation", type=Path, metavar="PATH", help="left out, the text's own validation side")
    flags.add_argument("--vocabulary", type=int, default=4096, metavar="N", help="(4096)")


def open_text(options: argparse.Namespace) -> tuple[Config, Prepared, Tokens]:
    """Return the config to run, the text that --text names, and the tokens to measure on."""
    config = read_config(options.config)
    data = DataConfig(path=tuple(str(path.resolve()) for path in options.text), unit=options.unit)
    config = replace(config, data=data, tokenizer=replace(config.tokenizer, vocab_size=options.vocabulary))
    whole = options.validation is None  # all that a training may know of its validation side, or what it looks at
    prepared = prepare(Text(data), config.tokenizer, 200_000 if whole else config.train.eval_tokens)
    if whole:
        if prepared.validation is None:
            raise ValueError("the text is too small to have a validation side: name one by --validation")
        return config, prepared, prepared.validation
    documents = Text(DataConfig(path=(str(options.validation.resolve()),), unit=options.unit))
    return config, prepared, encode(documents, prepared.tokenizer)


def malssi(config: Config, prepared: Prepared, validation: Tokens, seed: int) -> Race:
    """Train as `train.py` does, by its own trainer."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(config, train=replace(config.train, seed=seed, snapshots=0)), prepared, Path(folder))
        trainer.start()
        trainer.introduce()
        trainer.begin()
        spent = 0.0
        while not trainer.finished:
            started = time.perf_counter()
            trainer.step_once()
            spent += time.perf_counter() - started
            yield spent, lambda: measured(trainer.model, validation)
        trainer.close()


def plain(prepared: Prepared, validation: Tokens, seed: int, steps: int) -> Race:
    """Train by the plain recipe."""
    torch.manual_seed(seed)
    device, generator = choose_device("auto"), torch.Generator().manual_seed(seed)
    model = Plain(prepared.tokenizer.vocab_size, layers=4, heads=4, width=128, context=64).to(device)
    step, spent = plain_step(model), 0.0
    for number in range(steps):
        started = time.perf_counter()
        inputs, targets = random_windows(prepared.train.ids, 12, 64, generator)
        step(inputs.to(device), targets.to(device), cosine(number / steps, 1e-3, 1e-4, 0.05))
        spent += time.perf_counter() - started
        yield spent, lambda: measured(model, validation)


def measured(model: GPT | Plain, tokens: Tokens) -> float:
    """Return bits per character."""
    return total_bits(cast(GPT, model), tokens.ids) / tokens.characters  # what it asks of a GPT, both have


if __name__ == "__main__":
    sys.exit(main())
