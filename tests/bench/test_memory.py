"""The measurement of memory: contenders take turns, each alone in its process, and nothing T×T is kept by mistake."""

import argparse
import json
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bench import memory
from tests.conftest import V, make_model

TOY = "--layers 1 --heads 2 --width 64 --vocabulary 500 --tokens 512 --steps 2".split()
SPREAD = ("MB", "times the plain MB", "microseconds a token", "times the plain time")
choose_precision = memory.choose_precision


@pytest.fixture
def auto(monkeypatch):
    """Let `auto` be the precision of that name on whatever machine."""

    def fix(kind: str) -> None:
        def choose(name, device, say=lambda line: None):
            say(f"precision: {kind}")
            return choose_precision(kind if name == "auto" else name, device)

        monkeypatch.setattr(memory, "choose_precision", choose)

    return fix


def measured(path, *arguments):
    assert memory.main([*TOY, *arguments, "--json", str(path)]) == 0
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    figures = [row[column][part] for row in rows for column in SPREAD for part in ("least", "median", "most")]
    figures += [row[column] for row in rows for column in ("kept bytes a token", "written out") if row[column] != "–"]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    return rows


def test_contenders_take_turns_at_every_context(auto, monkeypatch, tmp_path):
    calls = []

    def in_own_process(name, context, options):
        calls.append((context, name))
        return {"MB": 2.0 if name == "plain" else 1.0, "microseconds a token": float(len(calls))}

    monkeypatch.setattr(memory, "in_own_process", in_own_process)
    auto("bf16")
    plot = tmp_path / "memory.png"
    rows = measured(tmp_path / "memory.json", "--contexts", "16", "64", "--repeats", "2", "--plot", str(plot))
    turn = [(context, name) for context in (16, 64) for name in ("bf16", "fp32", "plain")]
    assert calls == 2 * turn
    names = ["malssi, bfloat16", "malssi, float32", "plain loop, float32"]
    assert [(row["context"], row["contender"]) for row in rows] == [(c, name) for c in (16, 64) for name in names]
    assert [row["times the plain MB"]["median"] for row in rows] == 2 * [0.5, 0.5, 1.0]
    assert rows[0]["microseconds a token"] == {"median": 4.0, "least": 1.0, "most": 7.0}
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size < 200_000


@pytest.mark.whole
def test_what_the_parent_holds_does_not_count(auto, tmp_path):
    held = b"." * 2**29
    auto("fp32")  # so that two contenders are left
    rows = measured(tmp_path / "memory.json", "--contexts", "32", "--repeats", "1")
    assert [row["contender"] for row in rows] == ["malssi, float32", "plain loop, float32"]
    assert all(row["MB"]["most"] < len(held) / 1e6 for row in rows)


@pytest.mark.parametrize("name, bytes", [("fp32", 4), ("bf16", 2)])
def test_only_written_out_attention_keeps_more_for_a_longer_context(name, bytes):
    sizes = argparse.Namespace(layers=2, heads=5, width=20, vocabulary=V, tokens=512)
    short, long = (memory.kept_bytes(name, context, sizes) for context in (16, 256))
    assert long["kept bytes a token"] == pytest.approx(short["kept bytes a token"], rel=0.05)
    every_weight = sizes.layers * sizes.heads * bytes  # for each position that a token looks at
    assert long["written out"] - short["written out"] > 0.9 * every_weight * (256 - 16)


def test_the_plain_loop_is_no_stand_in_for_written_out_attention():
    sizes = argparse.Namespace(layers=2, heads=5, width=20, vocabulary=V, tokens=512)
    short, long = (memory.kept_bytes("plain", context, sizes)["kept bytes a token"] for context in (16, 256))
    assert long == pytest.approx(short, rel=0.05)


def test_what_is_kept_counts_once_and_parameters_not_at_all():
    linear = nn.Linear(3, 3, bias=False)
    x = torch.ones(2, 3, requires_grad=True)

    def loss(inputs, targets):
        y = linear(inputs)  # keeps its input and its weight
        return (y * y).sum()  # keeps y twice, at one address

    assert memory.kept(loss, linear, x, x) == (x.nbytes + x.nbytes) / x.numel()


def test_the_loss_written_out_is_the_loss(ids):
    model = make_model()
    assert_close(memory.written_out_loss(model, ids, ids), model.loss(ids, ids))


def test_one_step_is_too_few(capsys):
    with pytest.raises(SystemExit):
        memory.main(["--steps", "1"])
    assert "--steps must be 2 or more" in capsys.readouterr().err
