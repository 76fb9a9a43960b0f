"""The step in C says what the model it was made of says, and is compiled once, or not at all."""

import os
import shutil
from unittest import mock

import pytest
import torch
from torch.testing import assert_close

from model import native
from model.generate import Choice, generate
from model.native import NativeGPT
from model.packed import PackedGPT, for_writing, packable
from tests.conftest import B, make_model, wide

compiles = pytest.mark.skipif(
    native.sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"
)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing is compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path / "malssi"
    native.library.cache_clear()


@compiles
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("position", ["learned", "rotary", "sinusoidal", "none"])
@pytest.mark.parametrize("more", [{}, {"bias": True, "activation": "gelu_tanh"}, {"width": 80}])
def test_it_equals_the_model(half, position, more, ids):
    model = wide(position=position, **more)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_()
        elif half:  # what bf16 holds, it holds exactly
            parameter.data = parameter.data.bfloat16().float()
    fast, (cache, other) = NativeGPT(model, half), (model.empty_cache(B) for _ in range(2))
    expected = model(ids)
    scale = expected.abs().max().item()
    one_by_one = torch.cat([fast(part, cache) for part in ids.split(1, dim=1)], dim=1)
    in_parts = torch.cat([fast(part, other) for part in ids.split([3, 1, 2, 1], dim=1)], dim=1)
    for logits in (one_by_one, in_parts, fast(ids)):
        assert_close(logits, expected, atol=1e-5 * scale, rtol=0)
    assert cache.length == other.length == ids.size(1)


@compiles
def test_bf16_is_rounded_weights_and_no_more(ids):
    model = wide()
    fast, cache = NativeGPT(model, half=True), model.empty_cache(B)
    logits = torch.cat([fast(part, cache) for part in ids.split(1, dim=1)], dim=1)
    difference = (logits - model(ids)).abs().max() / model(ids).abs().max()
    assert 1e-4 < difference < 0.05


@compiles
def test_keys_and_values_are_rounded_to_bf16_and_no_more(ids):
    model = wide(position="rotary", width=160)  # heads of width 32: both ways through a row of the cache
    fast, other = NativeGPT(model, half=True), NativeGPT(model, half=True)
    cache, exact = fast.empty_cache(B), model.empty_cache(B)
    assert cache[0].room.dtype == torch.bfloat16 and exact[0].room.dtype == torch.float32
    parts = ids.split([2, 1, 1, 1, 1, 1], dim=1)
    logits, expected = (
        torch.cat([one(part, kept) for part in parts], dim=1) for one, kept in ((fast, cache), (other, exact))
    )
    difference = (logits - expected).abs().max() / expected.abs().max()
    assert 1e-5 < difference < 0.02
    for narrow, wide_ in zip(cache, exact, strict=True):
        first = wide_.room[:, :, : ids.size(1)]
        assert_close(narrow.room[:, :, : ids.size(1)].float(), first, atol=0.02 * first.abs().max().item(), rtol=0)
    assert torch.equal(cache[0].room[:, :, :7], exact[0].room[:, :, :7].bfloat16())  # rounded as torch rounds


@compiles
@pytest.mark.parametrize("half", [False, True])
def test_a_batch_writes_what_its_rows_write_alone(half):
    model = NativeGPT(wide(position="rotary"), half)

    def pieces(seeds):
        steps = generate(model, [1, 2], Choice(1.0), [torch.Generator().manual_seed(seed) for seed in seeds])
        return torch.stack([next(steps)[0] for _ in range(40)], dim=1)  # past the context too

    seeds = tuple(range(8))  # more than go through a product together
    together = pieces(seeds)
    assert torch.equal(together, torch.cat([pieces((seed,)) for seed in seeds]))
    assert not torch.equal(together[0], together[1])


@compiles
def test_past_the_context_it_raises_as_the_model_does():
    model = wide()
    fast, cache = NativeGPT(model, half=False), model.empty_cache()
    one = torch.ones(1, 1, dtype=torch.long)
    for _ in range(model.config.context):
        fast(one, cache)
    with pytest.raises(ValueError, match="more than the context"):
        fast(one, cache)


@compiles
def test_it_is_compiled_once(fresh):
    NativeGPT(make_model(), half=False)
    made = list(fresh.iterdir())
    assert len(made) == 1 and made[0].suffix == ".so"
    native.library.cache_clear()
    with mock.patch("subprocess.run", side_effect=AssertionError):
        NativeGPT(make_model(), half=False)


@pytest.mark.parametrize("cause", ["no compiler", "a compiler that fails", "a folder that cannot be made"])
def test_without_it_the_packed_model_writes(cause, fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false")
    if cause == "no compiler":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif cause == "a folder that cannot be made":
        monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    with pytest.raises(OSError):
        NativeGPT(make_model(), half=False)
    model = make_model()
    assert isinstance(for_writing(model), PackedGPT if packable(model) else type(model))
    assert not list(tmp_path.glob("malssi/*"))


def test_only_fp32_on_the_processor():
    for model in (make_model().to("meta"), make_model().to(torch.bfloat16)):
        with pytest.raises(ValueError, match="fp32 on the processor"):
            NativeGPT(model, half=True)
