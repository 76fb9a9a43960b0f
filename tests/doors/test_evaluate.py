"""What evaluate.py promises: the definition of bits per character, on the right documents."""

import json
import math
import shutil

import pytest
import torch

from data.tokens import encode
from run.folder import open_run
from tests.conftest import door, edit_config, sentences, split


def evaluate(run, *arguments):
    result = door("evaluate", "--run", run, "--json", *arguments, cwd=run.parent)
    return result, json.loads(result.stdout) if result.returncode == 0 else None


def by_hand(run, documents):
    opened = open_run(run, torch.device("cpu"))
    ids = torch.tensor(encode(documents, opened.tokenizer).ids.astype("int64"))
    nats = 0.0
    for start in range(0, len(ids) - 1, 16):
        window = ids[start : start + 17]
        with torch.no_grad():
            log_p = opened.model(window[None, :-1])[0].double().log_softmax(dim=-1)
        nats -= log_p[range(len(window) - 1), window[1:]].sum().item()
    return nats / math.log(2)


def test_the_runs_own_validation_side(run):
    result, figures = evaluate(run)
    assert set(figures) == {
        "run",
        "step",
        "side",
        "documents",
        "tokens",
        "characters",
        "bytes",
        "bits_per_character",
        "bits_per_byte",
    }
    validation = split(sentences(200))[1]
    assert figures["documents"] == len(validation)
    assert figures["characters"] == sum(len(text) + 1 for text in validation)
    assert figures["bytes"] == sum(len(text.encode()) + 1 for text in validation)
    bits = by_hand(run, validation)
    assert figures["bits_per_character"] == pytest.approx(bits / figures["characters"], rel=1e-6)
    assert figures["bits_per_byte"] == pytest.approx(bits / figures["bytes"], rel=1e-6)
    assert "own text" in result.stderr
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = [json.loads(line) for line in metrics if "validation" in line][-1]
    assert figures["bits_per_character"] == pytest.approx(last["validation_bits_per_character"], rel=1e-6)


def test_the_batch_size_does_not_matter(run):
    figures = [evaluate(run, "--batch-size", size)[1]["bits_per_character"] for size in (1, 3, 64)]
    assert figures == pytest.approx([figures[0]] * 3, rel=1e-6)


def test_another_text_is_measured_whole(run, tmp_path):
    (tmp_path / "other.txt").write_text("나는 사과를 먹었다.\n바다가 보인다.\n", encoding="utf-8")
    result, figures = evaluate(run, "--data.path", tmp_path / "other.txt", "--data.unit", "line")
    assert figures["documents"] == 2 and figures["characters"] == 12 + 9 and "not the run's own text" in result.stderr
    assert figures["bits_per_character"] == pytest.approx(
        by_hand(run, ["나는 사과를 먹었다.", "바다가 보인다."]) / 21, rel=1e-6
    )


def test_the_own_text_elsewhere_is_known_again(run, tmp_path):
    shutil.copy(run.parent.parent / "lines.txt", tmp_path / "moved.txt")
    _, there = evaluate(run, "--data.path", tmp_path / "moved.txt")
    assert there == evaluate(run)[1]


def test_a_changed_text_is_refused(run, tmp_path):
    shutil.copytree(run.parent.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "runs" / "lines"
    edit_config(copy, str(run.parent.parent), str(tmp_path / "copy"))
    assert evaluate(copy)[0].returncode == 0
    with (tmp_path / "copy" / "lines.txt").open("a", encoding="utf-8") as file:
        file.write("새 문장이다.\n")
    result, _ = evaluate(copy)
    assert result.returncode == 1 and "no longer the one" in result.stderr and "--data.path" in result.stderr


def test_copied(run):
    _, figures = evaluate(run, "--copied")
    assert 0 <= figures["copied"] <= 1 and 0 <= figures["copied_validation"] <= 1
    result = door("evaluate", "--run", run, "--copied", cwd=run.parent)
    assert "30-character stretches of 100 samples" in result.stdout and "bits per character" in result.stdout
