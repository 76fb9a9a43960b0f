"""Writing speed of one stream and of many, against a plain loop without a cache and transformers' GPT-2 with its own.

python -m bench.sampling
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.measure import add_shape, in_turn, parser, ratios, report, seconds, spread
from bench.plain import Plain, plain_sample, transformers_gpt2
from machine.device import choose_device
from model.config import ModelConfig
from model.fast.writing import for_writing
from model.generate import Choice, generate
from model.gpt import GPT


def main(arguments: list[str] | None = None) -> int:
    """Let every contender write so many tokens in turn."""
    flags = parser(__doc__)
    add_shape(flags, layers=6, heads=6, width=384, context=256, vocabulary=4096, tokens=256, count=16)
    flags.add_argument("--position", choices=("learned", "rotary"), default="learned", help="of this project (learned)")
    options = flags.parse_args(arguments)
    if options.tokens > options.context:
        flags.error("transformers' GPT-2 cannot write past its context: lower --tokens")
    device = choose_device("auto")
    torch.manual_seed(1)
    shape = {"layers": options.layers, "heads": options.heads, "width": options.width, "context": options.context}
    gpt = GPT(ModelConfig(**shape, position=options.position), options.vocabulary).to(device).eval()

    def in_kind(kind: torch.dtype) -> Any:
        return for_writing(gpt, kind)

    mark = torch.ones(1, 1, dtype=torch.long, device=device)

    def ours(model: Any, count: int) -> None:
        # One token in place of the mark, and no choice but the temperature, as the peers do.
        generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
        steps = generate(model, [1], Choice(temperature=1.0), generators)
        for _ in range(options.tokens):
            next(steps)

    def plain() -> None:
        plain_sample(peer, mark, options.tokens, options.context)

    def cached() -> None:
        library.generate(
            mark, max_new_tokens=options.tokens - 1, min_new_tokens=options.tokens - 1, do_sample=True, top_k=0,
            pad_token_id=0, use_cache=True,
        )  # fmt: skip

    peer = Plain(options.vocabulary, **shape).to(device).eval()
    library: Any = transformers_gpt2(options.vocabulary, **shape).to(device).eval()
    best = "malssi, float32 weights"
    tasks: dict[str, tuple[int, Callable[[], None]]] = {
        f"malssi, {name} weights" + (f", {count} at once" if count > 1 else ""): (
            count,
            partial(ours, in_kind(getattr(torch, name)), count),
        )
        for name in ("float32", "bfloat16")
        for count in (1, options.count)
    }
    tasks |= {
        "plain loop, float32, no cache": (1, plain),
        "transformers GPT-2, float32, its cache": (1, cached),
    }

    def rate(count: int, task: Callable[[], None]) -> float:
        return count * options.tokens / seconds(task)

    # What a step must at least read: every weight once. The memory's rate is that of adding up a long vector.
    long = torch.ones(64 * 2**20 if options.width > 64 else 2**16, device=device)
    weights = sum(parameter.numel() for parameter in gpt.parameters()) * 2

    def limit() -> float:
        return long.numel() * long.element_size() / min(seconds(lambda: long.sum().item()) for _ in range(3)) / weights

    for _, task in tasks.values():
        task()
    rates: dict[str, Callable[[], float]] = {name: partial(rate, *task) for name, task in tasks.items()}
    found = in_turn({"limit": limit, **rates}, options.repeats)
    rows = [
        {
            "contender": name,
            "tokens a second": spread(found[name]),
            "times no cache": ratios(found[name], found["plain loop, float32, no cache"]),
            "times transformers": ratios(found[name], found["transformers GPT-2, float32, its cache"]),
            "times one stream": ratios(found[name], found[name.split(f", {options.count} at once")[0]]),
        }
        for name in tasks
    ]
    report(
        f"Writing {options.tokens} tokens", rows, options, memory_limit_tokens_a_second=spread(found["limit"]),
        share_of_the_memory_limit=ratios(found[best], found["limit"]),
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
