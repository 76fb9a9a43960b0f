"""A model laid out for writing is the same model."""

import pytest
import torch
from torch.testing import assert_close

from model.fast.writing import for_writing
from tests.conftest import B, T, wide


@pytest.mark.parametrize("position", ["learned", "rotary", "sinusoidal", "none"])
def test_it_gives_the_same_logits_and_leaves_the_original_alone(position, ids):
    model = wide(position=position)
    before = {name: (tensor.clone(), tensor.stride()) for name, tensor in model.state_dict().items()}
    made, cache = for_writing(model), model.empty_cache(B)
    assert_close(made(ids), model(ids), atol=1e-5, rtol=1e-5)
    in_parts = torch.cat([made(part, cache) for part in ids.split([3, 1, 2, 1], dim=1)], dim=1)
    assert_close(in_parts, model(ids), atol=1e-5, rtol=1e-5)
    assert in_parts.size(1) == T
    assert made.blocks[0].attention.qkv.weight.stride(0) == 1 != model.blocks[0].attention.qkv.weight.stride(0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name][0]) and tensor.stride() == before[name][1]


def test_half_precision_is_near():
    model, ids = wide(), torch.randint(31, (2, 7))
    exact, near = model(ids), for_writing(model, torch.bfloat16)(ids).float()
    assert 0 < (exact - near).abs().max() < 0.1 * exact.abs().max()
