"""Writing on: choose the next token, append it, go on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from model.cache import Cache
from model.gpt import GPT

LIKELIEST = 256  # tokens that make up any usual top-p together


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen from the model's probabilities."""

    temperature: float = 0.8  # divides the logits; 0 takes the likeliest, whatever the seed
    top_k: int = 0  # keep only the k likeliest; 0 is off
    top_p: float = 1.0  # keep the fewest likeliest that reach this probability together; 1 is off
    repetition_penalty: float = 1.0  # weakens tokens that stand in the text already; 1 is off

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top-k must be 0 or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must be above 0 and at most 1, not {self.top_p}")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise ValueError(f"repetition-penalty must be 0.01 to 100, not {self.repetition_penalty}")


def probabilities(logits: Tensor, choice: Choice, seen: Tensor | None = None) -> Tensor:
    """Return the probabilities that the next token is drawn from, in float64, each row summing to one.

    logits: (B, V); seen: (B, V), True for tokens that stand in the text already. Returns (B, V).
    """
    logits = logits.double()
    if seen is not None and choice.repetition_penalty != 1:  # Keskar et al. 2019 (CTRL), section 4.1
        weakened = torch.where(logits > 0, logits / choice.repetition_penalty, logits * choice.repetition_penalty)
        logits = torch.where(seen, weakened, logits)
    if choice.temperature == 0:
        return torch.zeros_like(logits).scatter(1, logits.argmax(dim=1, keepdim=True), 1.0)
    # Taking the largest away first, so that no temperature, however small, overflows.
    logits = logits.sub(logits.amax(dim=1, keepdim=True)).div_(choice.temperature)
    # Only the likeliest are put in order: a full sort would take longer than a small model's own work.
    count = min(choice.top_k or (LIKELIEST if choice.top_p < 1 else 0), logits.size(1))
    p = logits.softmax(dim=1)
    if not count:
        return p
    ordered, order = p.topk(count)
    if not choice.top_k and (ordered.sum(dim=1) < choice.top_p).any():
        ordered, order = p.sort(dim=1, descending=True, stable=True)
    if choice.top_k:
        ordered = ordered / ordered.sum(dim=1, keepdim=True)
    if choice.top_p < 1:  # Holtzman et al. 2019: the first always stays, whatever top_p is
        ordered = ordered.masked_fill(ordered.cumsum(dim=1) - ordered >= choice.top_p, 0.0)
        ordered = ordered / ordered.sum(dim=1, keepdim=True)
    return torch.zeros_like(p).scatter_(1, order, ordered)


def draw(p: Tensor, generators: list[torch.Generator]) -> Tensor:
    """Draw one token a row, each row from its own CPU generator: (B, V) -> (B,).

    By the inverse of the cumulative sum in float64: rounding in the logits moves the border between two tokens by
    as little, so that a batch gives the tokens that its rows give one by one.
    """
    u = torch.cat([torch.rand(1, 1, dtype=torch.float64, generator=generator) for generator in generators])
    cumulative = p.cpu().cumsum(dim=1)
    at = u * (1 - 2**-50) * cumulative[:, -1:]  # short of the end, however it is rounded
    return torch.searchsorted(cumulative, at, right=True).squeeze(1)


def finite(numbers: Tensor) -> Tensor:
    """Return `numbers`, logits or losses; raise ArithmeticError where one of them is NaN or infinite."""
    if not numbers.isfinite().all():
        raise ArithmeticError("the weights give no finite numbers (NaN or infinity): train anew, or use another run")
    return numbers


@torch.inference_mode()
def generate(
    model: GPT,
    prompt: list[int],
    choice: Choice,
    generators: list[torch.Generator],
    banned: tuple[int, ...] = (),
    cached: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield step after step without end: the next token of each of B continuations of `prompt`, and the logits.

    Yields ((B,), (B, V)), on the CPU, B being the number of generators, one a continuation. Past the context the
    newest half is kept and read again from position 0, with a cache and without; of a longer prompt the end is read.
    banned: ids never drawn. The model should be in evaluation mode.
    """
    device = model.device
    context, B = model.config.context, len(generators)
    never, rows = torch.tensor(banned, dtype=torch.long), torch.arange(B)
    seen = torch.zeros(B, model.vocab_size, dtype=torch.bool)
    seen[:, prompt] = True
    read = [torch.tensor([prompt[-context:]] * B, device=device)]  # (B, …) each, what the model sees
    cache: Cache | None = model.empty_cache(B) if cached else None
    unread, length = read[0], read[0].size(1)
    while True:
        logits = finite(model(unread, cache)[:, -1].float().cpu())  # (B, V)
        allowed = logits.index_fill(1, never, -torch.inf) if banned else logits
        tokens = draw(probabilities(allowed, choice, seen), generators)
        yield tokens, logits
        if choice.repetition_penalty != 1:
            seen[rows, tokens] = True
        read.append(tokens.to(device)[:, None])
        length += 1
        unread = read[-1] if cached else torch.cat(read, dim=1)
        if length > context:
            unread = torch.cat(read, dim=1)[:, -max(context // 2, 1) :]
            read, length = [unread], unread.size(1)
            cache = model.empty_cache(B) if cached else None
