"""What evaluate.py promises: the definition of bits per character, on the right documents."""

import json
import math
import shutil

import pytest
import torch

from data.tokens import encode
from evaluate import FIGURES
from run.folder import open_run
from tests.conftest import SMALL, door, edit_config, sentences, split


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
        "document_bits_per_character",
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


def test_documents_read_from_their_own_mark(run):
    validation = split(sentences(200))[1]
    bits = sum(by_hand(run, [document]) for document in validation)
    figures = evaluate(run)[1]
    assert figures["document_bits_per_character"] == pytest.approx(bits / figures["characters"], rel=1e-6)
    assert figures["document_bits_per_character"] != figures["bits_per_character"]


def test_the_batch_size_does_not_matter(run):
    for name in ("bits_per_character", "document_bits_per_character"):
        figures = [evaluate(run, "--batch-size", size)[1][name] for size in (1, 3, 64)]
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


@pytest.fixture(scope="module")
def two_files(tmp_path_factory):
    """A run of two steps on two files of a hundred documents each; the first document of the second is in training."""
    folder = tmp_path_factory.mktemp("two")
    lines = sentences(200)
    for name, part in (("a", lines[:100]), ("b", lines[100:])):
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
    result = door(
        "train", "--data.path", "a.txt", "b.txt", "--data.unit", "line", *SMALL, "--train.steps", 2,
        "--run", "runs/two", cwd=folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder / "runs" / "two"


def test_of_a_part_of_its_own_text_the_validation_side_is_measured(two_files, tmp_path):
    folder = two_files.parent.parent
    validation = set(split(sentences(200))[1])
    for name, part in (("a", sentences(200)[:100]), ("b", sentences(200)[100:])):
        own = [document for document in part if document in validation]
        _, figures = evaluate(two_files, "--data.path", folder / f"{name}.txt", "--copied")
        assert figures["side"] == "validation" and figures["documents"] == len(own) > 0
        assert figures["characters"] == sum(len(text) + 1 for text in own)
    (tmp_path / "link.txt").symlink_to(folder / "a.txt")
    assert evaluate(two_files, "--data.path", tmp_path / "link.txt")[1]["side"] == "validation"
    _, both = evaluate(two_files, "--data.path", folder / "b.txt", folder / "a.txt")  # in another order
    assert both["side"] == "validation" and both["documents"] == len(validation)
    shutil.copy(folder / "a.txt", tmp_path / "c.txt")
    _, with_another = evaluate(two_files, "--data.path", folder / "a.txt", tmp_path / "c.txt")
    assert with_another["side"] == "all" and with_another["documents"] == 200


def test_a_part_without_a_validation_document_is_named(two_files, tmp_path):
    shutil.copytree(two_files.parent.parent, tmp_path / "copy")
    copy = tmp_path / "copy"
    document = split(sentences(200))[0][0]
    (copy / "a.txt").write_text(document + "\n", encoding="utf-8")
    (copy / "b.txt").write_text("\n".join(sentences(200)) + "\n", encoding="utf-8")
    shutil.rmtree(copy / "runs")
    made = door(
        "train", "--data.path", "a.txt", "b.txt", "--data.unit", "line", *SMALL, "--train.steps", 1,
        "--run", "runs/two", cwd=copy,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    result, _ = evaluate(copy / "runs" / "two", "--data.path", copy / "a.txt")
    assert result.returncode == 1 and "holds no validation document" in result.stderr


def test_a_part_of_a_text_that_has_changed_is_measured_whole_and_said(two_files, tmp_path):
    shutil.copytree(two_files.parent.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "runs" / "two"
    edit_config(copy, str(two_files.parent.parent), str(tmp_path / "copy"))
    with (tmp_path / "copy" / "b.txt").open("a", encoding="utf-8") as file:
        file.write("새 문장이다.\n")
    result, figures = evaluate(copy, "--data.path", tmp_path / "copy" / "a.txt")
    assert figures["side"] == "all" and figures["documents"] == 100 and "has changed" in result.stderr


def test_writing(run):
    result, figures = evaluate(run, "--writing")
    names = {"self_addressed", "names", "late_names"}
    assert set(figures["writing"]) == set(FIGURES) - names and "figures on names are left out" in result.stderr
    for values in figures["writing"].values():
        assert set(values) == {"model", "validation"} and all(v is None or 0 <= v <= 1 for v in values.values())
    assert figures["writing"] == evaluate(run, "--writing")[1]["writing"]
    lines = door("evaluate", "--run", run, "--writing", cwd=run.parent).stdout.splitlines()
    assert [line.split("  ", 1)[1].strip().split("  ")[-1] for line in lines[-len(figures["writing"]) :]] == [
        text for name, text in FIGURES.items() if name not in names
    ]


def test_writing_needs_the_runs_own_text(run, tmp_path):
    (tmp_path / "other.txt").write_text("나는 사과를 먹었다.\n", encoding="utf-8")
    for flag in ("--writing", "--copied"):
        result, _ = evaluate(run, flag, "--data.path", tmp_path / "other.txt")
        assert result.returncode == 1 and f"{flag} compares with the run's own training text" in result.stderr
