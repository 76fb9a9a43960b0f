"""What auto chooses follows the time, the machine and the text, and is an ordinary config once chosen."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from data.tokenizer import MARK
from run.config import TrainConfig, read_config
from tests.conftest import PROJECT, door, sentences
from training import auto

CONFIG = read_config(PROJECT / "configs" / "auto.yaml")


def text(tokens=5_000_000, documents=200_000):
    ids = np.full(min(tokens, auto.SAMPLE) + 1, 5)
    ids[:: max(tokens // documents, 2)] = MARK
    return SimpleNamespace(
        tokenizer=SimpleNamespace(vocab_size=4096), train=SimpleNamespace(targets=tokens, documents=documents, ids=ids)
    )


def choose(monkeypatch, minutes, speed=1.0, **about):
    """Choose on a machine that does so many operations a second as a laptop of two cores, times `speed`."""

    def rate(config, vocab_size, step, *_):
        return speed * 2e11 / (6 * auto.parameters(config.model, vocab_size))

    monkeypatch.setattr(auto, "tokens_per_second", rate)
    config = replace(CONFIG, train=replace(CONFIG.train, minutes=minutes))
    return auto.choose(config, text(**about), lambda line: None)


def size(config):
    return auto.parameters(config.model, 4096)


def test_more_time_or_a_faster_machine_gives_a_larger_model(monkeypatch):
    sizes = [size(choose(monkeypatch, minutes)) for minutes in (0.5, 3, 20, 120)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert size(choose(monkeypatch, 3, speed=40)) == sizes[-1]  # the same tokens of the same cost


def test_the_context_holds_documents_whole_and_fills_its_windows(monkeypatch):
    found = [choose(monkeypatch, 3, documents=5_000_000 // mean).model.context for mean in (20, 64, 65, 87, 200, 5000)]
    assert found == [80, 64, 208, 176, 208, 256]
    mixed = np.full(100_000, 5)  # nine of ten documents have 30 tokens, each tenth 100
    mixed[np.cumsum([0, *([*[30] * 9, 100] * 270)])] = MARK
    assert auto.context_for(SimpleNamespace(train=SimpleNamespace(ids=mixed[:99_901]))) == 160  # 100 and twice 30


def test_long_runs_take_more_tokens_a_step(monkeypatch):
    for minutes in (1, 10, 100):
        chosen = choose(monkeypatch, minutes)
        step = chosen.train.batch_size * chosen.model.context
        tokens = 60 * minutes * 2e11 / (6 * size(chosen))
        assert step >= 1024 and tokens / step <= 5000
        assert step == 1024 or tokens / (step / 2) > 5000


def test_a_text_seen_often_is_kept_from_being_learned_by_heart(monkeypatch):
    found = [choose(monkeypatch, 3, tokens=tokens).model.dropout for tokens in (50_000_000, 500_000, 100_000)]
    assert found == [0.0, 0.1, 0.2]


def test_the_fit_falls_with_size_and_tokens_and_less_with_text_seen_again():
    def at(parameters, tokens, text, layers=2):
        return auto.predicted(parameters, layers, tokens, text)

    assert at(2e6, 1e6, 1e9) < at(1e6, 1e6, 1e9) > at(1e6, 1e6, 1e9, layers=3)
    assert at(1e6, 2e6, 1e9) < at(1e6, 1e6, 1e9)
    assert at(1e6, 2e6, 1e9) < at(1e6, 2e6, 1e5) < at(1e6, 1e6, 1e5)
    assert at(1e6, 1e5, 1e5) == at(1e6, 1e5, 1e9)  # once each


def test_a_small_text_gets_a_small_model(monkeypatch):
    sizes = [size(choose(monkeypatch, 60, tokens=tokens, documents=1000)) for tokens in (10_000, 200_000, 5_000_000)]
    assert sizes[0] == size(choose(monkeypatch, 0.01)) < sizes[1] <= 1_000_000 < sizes[2]


def test_without_minutes_it_chooses_for_five(monkeypatch):
    chosen = choose(monkeypatch, 5)
    config = replace(CONFIG, train=TrainConfig(steps=7))
    found = auto.choose(config, text(), lambda line: None)
    assert found.model == chosen.model and found.train.steps == 7 and not found.auto


def test_memory_bounds_the_batch_and_the_model():
    import torch

    from training.estimate import memory_needed, sequences_at_once

    shape, card = replace(CONFIG.model, layers=12, heads=12, width=768, context=1024), torch.device("cuda")
    about = (shape, 124_000_000, 50_257)
    whole = memory_needed(*about, 256, torch.bfloat16, card)
    assert sequences_at_once(*about, 256, torch.bfloat16, card, whole) == 256
    fits = sequences_at_once(*about, 256, torch.bfloat16, card, 16e9)
    assert 0 < fits < 256 and memory_needed(*about, fits, torch.bfloat16, card) <= 16e9
    assert sequences_at_once(*about, 256, torch.bfloat16, card, 1e9) == 0


def test_little_memory_gives_micro_batches_or_a_smaller_model(monkeypatch):
    chosen = []
    for memory in (1e12, 6e7):
        monkeypatch.setattr(auto, "free_memory", lambda device, memory=memory: memory)
        chosen.append(choose(monkeypatch, 120))
    assert size(chosen[1]) < size(chosen[0])
    assert chosen[0].train.micro_batch_size is None
    assert 0 < chosen[1].train.micro_batch_size < chosen[1].train.batch_size
    monkeypatch.setattr(auto, "free_memory", lambda device: 1e6)
    with pytest.raises(ValueError, match="not even the smallest model fits"):
        choose(monkeypatch, 5)


@pytest.fixture
def quick_ladder(monkeypatch):
    monkeypatch.setattr(auto, "LADDER", ((1, 32), (2, 32)))
    monkeypatch.setattr(auto, "TIMED_SECONDS", 0.01)


def test_a_run_says_and_saves_what_was_chosen(tmp_path, quick_ladder):
    (tmp_path / "lines.txt").write_text("\n".join(sentences(200)) + "\n", encoding="utf-8")
    given = ["--config", PROJECT / "configs" / "auto.yaml", "--data.path", "lines.txt", "--data.unit", "line"]
    more = ["--tokenizer.vocab_size", 330, "--train.steps", 2, "--device", "cpu", "--run", "r"]
    result = door("train", *given, *more, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "auto: 1 layers of width 32: " in result.stdout + result.stderr
    saved = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["auto"] is False and saved["model"]["width"] == 32 and saved["model"]["context"] == 80
    assert door("train", "--resume", "--run", "r", "--train.steps", 3, cwd=tmp_path).returncode == 0


def test_what_it_chooses_cannot_be_given_too(tmp_path):
    given = ["--config", PROJECT / "configs" / "auto.yaml", "--model.width", 64, "--train.batch_size", 2]
    result = door("train", *given, cwd=tmp_path)
    assert result.returncode == 1
    assert "--model.width, --train.batch_size cannot be given where the config has auto" in result.stderr
