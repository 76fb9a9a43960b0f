"""Choosing the next token: exact at the edges, the same with and without a cache, in a batch and alone."""

import pytest
import torch
from torch.testing import assert_close

from model.generate import Choice, draw, generate, probabilities
from tests.conftest import V, make_model, wide

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, 2.5], [0.0, 0.0, 3.0, 0.0, 0.0]])


GREEDY = Choice(temperature=0)


def run(model, prompt, steps, choice=GREEDY, seeds=(0,), **more):
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    steps_of = generate(model, prompt, choice, generators, **more)
    pairs = [next(steps_of) for _ in range(steps)]
    return torch.stack([tokens for tokens, _ in pairs], dim=1), torch.stack([logits for _, logits in pairs], dim=1)


@pytest.mark.parametrize("position", ["learned", "rotary", "sinusoidal", "none"])
@pytest.mark.parametrize("length", [1, 5, 15, 16, 17, 50])
def test_cached_equals_uncached_past_the_context(position, length):
    model = wide(position=position)
    prompt = [(7 * index) % V for index in range(length)]
    for choice in (Choice(temperature=0), Choice(temperature=1.5)):
        tokens, logits = run(model, prompt, 40, choice)
        plain_tokens, plain_logits = run(model, prompt, 40, choice, cached=False)
        assert torch.equal(tokens, plain_tokens)
        assert_close(logits, plain_logits, atol=1e-4, rtol=1e-5)
    assert len(tokens.unique()) > 5


def test_past_the_context_the_newest_half_is_read_again():
    model = wide()
    prompt = list(range(16))
    tokens, logits = run(model, prompt, 2)
    newest = torch.tensor([[*prompt, int(tokens[0, 0])][-8:]])
    assert_close(logits[0, 1], model(newest)[0, -1])


def test_a_batch_gives_what_its_rows_give_alone():
    model = wide()
    choice = Choice(temperature=1.0, top_k=20, top_p=0.95, repetition_penalty=1.1)
    together, logits = run(model, [1, 2], 30, choice, seeds=(5, 6, 7))
    for row, seed in enumerate((5, 6, 7)):
        alone, alone_logits = run(model, [1, 2], 30, choice, seeds=(seed,))
        assert torch.equal(together[row], alone[0])
        assert_close(logits[row], alone_logits[0], atol=1e-4, rtol=1e-5)
    assert not torch.equal(together[0], together[1])


def test_temperature_zero_is_greedy_for_every_seed():
    model = wide()
    assert torch.equal(run(model, [1], 20, seeds=(1,))[0], run(model, [1], 20, seeds=(2,))[0])
    assert probabilities(LOGITS, Choice(temperature=0)).tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [5e-324, 1e-8, 1.0, 1e8])
def test_no_temperature_gives_nan(temperature):
    p = probabilities(LOGITS, Choice(temperature=temperature))
    assert_close(p.sum(dim=1), torch.ones(2, dtype=torch.float64))
    if temperature < 1e-3:
        assert p[0, 4] == 1


def test_plain_probabilities_are_the_softmax():
    assert_close(probabilities(LOGITS, Choice(temperature=2)), (LOGITS.double() / 2).softmax(dim=1))


def test_top_k():
    p = probabilities(LOGITS, Choice(temperature=1, top_k=2))
    assert (p[0] > 0).tolist() == [True, False, False, False, True]
    assert_close(probabilities(LOGITS, Choice(temperature=1, top_k=99)), LOGITS.double().softmax(dim=1))


def test_top_p_keeps_the_fewest_that_reach_it():
    p = probabilities(LOGITS, Choice(temperature=1, top_p=0.6))
    assert (p[0] > 0).tolist() == [True, False, False, False, True]
    assert (probabilities(LOGITS, Choice(temperature=1, top_p=1e-9)) > 0).sum().item() == 2  # one a row


def test_repetition_penalty_weakens_what_was_seen():
    seen = torch.tensor([[False, False, False, True, True], [False] * 5])
    p, plain = (probabilities(LOGITS, Choice(temperature=1, repetition_penalty=r), seen) for r in (2.0, 1.0))
    assert p[0, 4] < plain[0, 4] and p[0, 3] < plain[0, 3]
    assert_close(p[1], plain[1])


def test_draws_follow_the_probabilities():
    p = torch.tensor([[0.5, 0.0, 0.3, 0.2]], dtype=torch.float64).repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)
    counts = draw(p, [generator] * 4000).bincount(minlength=4)
    assert counts[1] == 0
    assert_close(counts / 4000, torch.tensor([0.5, 0.0, 0.3, 0.2]), atol=0.03, rtol=0)


def test_banned_tokens_are_never_drawn():
    tokens, _ = run(make_model(), [1], 200, Choice(temperature=5), seeds=(1,), banned=tuple(range(1, V)))
    assert (tokens == 0).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"repetition_penalty": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad)).replace("_", "-")):
        Choice(**bad)
