"""Training tokens a second at equal shape: this project, a plain fp32 loop, transformers' GPT-2, and one large product.

python -m bench.throughput
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.measure import Apart, add_shape, in_turn, parser, ratios, report, seconds, spread
from bench.plain import Plain, plain_step, transformers_gpt2
from machine.device import choose_device, choose_precision
from model.config import ModelConfig
from model.gpt import GPT
from run.config import TrainConfig
from training.estimate import flops_per_token
from training.learner import Learner


def main(arguments: list[str] | None = None) -> int:
    """Let every loop take a few steps in turn."""
    flags = parser(__doc__)
    add_shape(flags, layers=6, heads=6, width=384, context=256, batch=16, vocabulary=4096, steps=3, product=2048)
    flags.add_argument("--compile", choices=("off", "on"), default="off", help="compile this project's model (off)")
    flags.add_argument("--position", choices=("learned", "rotary"), default="learned", help="of this project (learned)")
    options = flags.parse_args(arguments)
    device = choose_device("auto")
    notes: list[str] = []
    dtype = choose_precision("auto", device, notes.append)
    name = str(dtype).removeprefix("torch.")
    contenders = {
        f"malssi, {name}, AdamW": Apart(ours, options, "adamw"),
        f"malssi, {name}, Muon": Apart(ours, options, "muon"),
        "plain loop, float32, AdamW": Apart(peer, options, Plain),
        "transformers GPT-2, float32, AdamW": Apart(peer, options, transformers_gpt2),
    }

    def product(kind: torch.dtype) -> float:
        square = torch.randn(options.product, options.product, device=device).to(kind)
        best = min(seconds(lambda: (square @ square)[0, 0].item()) for _ in range(3))
        return 2 * options.product**3 / best / 1e9

    for first in contenders.values():  # what the first steps alone pay for, compiling too, is no part of the rate
        first()
    tasks: dict[str, Callable[[], float]] = {
        "product": partial(product, dtype),
        "exact product": partial(product, torch.float32),
        **contenders,
    }
    found = in_turn(tasks, options.repeats)
    flops = flops_per_token(GPT(ModelConfig(**shape(options), position="none"), options.vocabulary))
    plain = found["plain loop, float32, AdamW"]
    rows = [
        {
            "loop": name,
            "tokens a second": spread(found[name]),
            "times the plain loop": ratios(found[name], plain),
            "share of a product's rate": ratios([flops * value / 1e9 for value in found[name]], found["product"]),
        }
        for name in contenders
    ]
    report(
        "Training throughput", rows, options, precision=notes[0].removeprefix("precision: "),
        GFLOPs_of_one_product=spread(found["product"]), GFLOPs_of_one_in_fp32=spread(found["exact product"]),
        times_as_fast=ratios(found["product"], found["exact product"]), flops_a_token=flops,
    )  # fmt: skip
    return 0


def ours(options: argparse.Namespace, optimizer: Any) -> Callable[[], float]:
    """Return a function that trains this project's model for some steps and gives the tokens a second."""
    device = choose_device("auto")
    dtype = choose_precision("auto", device)
    model = GPT(ModelConfig(**shape(options), position=options.position), options.vocabulary).to(device)
    config = TrainConfig(steps=1, optimizer=optimizer)
    learner = Learner(model, config, dtype, options.compile == "on")
    return partial(rate, partial(learner.update, [batch(options)], config.rate), options)


def peer(options: argparse.Namespace, make: Callable[..., torch.nn.Module]) -> Callable[[], float]:
    """Return the same of a peer's model."""
    model = make(options.vocabulary, **shape(options)).to(choose_device("auto")).train()
    return partial(rate, partial(plain_step(model), *batch(options)), options)


def shape(options: argparse.Namespace) -> dict[str, Any]:
    """Return the sizes that every contender has."""
    return {name: getattr(options, name) for name in ("layers", "heads", "width", "context")}


def batch(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets that every contender sees, (B, T) each."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(options.vocabulary, (2, options.batch, options.context), generator=generator).to(
        choose_device("auto")
    )
    return inputs, targets


def rate(step: Callable[[], Any], options: argparse.Namespace) -> float:
    """Return the tokens a second of some steps."""
    # Each step returns its loss as a number, so that a card has finished too.
    return options.steps * options.batch * options.context / seconds(lambda: [step() for _ in range(options.steps)])


if __name__ == "__main__":
    sys.exit(main())
