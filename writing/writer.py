"""From a prompt to text: the model chooses tokens, this turns them into characters and knows when to stop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from data.read import clean
from data.tokenizer import MARK, UNKNOWN, Stream, Tokenizer
from model.fast.writing import for_writing
from model.generate import Choice, generate
from model.gpt import GPT

WORTH_THREADS = 32_000_000  # weights times texts; below, one thread is as fast as two (docs/speed.md)
DEFAULT = Choice(temperature=0.6, top_p=0.8, repetition_penalty=1.1)  # of sample.py


@dataclass
class Continuation:
    """One continuation of a prompt while it grows."""

    prompt: str  # as `clean` returns it
    ids: list[int]  # of the prompt, the mark first; new tokens follow
    seed: int
    completion: str = ""
    log_probabilities: list[float] = field(default_factory=list)  # natural, one a new token
    next: list[list[dict[str, Any]]] = field(default_factory=list)  # each step's likeliest tokens
    stopped: str | None = None  # end, stop or tokens
    unfinished: bool = False  # whether the last character was left out, its bytes incomplete


class Writer:
    """Writes on from prompts with one model and its tokenizer."""

    def __init__(self, model: GPT, tokenizer: Tokenizer, dtype: torch.dtype = torch.float32) -> None:
        """dtype: of weights and arithmetic."""
        self.model = for_writing(model, dtype)
        self.tokenizer = tokenizer

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return what the model reads for `prompt`: the document mark, then its tokens."""
        return [MARK, *self.tokenizer.encode(clean(prompt))]

    def write(
        self,
        prompt: str,
        tokens: int,
        choice: Choice,
        seeds: list[int],
        stops: tuple[str, ...] = (),
        no_stop: bool = False,
        show_next: int = 0,
        say: Callable[[Continuation, str], None] = lambda continuation, text: None,
    ) -> list[Continuation]:
        """Return a continuation of `prompt` for each seed, all written at once.

        Each ends at the document mark (unless `no_stop`, where a blank line stands for it), before the first of the
        texts `stops`, or after `tokens` tokens. `say` is given each stretch of new text as soon as it is certain.
        """
        ids = self.prompt_ids(prompt)
        texts = [Continuation(clean(prompt), list(ids), seed) for seed in seeds]
        endings = [Ending(self.tokenizer, ids, tuple(clean(stop) for stop in stops)) for _ in seeds]
        generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        steps = generate(self.model, ids, choice, generators, banned=(UNKNOWN,))
        with threads_for(len(seeds) * self.model.parameter_count):
            for _ in range(tokens):
                if all(text.stopped for text in texts):
                    break
                chosen, logits = next(steps)
                log_probabilities = logits.log_softmax(dim=1).gather(1, chosen[:, None])[:, 0].tolist()
                for row, (text, ending) in enumerate(zip(texts, endings, strict=True)):
                    if text.stopped:
                        continue
                    token = int(chosen[row])
                    if show_next:
                        text.next.append(self.likeliest(logits[row], show_next))
                    if token == MARK and not no_stop:
                        text.stopped = "end"
                        continue
                    text.ids.append(token)
                    text.log_probabilities.append(log_probabilities[row])
                    new = ending.add(token)
                    text.completion += new
                    say(text, new)
                    if ending.found:
                        text.stopped = "stop"
        for text, ending in zip(texts, endings, strict=True):
            rest = ending.rest()
            text.completion += rest
            say(text, rest)
            text.stopped = text.stopped or "tokens"
            text.unfinished = ending.unfinished
        return texts

    def likeliest(self, logits: Tensor, count: int) -> list[dict[str, Any]]:
        """Return the `count` likeliest tokens by the model's own probabilities, before any setting: (V,) -> list."""
        top = logits.double().softmax(dim=0).topk(min(count, logits.numel()))
        return [
            {"id": id, "token": self.tokenizer.token(id), "probability": probability}
            for probability, id in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Compute with one thread within where a step multiplies so few `numbers` that threads wait longer than they work.

    A waiting thread needs its core: where that is busy with something else, each product waits for it.
    """
    before = torch.get_num_threads()
    if numbers < WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Ending:
    """Turns tokens into text, and holds back what may yet become one of the stop texts."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], stops: tuple[str, ...]) -> None:
        self._stream = Stream(tokenizer)
        for id in prompt_ids:  # so that the first new token knows whether a line starts with it
            self._stream.add(id)
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def add(self, token: int) -> str:
        """Return the text that `token` makes certain."""
        self._held += "\n\n" if token == MARK else ""
        self._held += self._stream.add(token)
        places = [at for at in map(self._held.find, self._stops) if at >= 0]
        if places:
            self.found = True
            text, self._held = self._held[: min(places)], ""
            return text
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def rest(self) -> str:
        """Return what is still held back, once no more tokens come."""
        text, self._held = self._held, ""
        return text

    @property
    def unfinished(self) -> bool:
        """Whether the bytes of a last character are incomplete."""
        return not self.found and self._stream.unfinished


def overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` are the beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
