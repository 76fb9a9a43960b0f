"""Training tokens a second at equal shape: this project, a plain fp32 loop, transformers' GPT-2, and one large product.

python -m bench.throughput
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.measure import add_shape, in_turn, parser, ratios, report, seconds, spread
from bench.plain import Plain, plain_step, transformers_gpt2
from model.config import ModelConfig
from model.gpt import GPT
from training.config import TrainConfig
from training.device import autocast, choose_device, choose_precision, compiled, hold_memory
from training.loop import flops_per_token
from training.optimizer import make_optimizer, update


def main(arguments: list[str] | None = None) -> int:
    """Let every loop take a few steps in turn."""
    flags = parser(__doc__)
    add_shape(flags, layers=6, heads=6, width=384, context=256, batch=16, vocabulary=4096, steps=3, product=2048)
    flags.add_argument("--compile", choices=("off", "on"), default="off", help="compile this project's model (off)")
    flags.add_argument("--position", choices=("learned", "rotary"), default="learned", help="of this project (learned)")
    options = flags.parse_args(arguments)
    hold_memory()  # for the peers too
    device = choose_device("auto")
    notes: list[str] = []
    dtype = choose_precision("auto", device, notes.append)
    torch.manual_seed(1)
    inputs, targets = torch.randint(options.vocabulary, (2, options.batch, options.context), device=device)
    shape = {"layers": options.layers, "heads": options.heads, "width": options.width, "context": options.context}

    def ours(optimizer: Any) -> Callable[[], Any]:
        config = ModelConfig(**shape, position=options.position)
        model = GPT(config, options.vocabulary).to(device).train()
        settings = TrainConfig(steps=1, optimizer=optimizer)
        made = make_optimizer(model, settings, dtype)
        loss = compiled(model.loss, options.compile, 0, device)
        scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        return partial(update, loss, made, [(inputs, targets)], 1.0, autocast(device, dtype), scaler)

    def peer(make: Callable[..., torch.nn.Module]) -> Callable[[], Any]:
        return partial(plain_step(make(options.vocabulary, **shape).to(device).train()), inputs, targets)

    name = str(dtype).removeprefix("torch.")
    contenders = {
        f"malssi, {name}, AdamW": ours("adamw"),
        f"malssi, {name}, Muon": ours("muon"),
        "plain loop, float32, AdamW": peer(Plain),
        "transformers GPT-2, float32, AdamW": peer(transformers_gpt2),
    }

    def product(kind: torch.dtype) -> float:
        square = torch.randn(options.product, options.product, device=device).to(kind)
        best = min(seconds(lambda: (square @ square)[0, 0].item()) for _ in range(3))
        return 2 * options.product**3 / best / 1e9

    def rate(step: Callable[[], Any]) -> float:
        # Each step returns its loss as a number, so that a card has finished too.
        return options.steps * inputs.numel() / seconds(lambda: [step() for _ in range(options.steps)])

    for step in contenders.values():  # what the first step alone pays for, compiling too, is no part of the rate
        step()
    tasks: dict[str, Callable[[], float]] = {
        "product": partial(product, dtype),
        "exact product": partial(product, torch.float32),
        **{name: partial(rate, step) for name, step in contenders.items()},
    }
    found = in_turn(tasks, options.repeats)
    flops = flops_per_token(GPT(ModelConfig(**shape, position="none"), options.vocabulary))
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


if __name__ == "__main__":
    sys.exit(main())
