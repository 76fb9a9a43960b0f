"""Shape, batch and rate for a text, a machine and so many minutes: a short timing, and a rule found from runs.

The rule is a fit of what runs on film reviews reached (docs/speed.md): bits per character fall with the parameters and
with the tokens seen, each to a power (Hoffmann et al. 2022, "Training compute-optimal large language models", eq. 2),
and with the layers, of which two are few. A larger model sees fewer tokens in the same time, how many fewer is what the
timing finds out.
"""

import math
import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from data.batches import Windows
from data.prepare import Prepared
from data.tokenizer import MARK
from machine.device import Say, choose_device, choose_precision
from machine.memory import free_memory
from model.config import ModelConfig
from model.gpt import GPT
from run.config import Config
from training.estimate import sequences_at_once
from training.learner import Learner

CHOSEN = (
    "model.layers", "model.heads", "model.width", "model.context", "model.dropout", "train.batch_size",
    "train.learning_rate",
)  # fmt: skip
LADDER = ((2, 96), (2, 128), (3, 128), (4, 128), (3, 192), (4, 192), (4, 256), (6, 256), (6, 384), (8, 512), (12, 768))
CONTEXTS = range(64, 257, 16)
SAMPLE, HELD, FILLED = 2**18, 0.95, 0.95  # tokens looked at, share of documents held whole, and of a window filled
MINUTES = 5.0  # where a run is measured in steps
LEAST_STEP, MOST_STEPS = 1024, 5000  # tokens a step, and steps beyond which a step takes more tokens
MOST_OF_TEXT = 5  # parameters for each token of the text
TIMED_SECONDS = 0.5  # for each shape
MEMORY_USED = 0.7  # of what is free
FLOOR, OF_SIZE, SIZE_POWER, OF_TOKENS, TOKENS_POWER, OF_LAYERS = 2.423, 0.913, 0.1, 0.785, 0.38, 0.222  # in millions
REPEATS = 15.4  # passes over a text after which another teaches little
DROPOUT = ((5, 0.0), (16, 0.1), (math.inf, 0.2))  # up to so many passes, against learning a text by heart


def choose(config: Config, prepared: Prepared, say: Say) -> Config:
    """Return `config` with shape, batch and rate chosen, as an ordinary one."""
    minutes = config.train.minutes or MINUTES
    device = choose_device(config.device)
    dtype = choose_precision(config.precision, device)
    memory = MEMORY_USED * free_memory(device)
    context, vocab_size = context_for(prepared), prepared.tokenizer.vocab_size
    found: list[tuple[float, Config]] = []
    for layers, width in LADDER:
        shape = replace(config.model, layers=layers, width=width, heads=max(width // 64, 4), context=context)
        model_size = parameters(shape, vocab_size)
        if found and model_size > MOST_OF_TEXT * prepared.train.targets:
            break  # the fit knows nothing of a text so small that a model can learn it by heart
        step = LEAST_STEP
        while True:
            batch = math.ceil(step / context)
            at_once = sequences_at_once(shape, model_size, vocab_size, batch, dtype, device, memory)
            if not at_once:
                break
            rate = tokens_per_second(replace(config, model=shape), vocab_size, step, at_once, device, dtype)
            tokens = 60 * minutes * rate
            if tokens <= MOST_STEPS * step:
                break
            step *= 2  # larger steps are faster too, so that they are timed anew
        if not at_once:
            say(f"auto: {layers} layers of width {width} need more than the {memory / 1e9:.1f} GB that may be used")
            break
        figure = predicted(model_size, layers, tokens, prepared.train.targets)
        say(f"auto: {layers} layers of width {width}: {tokens:,.0f} tokens in {minutes:g} minutes, fit {figure:.3f}")
        train = replace(config.train, batch_size=batch, micro_batch_size=at_once if at_once < batch else None)
        shape = replace(shape, dropout=dropout_for(tokens / prepared.train.targets))
        found.append((figure, replace(config, auto=False, model=shape, train=train)))
        if len(found) > 2 and min(figure for figure, _ in found[:-2]) < min(figure for figure, _ in found[-2:]):
            break  # it has only become worse twice
    if not found:
        raise ValueError("auto: not even the smallest model fits into the free memory: end other programs first")
    _, best = min(found, key=lambda entry: entry[0])
    say(
        f"auto: {best.model.layers} layers, {best.model.heads} heads, width {best.model.width}, context {context}, "
        f"dropout {best.model.dropout:g}, batch {best.train.batch_size}, rate {best.train.rate:g}"
    )
    return best


def tokens_per_second(
    config: Config, vocab_size: int, step: int, at_once: int, device: torch.device, dtype: torch.dtype
) -> float:
    """Return how fast this machine trains such a model, by a few steps of so many random tokens."""
    learner = Learner(GPT(config.model, vocab_size).to(device), config.train, dtype)
    shape = (2, max(step // config.model.context, 1), config.model.context)
    inputs, targets = torch.randint(vocab_size, shape, device=device)
    batches = list(zip(inputs.split(at_once), targets.split(at_once), strict=True))
    seconds: list[float] = []
    while len(seconds) < 4 or sum(seconds[1:]) < TIMED_SECONDS:
        started = time.perf_counter()
        learner.update(batches, config.train.rate)
        seconds.append(time.perf_counter() - started)
    return inputs.numel() / statistics.median(seconds[1:])  # the first step pays for what the others find ready


def dropout_for(passes: float) -> float:
    """Return the dropout for so many passes over the text."""
    return next(dropout for most, dropout in DROPOUT if passes <= most)


def context_for(prepared: Prepared) -> int:
    """Return the shortest context that holds most documents whole and leaves little of a window to fill otherwise.

    Where none does, the one that is filled best; where documents are longer than any, the longest.
    """
    ids = np.asarray(prepared.train.ids[:SAMPLE])
    marks = np.flatnonzero(ids == MARK)
    lengths = np.diff(marks)
    if not len(lengths):
        return CONTEXTS[-1]

    def filled(context: int) -> float:
        windows = Windows(ids[: marks[-1] + 1], context, seed=0).windows(epoch=0)
        return lengths.sum() / (context * sum(1 for _ in windows))

    holding = [each for each in CONTEXTS if np.quantile(lengths, HELD) <= each <= marks[-1]]
    return max(holding, key=lambda context: min(filled(context), FILLED), default=CONTEXTS[-1])


def parameters(shape: ModelConfig, vocab_size: int) -> int:
    """Return the parameters of a model of this shape, nothing of it made."""
    with torch.device("meta"):
        return GPT(shape, vocab_size).parameter_count


def predicted(parameters: float, layers: int, tokens: float, text: float) -> float:
    """Return the bits per character that the fit gives.

    text: tokens there are; those seen again count for less (Muennighoff et al. 2023, eq. 5, R* = 15.4).
    """
    passes = tokens / text
    fresh = tokens if passes <= 1 else text * (1 + REPEATS * (1 - math.exp((1 - passes) / REPEATS)))
    by_size, by_tokens = (parameters / 1e6) ** -SIZE_POWER, (fresh / 1e6) ** -TOKENS_POWER
    return FLOOR + OF_SIZE * by_size + OF_LAYERS / layers + OF_TOKENS * by_tokens
