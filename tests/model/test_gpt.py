"""The model starts without an opinion, at the right scale, and can learn a batch by heart."""

import math

import pytest
import torch
import torch.nn.functional as F
from pytest import approx

from model.config import ModelConfig
from model.gpt import GPT
from tests.conftest import V, make_model


def loss(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("position", ["learned", "rotary", "sinusoidal", "none"])
def test_one_batch_can_be_memorised(position, ids):
    tiny = make_model(position=position)
    inputs, targets = ids[:, :-1], ids[:, 1:]
    assert loss(tiny, inputs, targets).item() == approx(math.log(V), rel=0.1)  # untrained: no opinion yet
    optimizer = torch.optim.AdamW(tiny.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        loss(tiny, inputs, targets).backward()
        optimizer.step()
    assert torch.equal(tiny(inputs).argmax(dim=-1), targets)  # trained: says the batch back


def test_initial_scale_by_role():
    model = GPT(ModelConfig(layers=8, heads=4, width=128, context=64, bias=True), 500)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0, name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        elif name.endswith(("attention.output.weight", "feed_forward.down.weight")):
            assert parameter.std().item() == approx(0.02 / 4, rel=0.05), name  # √(2 · 8 layers) = 4
        else:
            assert parameter.std().item() == approx(0.02, rel=0.05), name


def test_the_head_is_the_embedding(tiny, ids):
    assert not any("head" in name for name in tiny.state_dict())
    before = tiny(ids)
    tiny.token.weight.data[5] += 1
    assert not torch.allclose(tiny(ids)[..., 5], before[..., 5])


def test_parameter_count_by_hand():
    layers, width, context = 2, 20, 16
    matrices = layers * 12 * width**2 + (V + context) * width
    assert make_model(position="learned").parameter_count == matrices + (2 * layers + 1) * width
    biases = layers * (3 + 1 + 4 + 1) * width + (2 * layers + 1) * width
    assert make_model(position="learned", bias=True).parameter_count == matrices + (2 * layers + 1) * width + biases


def test_more_tokens_than_the_context_are_refused(tiny):
    with pytest.raises(ValueError, match="17 tokens are more than the context of 16"):
        tiny(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"width": 10, "heads": 3}, "multiple of heads"),
        ({"width": 15, "heads": 5, "position": "rotary"}, "even width of a head"),
        ({"width": 15, "heads": 5, "position": "sinusoidal"}, "even width"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**changes)


def test_gelu_kinds_differ(ids):
    torch.manual_seed(3)
    exact = make_model(activation="gelu")
    tanh = make_model(activation="gelu_tanh")
    tanh.load_state_dict(exact.state_dict())
    for model in (exact, tanh):
        model.token.weight.data.mul_(50)
    assert not torch.equal(exact(ids), tanh(ids))
