"""What train.py promises beside the training itself."""

import ast
import os
import subprocess
import sys
import unicodedata

import pytest
import yaml

from run import checkpoint
from tests.conftest import PROJECT, SMALL, door, process, sentences
from training.log import read_metrics


def train(cwd, *arguments, steps=3):
    result = door("train", *SMALL, *([] if steps is None else ["--train.steps", steps]), *arguments, cwd=cwd)
    assert "Traceback" not in result.stderr
    return result


def test_from_a_text_file_to_a_run(tmp_path, corpus):
    result = train(tmp_path, "--data.path", corpus.name)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    run = tmp_path / "runs" / "tiny"
    names = {
        "config.yaml",
        "tokenizer.model",
        "model.safetensors",
        "state.safetensors",
        "metrics.jsonl",
        "samples.txt",
        "curve.png",
    }
    assert {path.name for path in run.iterdir()} - {".lock"} == names
    for words in (
        "60 documents by unit 'document'",
        "parameters",
        "epochs",
        "MB of memory",
        "precision",
        "validation",
        "done",
    ):
        if words != "precision":  # asked for by name, so nothing to tell
            assert words in result.stdout, words
    assert yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["data"]["path"] == [str(corpus)]
    again = train(tmp_path, "--data.path", corpus.name)
    assert "this run is runs/tiny-2" in again.stdout.replace(os.sep, "/")
    for name in ("model.safetensors", "tokenizer.model"):  # the same seed, the same bytes
        assert (run / name).read_bytes() == (tmp_path / "runs" / "tiny-2" / name).read_bytes()


def test_zero_steps_prepare_and_stop(tmp_path, corpus):
    result = train(tmp_path, "--data.path", corpus, steps=0)
    assert result.returncode == 0 and "prepared" in result.stdout and not (tmp_path / "runs").exists()


def test_fifty_steps_save_though_the_interval_is_longer(tmp_path, corpus):
    train(tmp_path, "--data.path", corpus, "--train.save_every_steps", 2000, "--run", "short", steps=50)
    assert checkpoint.load(tmp_path / "short" / "state.safetensors")[1].step == 50


@pytest.mark.parametrize("unit, content", [("file", "\n".join(sentences(300))), ("line", "\n".join(sentences(300)))])
def test_units_from_the_command_line(tmp_path, unit, content):
    (tmp_path / "mine.txt").write_text(content, encoding="utf-8")
    result = train(tmp_path, "--data.path", "mine.txt", "--data.unit", unit, "--run", "mine")
    assert result.returncode == 0
    assert ("fewer than 20 documents" in result.stdout) == (unit == "file")


def test_decomposed_text_in_a_decomposed_folder_is_the_same_run(tmp_path):
    text = "\n".join(sentences(60))
    for form in ("NFC", "NFD"):
        folder = tmp_path / unicodedata.normalize(form, f"한글 폴더 {form}")
        folder.mkdir()
        (folder / "글.txt").write_text(unicodedata.normalize(form, text), encoding="utf-8")
        result = train(tmp_path, "--data.path", folder, "--data.unit", "line", "--run", form)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "NFC" / "model.safetensors").read_bytes() == (
        tmp_path / "NFD" / "model.safetensors"
    ).read_bytes()


def test_code_pages_are_told_apart(tmp_path):
    (tmp_path / "windows.txt").write_bytes("\n".join(sentences(60)).encode("cp949"))
    result = train(tmp_path, "--data.path", "windows.txt", "--data.unit", "line", steps=0)
    assert result.returncode == 0 and "windows.txt: read as cp949" in result.stdout


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--train.minutes", "1"], 2, "exclude each other"),
        (["--data.path", "a.txt", "--data.dataset", "b"], 2, "--data.path and --data.dataset exclude each other"),
        (["--train.step", "1"], 2, "unrecognized arguments"),
        (["--model.layers", "x"], 2, "valid integer"),
        (["--resume", "--init-from", "x"], 2, "--init-from"),
        (["--config", "missing.yaml"], 1, "missing.yaml"),
        (["--data.path", "missing.txt"], 1, "no such file or folder: .*missing.txt"),
        (["--data.encoding", "utf-99"], 1, "utf-99"),
        (["--model.heads", "3"], 1, "multiple of heads"),
        (["--model.context", "5000"], 1, "needs at least 5,001"),
        (["--precision", "fp16"], 1, "fp16 needs CUDA"),
        (["--tokenizer.path", "missing.model"], 1, "missing.model"),
        (["--resume", "--run", "missing"], 1, "no run in missing"),
        (["--init-from", "missing"], 1, "no run in .*missing"),
    ],
)
def test_faults_are_one_line_and_leave_nothing(tmp_path, corpus, arguments, code, words):
    import re

    result = train(tmp_path, *([] if "--data.path" in arguments else ["--data.path", corpus]), *arguments)
    assert result.returncode == code and re.search(words, result.stderr), result.stderr
    assert code == 2 or len(result.stderr.splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*.safetensors")]


@pytest.mark.parametrize("content", [b"", b"\n\n\n"])
def test_no_text_is_refused(tmp_path, content):
    (tmp_path / "small.txt").write_bytes(content)
    result = train(tmp_path, "--data.path", "small.txt")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr


@pytest.mark.parametrize("content", ["나는 사과를 먹었다.", "나는 사과를 먹었다.\n" * 30, "나"])
def test_one_sentence_is_learned_by_heart(tmp_path, content):
    """A first experiment: overfit one sentence. Every door works with such a run."""
    (tmp_path / "one.txt").write_text(content, encoding="utf-8")
    given = ["--data.path", "one.txt", "--data.unit", "line", "--run", "one", "--train.eval_every_steps", 5]
    result = door("train", *given, "--device", "cpu", "--train.steps", 60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "fewer than two different documents" in result.stdout and "no validation side" in result.stdout
    assert "context: " in result.stdout  # lowered, since so little text does not fill it
    lines = read_metrics(tmp_path / "one" / "metrics.jsonl")
    assert lines and not [line for line in lines if "validation_bits_per_character" in line]
    assert checkpoint.load(tmp_path / "one" / "model.safetensors")[1].step == 60  # the last weights
    sentence = content.splitlines()[0]
    written = door("sample", "--run", "one", "--temperature", 0, cwd=tmp_path)
    assert written.stdout == sentence + "\n", written.stdout
    found = door("evaluate", "--run", "one", "--json", cwd=tmp_path)
    assert found.returncode == 0 and '"side": "training"' in found.stdout, found.stderr
    assert door("attend", sentence, "--run", "one", cwd=tmp_path).returncode == 0
    more = door("train", "--resume", "--run", "one", "--train.steps", 62, cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert checkpoint.load(tmp_path / "one" / "model.safetensors")[1].step == 62


def test_a_bad_rate_stops_the_run(tmp_path, corpus):
    result = train(
        tmp_path,
        "--data.path",
        corpus,
        "--train.learning_rate",
        1e30,
        "--train.max_norm",
        1e30,
        "--train.warmup",
        0,
        "--run",
        "bad",
        steps=50,
    )
    assert result.returncode == 1 and "stopped before step" in result.stderr and "at rate " in result.stderr


HOLD = """
import sys, time
from pathlib import Path
from run.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ended(tmp_path, corpus):
    assert train(tmp_path, "--data.path", corpus.name, "--run", "r").returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.name != ".lock"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "r")], cwd=PROJECT, stdout=subprocess.PIPE, encoding="utf-8"
    )
    try:
        assert holder.stdout.readline() == "held\n"
        refused = door("train", "--resume", "--run", "r", "--train.steps", 5, cwd=tmp_path)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1
        assert "r is being trained by another process" in refused.stderr
        assert before == {name: (tmp_path / "r" / name).read_bytes() for name in before}
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert door("train", "--resume", "--run", "r", "--train.steps", 5, cwd=tmp_path).returncode == 0


def test_starting_from_another_run(run, tmp_path, corpus):
    before = (run / "model.safetensors").read_bytes()
    result = door(
        "train", "--init-from", run, "--data.path", corpus, "--train.steps", 2, "--train.snapshots", 0, "--run", "next",
        "--train.learning_rate", "1e-9", "--device", "cpu", "--precision", "fp32", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "next" / "tokenizer.model").read_bytes() == (run / "tokenizer.model").read_bytes()
    old, new = (checkpoint.load(folder / "model.safetensors")[0] for folder in (run, tmp_path / "next"))
    assert all(abs(old[name] - new[name]).max() < 1e-6 for name in old)
    assert (run / "model.safetensors").read_bytes() == before
    result = door("train", "--init-from", run, "--data.path", corpus, "--model.width", 64, cwd=tmp_path)
    assert result.returncode == 1 and "--model.width must stay" in result.stderr


def test_a_run_begun_from_another_and_killed_before_its_first_save_begins_from_it_again(run, tmp_path, corpus):
    from training import loop

    given = ["--init-from", run, "--data.path", corpus, "--train.steps", 2, "--train.snapshots", 0, "--device", "cpu"]
    given += ["--precision", "fp32", "--train.learning_rate", "1e-9", "--run"]
    assert door("train", *given, "whole", cwd=tmp_path).returncode == 0
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemError):
        patched.setattr(loop.Trainer, "save", lambda self: (_ for _ in ()).throw(SystemError("killed")))
        patched.chdir(tmp_path)
        import train as train_door

        train_door.main([str(flag) for flag in [*given, "killed"]])
    assert not (tmp_path / "killed" / "state.safetensors").exists()
    result = door("train", "--resume", "--run", "killed", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    one, other = (checkpoint.load(tmp_path / name / "state.safetensors")[0] for name in ("whole", "killed"))
    assert all((one[name] == other[name]).all() for name in one)
    begun_from = checkpoint.load(run / "model.safetensors")[0]
    assert all(abs(begun_from[name] - other[f"model.{name}"]).max() < 1e-6 for name in begun_from)


def test_compile_auto_follows_the_length_of_the_run(monkeypatch):
    import torch

    from machine import device

    said = []
    monkeypatch.setattr(device, "compiler_found", lambda: True)
    for kind in ("cpu", "cuda"):
        where = torch.device(kind)
        assert device.choose_compile("auto", 601, where, said.append)
        assert not device.choose_compile("auto", 599, where, said.append)
        assert not device.choose_compile("auto", 601, where, said.append, before=False)  # as the run was
        assert device.choose_compile("auto", 1, where, said.append, before=True)
        assert not device.choose_compile("off", 601, where) and device.choose_compile("on", 1, where)
    assert not device.choose_compile("auto", 601, torch.device("mps"), said.append)
    monkeypatch.setattr(device, "compiler_found", lambda: False)
    assert not device.choose_compile("auto", 601, torch.device("cpu"), said.append)
    assert said[-1] == "compile: off (no C++ compiler)" and "compile: on (as this run did before)" in said


def test_other_versions_are_named_once_when_a_run_goes_on(tmp_path, corpus, monkeypatch):
    from training import loop

    assert train(tmp_path, "--data.path", corpus, "--run", "r").returncode == 0
    made = checkpoint.load(tmp_path / "r" / "state.safetensors")[1].made_with
    assert set(made) == {"malssi", "torch", "python", "processor"} and all(made.values())
    assert "made with" not in door("train", "--resume", "--run", "r", "--train.steps", 4, cwd=tmp_path).stdout
    monkeypatch.setattr(loop, "made_with", lambda: {**made, "torch": "9.9"})
    result = door("train", "--resume", "--run", "r", "--train.steps", 5, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.count(f"this run was made with torch {made['torch']} (now 9.9)") == 1


def test_runs_and_configs_made_before_still_open(run, tmp_path):
    import shutil

    from tests.conftest import edit_config

    shutil.copytree(run.parent.parent, tmp_path / "copy")
    old = tmp_path / "copy" / "runs" / "lines"
    edit_config(old, "eval_tokens: 50000", "eval_pieces: 40000")
    assert door("sample", "--run", old, "--tokens", 2, cwd=tmp_path).returncode == 0
    result = door("train", "--resume", "--run", old, "--train.steps", 41, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "eval_tokens: 40000" in (old / "config.yaml").read_text(encoding="utf-8")


def test_a_door_tells_openmp_to_spin_briefly_before_torch_is_there():
    code = (
        "import os, sys, train, sample, attend, evaluate\n"
        "from doors.door import SPIN_BRIEFLY, run_door\n"
        "assert 'torch' not in sys.modules\n"
        "os.environ['KMP_BLOCKTIME'] = '7'\n"
        "run_door(lambda _: print(os.environ['GOMP_SPINCOUNT'], os.environ['KMP_BLOCKTIME']), [])\n"
    )
    environment = {name: value for name, value in os.environ.items() if "SPIN" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.stdout == "2500 7\n", done.stderr


def test_compiling_that_fails_goes_on_without(tmp_path, corpus, monkeypatch):
    import torch

    def broken(model):
        def forward(ids):
            raise RuntimeError("no compiler")

        return forward

    monkeypatch.setattr(torch, "compile", broken)
    result = door(
        "train", *SMALL, "--data.path", corpus, "--train.steps", 3, "--compile", "on", "--run", "on", cwd=tmp_path
    )
    assert result.returncode == 0 and result.stdout.count("compiling failed") == 1
    train(tmp_path, "--data.path", corpus, "--run", "off")
    assert (tmp_path / "on" / "model.safetensors").read_bytes() == (tmp_path / "off" / "model.safetensors").read_bytes()


def test_as_a_process_it_opens_every_file_by_name_of_its_encoding(tmp_path, corpus):
    flags = [*SMALL, "--data.path", corpus, "--train.steps", 2, "--train.sample_every_steps", 1, "--train.snapshots", 3]
    result = process("train", *flags, "--run", "run", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    assert not ours(result)
    for name, arguments in (("sample", ["--tokens", 3]), ("evaluate", [])):
        result = process(name, "--run", "run", *arguments, cwd=tmp_path)
        assert result.returncode == 0 and not ours(result)


def ours(result):
    """The lines of stderr that name a file of ours, not a library's in an environment that lies in the project."""
    return [line for line in result.stderr.splitlines() if str(PROJECT) in line and "site-packages" not in line]


@pytest.mark.parametrize("name", ["train", "sample", "evaluate"])
def test_help_needs_no_torch(name, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')", encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(PROJECT)!r}]; import {name}; {name}.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0 and "--run" in done.stdout and done.stderr == ""


def test_wandb_is_never_imported_unless_asked_and_never_stops_a_run(tmp_path, corpus, monkeypatch):
    class Broken:
        asked: list[dict] = []

        @staticmethod
        def Api():
            raise RuntimeError("no network")

        @staticmethod
        def init(**settings):
            Broken.asked.append(settings)
            return Broken

        @staticmethod
        def log(*_, **__):
            raise RuntimeError("no network")

        @staticmethod
        def finish():
            raise RuntimeError("no network")

    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert "without it" not in train(tmp_path, "--data.path", corpus, "--run", "off").stdout
    missing = train(tmp_path, "--data.path", corpus, "--wandb", "offline", "--run", "missing")
    assert missing.returncode == 0 and missing.stdout.count("wandb is not installed") == 1
    monkeypatch.setitem(sys.modules, "wandb", Broken)
    result = train(tmp_path, "--data.path", corpus, "--wandb", "online", "--run", "broken")
    assert result.returncode == 0 and "wandb has no key" in result.stdout and Broken.asked[0]["mode"] == "offline"
    assert len(read_metrics(tmp_path / "broken" / "metrics.jsonl")) == 5


@pytest.mark.parametrize(
    "card, built, name, words",
    [
        (True, False, "auto", "without CUDA"),
        (True, False, "cuda", "without CUDA"),
        (False, False, "cuda", "not available"),
        (False, False, "mps", "not available"),
    ],
)
def test_devices_that_are_not_there(monkeypatch, card, built, name, words):
    import torch

    from machine import device

    monkeypatch.setattr(device, "nvidia_card", lambda: card)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = []
    if name == "auto":
        assert device.choose_device(name, said.append).type == "cpu"
        assert words in said[0] and "pytorch.org" in said[0]
    else:
        with pytest.raises(ValueError, match=words):
            device.choose_device(name)


def test_on_the_cpu_nothing_asks_cuda(monkeypatch):
    import torch

    from machine import device

    def touched(*_, **__):
        raise AssertionError("CUDA was asked")

    for function in ("is_available", "device_count", "is_bf16_supported", "current_device", "init"):
        monkeypatch.setattr(torch.cuda, function, touched)
    chosen = device.choose_device("cpu")
    assert device.choose_precision("auto", chosen) in (torch.float32, torch.bfloat16)


def test_precision_follows_the_processor(monkeypatch):
    import torch

    from machine import device

    cpu, said = torch.device("cpu"), []
    for native, rates, expected in (
        (False, {}, torch.float32),
        (True, {torch.bfloat16: 4e11, torch.float32: 1e11}, torch.bfloat16),
        (True, {torch.bfloat16: 1e11, torch.float32: 1e11}, torch.float32),
    ):
        monkeypatch.setattr(device, "native_bf16", lambda native=native: native)
        monkeypatch.setattr(device, "product_rate", lambda dtype, device=None, rates=rates: rates[dtype])
        assert device.choose_precision("auto", cpu, said.append) == expected
    monkeypatch.setattr(device, "native_bf16", lambda: False)
    assert device.choose_precision("bf16", cpu, said.append) == torch.bfloat16
    assert len(said) == 4 and "slow" in said[3]
    assert device.choose_precision("auto", torch.device("mps")) == torch.float32


def test_a_run_that_goes_on_keeps_its_precision(monkeypatch, tmp_path, corpus):
    import torch

    from machine import device

    monkeypatch.setattr(device, "native_bf16", lambda: True)
    monkeypatch.setattr(device, "product_rate", lambda dtype: 4e11 if dtype == torch.bfloat16 else 1e11)
    small = [part for part in SMALL if part not in ("--precision", "fp32")]
    given = [*small, "--data.path", corpus, "--run", "r"]
    assert "precision: bf16 (a bf16 product" in door("train", *given, "--train.steps", 2, cwd=tmp_path).stdout
    monkeypatch.setattr(device, "product_rate", lambda dtype: 1e11)  # as on a machine that is busy just now
    went_on = door("train", "--resume", "--run", "r", "--train.steps", 4, cwd=tmp_path).stdout
    assert "precision: bf16 (as this run did before)" in went_on
    monkeypatch.setattr(device, "native_bf16", lambda: False)
    went_on = door("train", "--resume", "--run", "r", "--train.steps", 5, cwd=tmp_path).stdout
    assert "precision: fp32 (the processor has no native bf16 products)" in went_on
    cpu = torch.device("cpu")
    assert device.choose_precision("auto", cpu, before="fp32") == torch.float32
    assert device.choose_precision("auto", cpu, before="fp16") == torch.float32
    assert device.choose_precision("auto", cpu, before="worse") == torch.float32


def test_bf16_asked_for_by_hand_trains(tmp_path, corpus):
    result = door(
        "train", *SMALL, "--data.path", corpus, "--train.steps", 3, "--precision", "bf16", "--run", "half", cwd=tmp_path
    )
    assert result.returncode == 0
    weights, _ = checkpoint.load(tmp_path / "half" / "state.safetensors")
    assert {str(tensor.dtype) for name, tensor in weights.items() if name.startswith("model.")} == {"torch.float32"}
    assert door("sample", "--run", "half", "--tokens", 3, "--precision", "bf16", cwd=tmp_path).returncode == 0


ARROWS = {  # what each folder may import beside itself; the doors at the top may import everything
    "data": {},
    "model": {},
    "machine": {},
    "run": {"data", "model"},
    "measures": {"data", "machine", "model"},
    "writing": {"data", "model"},
    "training": {"data", "machine", "measures", "model", "run", "writing"},
    "view": {"data", "machine", "model"},
    "doors": {"data", "machine"},
    "bench": {"data", "doors", "machine", "measures", "model", "run", "training", "writing"},
}


def imported(path):
    """The first part of the name of every module that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name.split(".")[0] for name in names)


def test_arrows_point_downwards():
    packages = {path.parent.name for path in PROJECT.glob("*/__init__.py")} - {"tests"}
    assert packages <= set(ARROWS)  # no room is left out
    tops = {path.stem for path in PROJECT.glob("*.py")}
    for room, below in ARROWS.items():
        for path in (PROJECT / room).rglob("*.py"):
            assert not set(imported(path)) & ((set(ARROWS) | tops) - {room, *below}), path
    for path in PROJECT.glob("*.py"):
        assert path.stem not in sys.stdlib_module_names


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory. Tried to allocate"), MemoryError()])
def test_out_of_memory_names_the_flags_to_lower(error, capsys):
    from doors.door import run_door

    def main(_):
        raise error

    import train as train_door

    assert run_door(main, [], train_door.MEMORY) == 1
    assert capsys.readouterr().err == (
        "error: out of memory: lower --train.micro_batch_size, --model.context or --model.width\n"
    )


def test_debug_shows_where_a_fault_arose(tmp_path):
    plain = door("train", "--config", "missing.yaml", cwd=tmp_path)
    debug = door("train", "--config", "missing.yaml", "--debug", cwd=tmp_path)
    assert plain.returncode == debug.returncode == 1
    assert "Traceback" in debug.stderr and debug.stderr.endswith(plain.stderr)


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run_within_rounding(tmp_path, corpus):
    for wish in ("on", "off"):
        flags = [*SMALL, "--data.path", corpus, "--train.steps", 20, "--compile", wish, "--run", wish]
        result = door("train", *flags, cwd=tmp_path)
        assert result.returncode == 0 and "compiling failed" not in result.stdout
    on, off = (checkpoint.load(tmp_path / wish / "model.safetensors")[0] for wish in ("on", "off"))
    assert list(on) == list(off)
    assert all((on[name] - off[name]).abs().max() < 1e-4 for name in on)
    result = door("train", "--resume", "--run", "on", "--train.steps", 22, "--compile", "off", cwd=tmp_path)
    assert result.returncode == 0 and door("sample", "--run", "on", "--tokens", 3, cwd=tmp_path).returncode == 0
