"""A run that a stranger made can run no code, lead to no other file, and ask for no memory, whatever is in it."""

import io
import json
import os
import pickle
import resource
import shutil
import struct
import time
from hashlib import sha256

import pytest
import yaml

from data.files import BLANK, seal
from tests.conftest import door, process

DOORS = {
    "sample": ("--tokens", 1),
    "attend": ("나는 사과를",),
    "evaluate": (),
    "train": ("--resume", "--train.steps", 41),
}


@pytest.fixture
def planted(run, tmp_path):
    """A copy of the run to plant things in, its text beside it as its config says."""
    copy = tmp_path / "stranger"
    shutil.copytree(run, copy)
    return copy


def open_everywhere(planted, tmp_path, *words, doors=DOORS):
    """Every door refuses the run in one line that holds one of `words`, soon and within little memory."""
    for name in doors:
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        result = door(name, *DOORS[name], "--run", planted, cwd=tmp_path)
        assert result.returncode == 1, (name, result)
        assert len(result.stderr.splitlines()) <= 2 and "--debug shows" not in result.stderr, (name, result.stderr)
        assert any(word in result.stderr for word in words), (name, result.stderr)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, name  # kB
        assert time.monotonic() - began < 20, name


def reseal(path, change):
    """Change the header of a safetensors file as someone would who knows the format, checksum and all."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:end]), raw[end:]
    about = json.loads(header["__metadata__"]["malssi"]) | {"sha256": BLANK.decode()}
    change(header, about)
    header["__metadata__"]["malssi"] = json.dumps(about)
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    path.write_bytes(struct.pack("<Q", len(text)) + seal(text, sha256(data).digest()) + data)


def rewrite_config(planted, section, **settings):
    """Write settings into config.yaml, without its checksum."""
    path = planted / "config.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    tree[section] |= settings
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")


def test_the_copy_works_before_anything_is_planted(planted, tmp_path):
    reseal(planted / "model.safetensors", lambda header, about: None)
    reseal(planted / "state.safetensors", lambda header, about: None)
    rewrite_config(planted, "model", width=16)
    for name, arguments in DOORS.items():
        result = door(name, *arguments, "--run", planted, cwd=tmp_path)
        assert result.returncode == 0, (name, result.stderr)


class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "tokenizer.model", "config.yaml"])
def test_pickles_are_not_opened(planted, tmp_path, name):
    import torch

    for content in (pickle.dumps(Bomb(tmp_path / "ran")), torch_pickle(torch, Bomb(tmp_path / "ran"))):
        (planted / name).write_bytes(content)
        doors = ["train"] if name.startswith("state") else DOORS
        open_everywhere(planted, tmp_path, name, doors=doors)
        assert not (tmp_path / "ran").exists()


def torch_pickle(torch, what):
    buffer = io.BytesIO()
    torch.save(what, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        "!!python/object/apply:os.mkdir [RAN]",
        "train: !!python/object/apply:os.mkdir [RAN]",
        "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "[" * 5000,
        "a: " * 3000,
        "x" * 200_000,
    ],
)  # fmt: skip
def test_configs_run_nothing_and_stay_small(planted, tmp_path, content):
    (planted / "config.yaml").write_text(content.replace("RAN", str(tmp_path / "ran")), encoding="utf-8")
    open_everywhere(planted, tmp_path, "config.yaml")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 2_000_000},
        {"layers": 1_000_000_000},
        {"context": 1_000_000_000},
        {"heads": 10**30},
        {"width": 2_000_000, "layers": 1_000_000},
    ],
)
def test_a_config_cannot_ask_for_a_larger_model_than_its_weights(planted, tmp_path, settings):
    rewrite_config(planted, "model", **settings)
    open_everywhere(planted, tmp_path, "does not fit", "config.yaml")


@pytest.mark.parametrize(
    "change",
    [
        lambda header, about: header["token.weight"].update(shape=[10**9, 16]),
        lambda header, about: header["token.weight"].update(shape=[2**63, 2**63]),
        lambda header, about: header["token.weight"].update(data_offsets=[0, 10**15]),
        lambda header, about: header["token.weight"].update(dtype="F8_E4M3"),
        lambda header, about: header.update({"more.weight": header.pop("norm.weight")}),
        lambda header, about: about.update(step="many"),
        lambda header, about: about.update(step=-1),
        lambda header, about: about.update(threads=10**6),
        lambda header, about: about.update(precision="fp64"),
        lambda header, about: about.update(format="malssi-run/9"),
        lambda header, about: about.update(more=1),
        lambda header, about: about.pop("tokenizer"),
        lambda header, about: about.update(tokenizer="0" * 63),
    ],
)
def test_forged_headers_are_refused(planted, tmp_path, change):
    reseal(planted / "model.safetensors", change)
    open_everywhere(planted, tmp_path, "model.safetensors", doors=("sample", "attend", "evaluate"))
    resumed = door("train", *DOORS["train"], "--run", planted, cwd=tmp_path)  # which does not read these weights
    assert resumed.returncode == 0 or "model.safetensors" in resumed.stderr and "--debug shows" not in resumed.stderr


@pytest.mark.parametrize("length", [0, 2**20, 2**40, 2**63])
def test_a_header_that_says_it_is_long(planted, tmp_path, length):
    raw = (planted / "model.safetensors").read_bytes()
    (planted / "model.safetensors").write_bytes(struct.pack("<Q", length) + raw[8:])
    open_everywhere(planted, tmp_path, "model.safetensors")


def rename(header, old, new):
    header[new] = header.pop(old)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, about: rename(header, "optimizer.0.exp_avg", "optimizer.999999999.exp_avg"),
        lambda header, about: rename(header, "optimizer.0.exp_avg", "optimizer.1.exp_avg_more"),
        lambda header, about: rename(header, "generator.cpu", "generator.gpu"),
        lambda header, about: about.update(epoch=-3),
        lambda header, about: about.update(used=10**30, step=10**30),
    ],
)
def test_a_forged_state_is_refused_or_harmless(planted, tmp_path, change):
    reseal(planted / "state.safetensors", change)
    result = door("train", *DOORS["train"], "--run", planted, cwd=tmp_path)
    assert len(result.stderr.splitlines()) <= 1 and "--debug shows" not in result.stderr, result.stderr
    assert result.returncode == 1 and "state.safetensors" in result.stderr or "finished" in result.stdout


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml", "tokenizer.model", "model.safetensors", "state.safetensors", "metrics.jsonl", "samples.txt",
        "metrics.jsonl.new", "state.safetensors.new", "curve.png", "snapshots", "snapshots/step-1.safetensors", ".lock",
    ],
)  # fmt: skip
def test_links_out_of_a_run_are_not_followed(planted, tmp_path, name):
    outside = tmp_path / "outside"
    path = planted / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    if path.exists():
        path.rename(outside)
    elif name == "snapshots":
        outside.mkdir()
    else:
        outside.write_bytes(b"mine")
    before = sorted(outside.iterdir()) if outside.is_dir() else outside.read_bytes()
    path.symlink_to(outside)
    open_everywhere(planted, tmp_path, f"{name} is a link")
    assert before == (sorted(outside.iterdir()) if outside.is_dir() else outside.read_bytes())


def test_the_text_of_a_run_is_read_from_plain_files_alone(planted, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        rewrite_config(planted, "data", path=[path])
        open_everywhere(planted, tmp_path, "neither a file nor a folder", doors=("evaluate", "train"))


def test_no_run_of_a_stranger_reaches_the_network(planted, tmp_path):
    rewrite_config(planted, "data", path=[], dataset="someone/somewhere")
    # A process of its own: whether the library may ask the network is settled when it is imported.
    result = process("evaluate", "--run", planted, cwd=tmp_path, HF_HOME=str(tmp_path / "cache"))
    assert result.returncode == 1
    assert "someone/somewhere" in result.stderr and "--data.dataset" in result.stderr, result.stderr
    assert "Offline" in result.stderr, result.stderr  # not asked, rather than not reached


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1, "loss": "x", "bits_per_character": [1]}',
        "[" * 100_000,
        '{"step": 1e400}',
        '"step"',
        "\0\xff",
        '{"step": ' + "9" * 5000 + "}",
    ],
)
def test_metrics_of_a_stranger_are_lines_or_none(planted, tmp_path, line):
    (planted / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
    (planted / "samples.txt").write_text(f"=== step {'9' * 5000}\n{line}\n", encoding="utf-8")
    result = door("train", *DOORS["train"], "--run", planted, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    readable = line.startswith('{"step": 1, ')
    assert readable or "metrics.jsonl: 1 lines that cannot be read, left out" in result.stdout
