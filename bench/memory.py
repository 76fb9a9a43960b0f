"""Peak memory and time of a training step over contexts, and how much of it autograd keeps for the backward pass.

python -m bench.memory [--plot FILE.png]
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from bench.measure import PROJECT, add_shape, parser, ratios, report, seconds, spread
from bench.plain import Plain, plain_step
from machine.device import NAMES, PRECISIONS, autocast, choose_device, choose_precision
from machine.plotting import figure
from model.config import ModelConfig
from model.fast.loss import summed_loss
from model.fast.training import fast_loss
from model.gpt import GPT
from run.config import TrainConfig
from training.learner import Learner

SIZES = {"layers": 6, "heads": 6, "width": 384, "vocabulary": 4096, "tokens": 4096, "steps": 3}
LEAST = {"layers": 1, "heads": 1, "width": 8, "vocabulary": 8, "tokens": 8}
PLAIN = "plain loop, float32"
Loss = Callable[[Tensor, Tensor], Tensor]


def main(arguments: list[str] | None = None) -> int:
    """Let every contender take its steps at every context in turn, each time in a process of its own."""
    flags = parser(__doc__, repeats=3)
    add_shape(flags, **SIZES)
    flags.add_argument(
        "--contexts", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048], metavar="N", help="(64 to 2048)"
    )
    flags.add_argument("--plot", type=Path, metavar="FILE", help="draw both curves there, as a PNG")
    flags.add_argument(
        "--one", choices=(*PRECISIONS, "plain"), help="measure this one at the first context, in this process"
    )
    options = flags.parse_args(arguments)
    if options.steps < 2:
        flags.error("--steps must be 2 or more, since the first is not timed")
    if options.one:
        print(json.dumps(measure(options.one, options.contexts[0], options)))
        return 0
    notes: list[str] = []
    dtype = choose_precision("auto", choose_device("auto"), notes.append)
    ours = {f"malssi, {str(kind).removeprefix('torch.')}": NAMES[kind] for kind in (dtype, torch.float32)}
    contenders = {**ours, PLAIN: "plain"}
    found: dict[tuple[int, str], list[dict[str, float]]] = {
        (context, name): [] for context in options.contexts for name in contenders
    }
    for _ in range(options.repeats):
        for (context, name), figures in found.items():
            figures.append(in_own_process(contenders[name], context, options))
    rows = []
    for (context, name), figures in found.items():
        row: dict[str, Any] = {"context": context, "contender": name}
        for column, times in (("MB", "times the plain MB"), ("microseconds a token", "times the plain time")):
            values, plain = ([each[column] for each in given] for given in (figures, found[context, PLAIN]))
            row |= {column: spread(values), times: ratios(values, plain)}
        rows.append(row | kept_bytes(contenders[name], context, options))
    report(
        f"A training step of {options.tokens:,} tokens over contexts",
        rows,
        options,
        precision=notes[0].removeprefix("precision: "),
    )
    if options.plot:
        draw(options.plot, rows)
    return 0


def in_own_process(name: str, context: int, options: argparse.Namespace) -> dict[str, float]:
    """Return what `measure` finds in a new process, whose peak nothing else has raised."""
    sizes = [part for size in SIZES for part in (f"--{size}", str(getattr(options, size)))]
    asked = [sys.executable, "-m", "bench.memory", "--one", name, "--contexts", str(context), *sizes]
    done = subprocess.run(asked, cwd=PROJECT, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return json.loads(done.stdout)


def measure(name: str, context: int, options: argparse.Namespace) -> dict[str, float]:
    """Take a few steps; return the MB by which they raise the peak, and the time a token of those after the first."""
    device = choose_device("auto")
    # What torch loads and sets up at its first product and its first step belongs to no contender.
    one_step(name, 8, argparse.Namespace(**LEAST), device)()
    before = peak(device)
    step = one_step(name, context, options, device)
    times = [seconds(step) for _ in range(options.steps)]
    tokens = context * sequences(context, options)
    return {
        "MB": (peak(device) - before) / 1e6,
        "microseconds a token": statistics.median(times[1:]) / tokens * 1e6,
    }


def one_step(name: str, context: int, sizes: argparse.Namespace, device: torch.device) -> Callable[[], float]:
    """Return a training step on one batch: this project's in the precision `name`, or that of the plain loop."""
    inputs, targets = batch(context, sizes, device)
    if name == "plain":
        return partial(plain_step(build(name, context, sizes, device)), inputs, targets)
    dtype = choose_precision(name, device)
    learner = Learner(cast(GPT, build(name, context, sizes, device)), TrainConfig(steps=1, optimizer="adamw"), dtype)
    return partial(learner.update, [(inputs, targets)], learner.config.rate)


def build(name: str, context: int, sizes: argparse.Namespace, device: torch.device) -> nn.Module:
    """Return the model of a contender, ready to be trained."""
    shape = {"layers": sizes.layers, "heads": sizes.heads, "width": sizes.width, "context": context}
    plain = name == "plain"
    model = (
        Plain(sizes.vocabulary, **shape) if plain else GPT(ModelConfig(**shape, position="learned"), sizes.vocabulary)
    )
    return model.to(device).train()


def batch(context: int, sizes: argparse.Namespace, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets, (B, T) each."""
    inputs, targets = torch.randint(sizes.vocabulary, (2, sequences(context, sizes), context), device=device)
    return inputs, targets


def sequences(context: int, sizes: argparse.Namespace) -> int:
    """Return how many sequences make up a step, so that every context has about as many tokens."""
    return max(sizes.tokens // context, 1)


def peak(device: torch.device) -> int:
    """Return the most bytes that this process has held so far; on a card, that its tensors have."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # on Linux getrusage would count what the parent held when it began this process
        match = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"), re.M)
        assert match
        return 1024 * int(match[1])
    import resource  # here, since Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS


def kept_bytes(name: str, context: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes a token that autograd keeps of a step's loss, and of the same with attention written out."""
    device = choose_device("auto")
    model: Any = build(name, context, options, device)
    inputs, targets = batch(context, options, device)
    if name == "plain":
        loss: Loss = partial(plain_loss, model)
        return {"kept bytes a token": kept(loss, model, inputs, targets), "written out": "–"}
    within = autocast(device, choose_precision(name, device))
    return {
        "kept bytes a token": kept(fast_loss(model), model, inputs, targets, within),
        "written out": kept(partial(written_out_loss, model), model, inputs, targets, within),
    }


def kept(
    loss: Loss,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    within: Callable[[], AbstractContextManager] = nullcontext,
) -> float:
    """Return the bytes a token that autograd keeps between forward and backward pass, parameters left out."""
    storages: dict[int, torch.UntypedStorage] = {}  # held here, so that no address is given away twice

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with saved_tensors_hooks(keep, lambda x: x), within():
        loss(inputs, targets)
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in storages.values()) / inputs.numel()


def written_out_loss(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return what `model.loss` does, by way of every score and every weight of attention."""
    x = model.embed(inputs)
    for block, _ in model.layers(None):
        x, _ = block.look(x)
    return summed_loss(model.norm(x).flatten(0, 1), model.token.weight, targets.flatten())


def plain_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss as the plain loop takes it."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Draw memory and time a token over the context, a curve a contender, as a PNG."""
    with figure(9, 4) as made:
        contexts = sorted({row["context"] for row in rows})
        for axes, column in zip(made.subplots(1, 2), ("MB", "microseconds a token"), strict=True):
            for name in dict.fromkeys(row["contender"] for row in rows):
                points = sorted((row["context"], row[column]["median"]) for row in rows if row["contender"] == name)
                axes.plot([x for x, _ in points], [y for _, y in points], label=name, marker="o", markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_xticks(contexts, [str(context) for context in contexts])
            axes.set_ylim(bottom=0)
            axes.set(xlabel="context, in tokens", ylabel="peak memory, MB" if column == "MB" else column)
            axes.grid(alpha=0.3)
            axes.legend()
        made.savefig(path, format="png", dpi=110)


if __name__ == "__main__":
    sys.exit(main())
