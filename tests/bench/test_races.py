"""Each measurement runs at toy size and reports what it says; none asserts seconds."""

import json
import math
import os

import pytest
import torch

from bench import measure, quality, sampling, throughput, time_to_quality
from bench.plain import Plain, cosine, plain_sample, plain_step, random_windows
from tests.conftest import PROJECT, sentences

TOY = "--layers 1 --heads 2 --width 16 --context 8 --vocabulary 40 --repeats 2".split()

TOY_CONFIG = """
model: {layers: 1, heads: 2, width: 16, context: 16, position: rotary}
tokenizer: {vocab_size: 330}
train: {steps: 30, batch_size: 8, optimizer: muon, learning_rate: 1e-2}
precision: fp32
compile: "off"
"""


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(sentences(200)) + "\n", encoding="utf-8")
    (tmp_path / "toy.yaml").write_text(TOY_CONFIG, encoding="utf-8")
    return path


def figures(path):
    """Return the rows of a report, every number of which is one."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert {"processor", "cores", "torch", "commit", "python"} <= set(content["machine"])
    for row in content["rows"]:
        for name, value in row.items():
            if isinstance(value, dict):
                assert 0 < value["least"] <= value["median"] <= value["most"] < math.inf, (name, value)
    return content, {next(iter(row.values())): row for row in content["rows"]}


@pytest.mark.whole
def test_throughput(tmp_path, capsys):
    throughput.main([*TOY, "--batch", "2", "--steps", "1", "--product", "16", "--json", str(tmp_path / "t.json")])
    content, rows = figures(tmp_path / "t.json")
    assert len(rows) == 4
    assert rows["plain loop, float32, AdamW"]["times the plain loop"] == {"median": 1, "least": 1, "most": 1}
    assert content["flops_a_token"] == 6 * (40 * 16 + 12 * 16 * 16 + 3 * 16) + 12 * 1 * 16 * 8
    assert "| malssi" in capsys.readouterr().out


@pytest.mark.whole
def test_sampling(tmp_path):
    sampling.main([*TOY, "--tokens", "8", "--count", "3", "--json", str(tmp_path / "s.json")])
    content, rows = figures(tmp_path / "s.json")
    assert len(rows) == 6 and sum("3 at once" in name for name in rows) == 2
    assert rows["transformers GPT-2, float32, its cache"]["times transformers"]["median"] == 1
    assert content["share_of_the_memory_limit"]["median"] > 0


@pytest.mark.whole
def test_time_to_quality(lines, tmp_path):
    arguments = ["--text", lines, "--config", tmp_path / "toy.yaml", "--vocabulary", 330, "--repeats", 1]
    more = ["--target", 5.5, "--measure-every", 5, "--plain-steps", 60, "--json", tmp_path / "q.json"]
    time_to_quality.main([str(part) for part in [*arguments, *more]])
    _, rows = figures(tmp_path / "q.json")
    assert set(rows) == {"toy.yaml", "plain recipe"}
    for row in rows.values():
        assert row["seconds to the target"]["median"] < row["seconds of the whole run"]["median"]
    with pytest.raises(ValueError, match="0.1 was not reached: "):
        time_to_quality.main([str(part) for part in [*arguments, *more, "--target", 0.1]])


def test_the_target_is_passed_between_two_measurements():
    race = [(float(step), lambda step=step: 10.0 - step) for step in range(1, 9)]
    assert time_to_quality.run(iter(race), 6.5, measure_every=2) == (3.5, 8.0)
    assert time_to_quality.run(iter(race), 9.0, measure_every=2) == (2.0, 8.0)  # at once: not before it was measured


@pytest.mark.whole
def test_quality(lines, tmp_path):
    arguments = ["--text", lines, "--validation", lines, "--config", tmp_path / "toy.yaml", "--vocabulary", 330]
    more = ["--minutes", 0.02, "--rates", 1e-3, 1e-2, "--json", tmp_path / "q.json"]
    quality.main([str(part) for part in [*arguments, *more]])
    _, rows = figures(tmp_path / "q.json")
    assert set(rows) == {"toy.yaml", "plain loop at 0.001", "plain loop at 0.01"}
    assert min(row["against the best plain loop"]["median"] for name, row in rows.items() if "plain" in name) == 1


def test_the_plain_loop_learns_and_is_the_textbooks_model():
    torch.manual_seed(0)
    model = Plain(31, layers=2, heads=5, width=20, context=16)
    inputs, targets = torch.randint(31, (2, 3, 7))
    changed = inputs.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 31
    assert torch.allclose(model(inputs)[:, :4], model(changed)[:, :4])
    step = plain_step(model)
    losses = [step(inputs, targets, 1e-2) for _ in range(100)]
    assert losses[0] == pytest.approx(math.log(31), rel=0.1) and losses[-1] < 0.1
    assert plain_sample(model, inputs[:1], 20, 16).shape == (1, 27)


def test_windows_and_rates_of_the_plain_loop():
    ids = torch.arange(100).numpy()
    inputs, targets = random_windows(ids, 500, 8, torch.Generator().manual_seed(0))
    assert (targets == inputs + 1).all() and inputs.min() == 0 and targets.max() == 99
    assert cosine(0.05, 1.0, 0.1, 0.05) == 1.0 and cosine(1.0, 1.0, 0.1, 0.05) == pytest.approx(0.1)
    assert 0 < cosine(0.0, 1.0, 0.1, 0.05) < 0.01


def counter(start):
    """Return what counts on, and says in which process."""
    counts = iter(range(start, 99))
    return lambda: (next(counts), os.getpid())


def test_a_task_apart_lives_on_in_a_process_of_its_own():
    one, other = measure.Apart(counter, 5), measure.Apart(counter, 7)
    (a, first), (b, again), (c, second) = one(), one(), other()
    assert (a, b, c) == (5, 6, 7)
    assert first == again != second and os.getpid() not in (first, second)


def test_spreads_and_turns():
    order = []
    found = measure.in_turn({"a": lambda: order.append("a") or 1.0, "b": lambda: order.append("b") or 2.0}, 2)
    assert order == ["a", "b", "a", "b"] and found == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert measure.spread([3.0, 1.0, 2.0]) == {"median": 2, "least": 1, "most": 3}
    assert measure.ratios([2.0, 9.0], [1.0, 3.0]) == {"median": 2.5, "least": 2, "most": 3}
    assert measure.shown({"median": 1234.0, "least": 0.5, "most": 2000.0}) == "1,234 (0.5–2,000)"


def test_quick_is_a_config_like_any_other():
    from run.config import read_config

    assert read_config(PROJECT / "configs" / "quick.yaml").train.steps == 540
