"""What attend.py promises: who looks at whom by eojeol, every head as JSON and CSV, one line for each fault."""

import csv
import io
import json
import re

import numpy as np
import pytest

from data.tokenizer import load
from run.folder import open_run
from tests.conftest import door, process
from view.trace import trace

TEXT = "나는 사과를 맛있게 먹었다."


def attend(run, *arguments):
    result = door("attend", "--run", run, *arguments, cwd=run.parent)
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture
def traced(run):
    opened = open_run(run, "cpu")
    return trace(opened.model, opened.tokenizer, TEXT)


def test_the_table_is_the_chosen_heads(run, traced):
    result = attend(run, TEXT, "--layer", 0, "--head", 1, "--plain")
    assert result.returncode == 0 and result.stderr == ""
    weights = traced.attention()[0, 1]
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.split("looking:")[0].splitlines()[1:]}
    assert rows["먹었다."] == [f"{weight:.3f}" for weight in weights[-1]]
    assert rows["나는"] == [f"{weight:.3f}" for weight in weights[1, :2]] + 3 * ["░░░"]
    strongest = traced.units("eojeol")[int(weights[-1].argmax())].text
    assert f"먹었다. → {strongest}" in result.stdout.split("looking:")[1].splitlines()[1]
    assert "layer 0 of 0–0, head 1 of 0–1" in result.stdout and "\x1b" not in result.stdout


@pytest.mark.parametrize("best", [[], ["--best"]])
def test_left_out_the_strongest_head_is_shown(run, traced, best):
    layer, head = traced.strongest()
    result = attend(run, TEXT, "--plain", *best)
    assert f"layer {layer} of 0–0, head {head} of 0–1: its last row puts the most weight on one earlier eojeol" in (
        result.stdout
    )


def test_json_names_and_numbers(run, traced):
    for unit in ("eojeol", "token"):
        found = json.loads(attend(run, TEXT, "--format", "json", "--unit", unit).stdout)
        assert set(found) == {"text", "ids", "tokens", "groups", "unit", "layers", "heads", "weights"}
        assert (found["text"], found["ids"], found["tokens"]) == (TEXT, traced.ids, traced.tokens)
        assert (found["unit"], found["layers"], found["heads"]) == (unit, [0], [0, 1])
        assert [group["text"] for group in found["groups"]] == ["〈시작〉", "나는", "사과를", "맛있게", "먹었다."]
        attention = traced.attention(unit)
        for layer, head, query, key in np.ndindex(attention.shape):
            weight = found["weights"][layer][head][query][key]
            if key > query:
                assert weight is None
            else:
                assert weight == pytest.approx(attention[layer, head, query, key], rel=1e-5, abs=1e-12)
    assert "나는" in attend(run, TEXT, "--format", "json").stdout  # not \u-escaped


def test_csv_holds_every_pair(run, traced, tmp_path):
    result = attend(run, TEXT, "-o", tmp_path / "weights.csv")
    assert (result.returncode, result.stdout) == (0, "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "weights.csv").read_bytes().decode("utf-8"))))
    assert len(rows) == 1 * 2 * 5 * 5
    for row in rows:
        query, key = int(row["query"]), int(row["key"])
        assert (row["weight"] == "") == (key > query)
        assert row["query_text"] == traced.groups[query].text
        if row["weight"]:
            expected = traced.attention()[int(row["layer"]), int(row["head"]), query, key]
            assert float(row["weight"]) == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert attend(run, TEXT, "--format", "csv").stdout == (tmp_path / "weights.csv").read_text(encoding="utf-8")


def test_a_page_and_a_picture(run, tmp_path):
    result = attend(run, TEXT, "-o", tmp_path / "view.html")
    whole = (tmp_path / "view.html").read_text(encoding="utf-8")
    assert (result.returncode, result.stdout) == (0, "") and whole.startswith("<!doctype html>")
    assert result.stderr == f"{tmp_path / 'view.html'}: {len(whole.encode()) / 1e6:.2f} MB\n"
    half = attend(run, TEXT, "-o", tmp_path / "half.html", "--page-precision", "fp16")
    assert half.returncode == 0 and (tmp_path / "half.html").stat().st_size < (tmp_path / "view.html").stat().st_size
    assert attend(run, TEXT, "-o", tmp_path / "head.png").returncode == 0
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")
    for name in ("no/view.html", "no/head.png", "no/weights.csv"):
        refused = attend(run, TEXT, "-o", tmp_path / name)
        assert refused.returncode == 1 and "No such file" in refused.stderr.splitlines()[-1]


def test_the_toy_needs_no_run(tmp_path):
    result = door("attend", "--toy", "--plain", cwd=tmp_path)
    assert result.returncode == 0
    off, on = result.stdout.split("mask on")
    assert on.count("░░░") == 2 * 6 + 1 and "░" not in off  # both matrices, and the legend
    assert re.search(r"먹었다 +0\.143 +0\.235 +0\.235 +0\.387", off) and re.search(r"나는 +0\.355", off)
    assert re.search(r"사과를 +0\.269 +0\.731 +░░░ +░░░", on)
    for part in (off, on):
        assert re.search(r"먹었다 +0\.143 +0\.622 +0\.622 +0\.470", part)
    assert "0.388 and 0.623" in on


def test_without_a_run_it_says_what_to_do(tmp_path):
    result = door("attend", TEXT, cwd=tmp_path)
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and "train.py" in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["", "--plain"], None),
        ([TEXT * 9], "the model sees 16: shorten it"),
        ([TEXT, "--layer", "1", "--head", "0"], "--layer 1: this run has layers 0 to 0"),
        ([TEXT, "--layer", "0", "--head", "2"], "--head 2: this run has heads 0 to 1"),
        ([TEXT, "--format", "json", "--layers", "0-1"], "name layers of 0 to 0"),
        ([TEXT, "--format", "json", "--layers", "x"], "name layers of 0 to 0"),
        (["한\ud800글"], "lone surrogate"),
    ],
)
def test_faults(run, arguments, message):
    result = attend(run, *arguments)
    assert (result.returncode, result.stdout) == (2 if message is None else 1, "")
    if message:
        assert result.stderr.count("\n") == 1 and message in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([TEXT, "--layer", "0"], "--layer and --head belong together"),
        ([TEXT, "--layer", "0", "--head", "0", "--best"], "--best chooses layer and head itself"),
        ([TEXT, "-o", "a.doc"], "name a .html, .png, .json or .csv file"),
        ([TEXT, "-o", "a.csv", "--format", "json"], "--format json does not go with -o a.csv"),
        ([], "name a text"),
    ],
)
def test_bad_command_lines(run, arguments, message):
    result = attend(run, *arguments)
    assert result.returncode == 2 and message in result.stderr


def test_too_wide_for_the_terminal_the_last_row_is_shown(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    result = attend(run, TEXT, "--plain")
    assert "too wide for 30 columns" in result.stdout and "먹었다. → " in result.stdout


def test_as_a_process_on_a_poor_console(run):
    result = process("attend", TEXT, "--run", run, "--plain", cwd=run.parent, PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and "Traceback" not in result.stderr and "\\uba39" in result.stdout


def test_eojeol_of_the_runs_own_tokenizer(run, traced):
    assert [group.text for group in traced.groups[1:]] == TEXT.split()
    assert traced.ids[1:] == load(run / "tokenizer.model").encode(TEXT)
