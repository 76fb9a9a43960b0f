"""A packed model says what the model it was made of says."""

from unittest import mock

import pytest
import torch
from torch.testing import assert_close

from model.generate import Choice, generate
from model.packed import PackedGPT, packable
from tests.conftest import B, make_model, wide

KINDS = [kind for kind in (torch.float32, torch.bfloat16, torch.float16) if packable(make_model(), kind)]


def test_every_kind_is_tried_where_torch_has_it():
    assert torch.float32 in KINDS or not torch.backends.mkldnn.is_available()
    assert torch.float16 in KINDS or "fbgemm" not in torch.backends.quantized.supported_engines


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", ["learned", "rotary", "sinusoidal", "none"])
@pytest.mark.parametrize("more", [{}, {"bias": True, "activation": "gelu_tanh"}])
def test_packed_equals_plain(kind, position, more, ids):
    model = wide(position=position, **more)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_()
    packed, (cache, single) = PackedGPT(model, kind), (model.empty_cache(B) for _ in range(2))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.01}[kind]
    expected = model(ids)
    whole = packed(ids)
    in_parts = torch.cat([packed(part, cache) for part in ids.split([3, 1, 2, 1], dim=1)], dim=1)
    one_by_one = torch.cat([packed(part, single) for part in ids.split(1, dim=1)], dim=1)
    scale = expected.abs().max().item()
    for logits in (whole, in_parts, one_by_one):
        assert logits.dtype == torch.float32
        assert_close(logits, expected, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_writes_what_its_rows_write_alone(kind):
    model = PackedGPT(wide(position="rotary"), kind)

    def pieces(seeds):
        steps = generate(model, [1, 2], Choice(1.0), [torch.Generator().manual_seed(seed) for seed in seeds])
        return torch.stack([next(steps)[0] for _ in range(40)], dim=1)  # past the context too

    together = pieces((3, 4, 5))
    assert torch.equal(together, torch.cat([pieces((seed,)) for seed in (3, 4, 5)]))
    assert not torch.equal(together[0], together[1])


def test_what_cannot_be_packed_says_so():
    with (
        mock.patch("torch.backends.mkldnn.is_available", return_value=False),
        pytest.raises(ValueError, match="cannot pack weights in torch.bfloat16"),
    ):
        PackedGPT(make_model(), torch.bfloat16)
    assert not packable(make_model().to("meta"))
