"""A run that was stopped and resumed is bit for bit the run that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import train as train_door
from data.config import TokenizerConfig
from data.prepare import prepare
from run import checkpoint
from run.config import Config, read_config
from run.folder import newest_run
from tests.conftest import PROJECT, SEED, SMALL, door, edit_config, process, sentences
from training import loop
from training.log import read_metrics

STEPS = 20
KILLS = int(os.environ.get("MALSSI_KILLS", "3"))  # .ci/run asks for twenty


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(sentences(120), TokenizerConfig(vocab_size=330), 10_000, folder=folder)


def make_config(**overrides) -> Config:
    """Dropout on, or the generators go untested; two epochs or more in twenty steps; through warm-up."""
    settings = {
        "model.layers": 1, "model.heads": 2, "model.width": 16, "model.context": 16, "model.dropout": 0.1,
        "train.steps": STEPS, "train.batch_size": 8, "train.micro_batch_size": 3, "train.warmup": 0.7,
        "train.eval_every_steps": 5, "train.save_every_steps": 4, "train.sample_every_steps": 5,
        "device": "cpu", "precision": "fp32", "compile": "off",
    }  # fmt: skip
    return read_config(PROJECT / "configs" / "tiny.yaml", settings | overrides)


def run(config, prepared, folder: Path, stop_after: int | None = None, resume: bool = False) -> bool:
    """Train, as if Ctrl-C came during step `stop_after`."""
    take = loop.Trainer.step_once

    def step_once(self) -> None:
        if self.step + 1 == stop_after:
            os.kill(os.getpid(), signal.SIGINT)
        take(self)

    loop.Trainer.step_once = step_once
    try:
        return loop.train(config, prepared, folder, resume) == 0
    finally:
        loop.Trainer.step_once = take


def state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "state.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    for name, tensor in state(one).items():
        assert torch.equal(tensor, state(other)[name]), name
    for name, tensor in load_file(one / "model.safetensors").items():
        assert torch.equal(tensor, load_file(other / "model.safetensors")[name]), name
    hidden = ("seconds", "tokens_per_second")
    lines = [
        [{k: v for k, v in line.items() if k not in hidden} for line in read_metrics(folder / "metrics.jsonl")]
        for folder in (one, other)
    ]
    assert lines[0] == lines[1]
    assert (one / "samples.txt").read_text(encoding="utf-8") == (other / "samples.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    assert run(make_config(), prepared, folder)
    epoch = checkpoint.load(folder / "state.safetensors")[1].epoch
    assert epoch >= 1  # the stops below have epoch ends between them
    return folder


@pytest.mark.parametrize("stops", [[10], [1], [3, 9, 13], [19]])
def test_resumed_equals_uninterrupted(prepared, whole, tmp_path, stops):
    for number, stop in enumerate(stops):
        assert not run(make_config(), prepared, tmp_path, stop, resume=number > 0)
        assert checkpoint.load(tmp_path / "state.safetensors")[1].step == stop
    torch.manual_seed(99)  # whatever happened in between
    assert run(make_config(), prepared, tmp_path, resume=True)
    if min(stops) >= 5:
        assert_same_run(whole, tmp_path)
    else:  # stopped before the first evaluation, it is evaluated then, so that there is something to read
        for name, tensor in state(whole).items():
            assert torch.equal(tensor, state(tmp_path)[name]), name


def test_what_was_not_saved_comes_again(prepared, whole, tmp_path, monkeypatch):
    """Stopped dead after step 7, of which the last save, at step 4, knows nothing."""

    def step_once(self) -> None:
        if self.step == 7:
            self.log.flush()
            raise SystemError
        take(self)

    take = loop.Trainer.step_once
    with monkeypatch.context() as patched, pytest.raises(SystemError):
        patched.setattr(loop.Trainer, "step_once", step_once)
        loop.train(make_config(), prepared, tmp_path)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == 7
    assert "=== step 5" in (tmp_path / "samples.txt").read_text(encoding="utf-8")
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 8, "lo')  # a line that the kill cut short
    assert run(make_config(), prepared, tmp_path, resume=True)
    assert_same_run(whole, tmp_path)


def test_evaluating_more_often_changes_nothing_learned(prepared, whole, tmp_path):
    changes = {
        "train.eval_every_steps": 1,
        "train.sample_every_steps": 1,
        "train.save_every_steps": 1,
        "train.snapshots": 0,
    }
    assert run(make_config(**changes), prepared, tmp_path)
    for name, tensor in state(whole).items():
        assert torch.equal(tensor, state(tmp_path)[name]), name


def test_another_seed_is_another_run(prepared, whole, tmp_path):
    assert run(make_config(**{"train.seed": 2}), prepared, tmp_path)
    assert not torch.equal(state(whole)["model.token.weight"], state(tmp_path)["model.token.weight"])


def test_a_larger_total_goes_on_with_what_the_schedule_then_says(prepared, tmp_path):
    config = make_config()
    assert run(config, prepared, tmp_path)
    longer = make_config(**{"train.steps": 2 * STEPS})
    assert run(longer, prepared, tmp_path, resume=True)
    rates = {line["step"]: line["learning_rate"] for line in read_metrics(tmp_path / "metrics.jsonl") if "loss" in line}
    assert rates[40] > 0 and max(rates) == 40
    from training.schedule import learning_rate

    assert rates[30] == pytest.approx(learning_rate(29 / 40, longer.train))


def test_another_text_or_tokenizer_is_refused(prepared, whole, tmp_path):
    other = prepare(sentences(121), TokenizerConfig(vocab_size=331), 10_000, folder=tmp_path)
    with pytest.raises(ValueError, match="state.safetensors was not trained with .*tokenizer.model"):
        loop.train(make_config(), other, whole, resume=True)
    import dataclasses

    swapped = dataclasses.replace(other, tokenizer=prepared.tokenizer)
    with pytest.raises(ValueError, match="the text is not the one"):
        loop.train(make_config(), swapped, whole, resume=True)


def test_the_threads_of_the_run_are_used_again(prepared, whole, capsys):
    torch.set_num_threads(2)
    loop.train(make_config(), prepared, whole, resume=True)
    assert torch.get_num_threads() == 1
    assert "using 1 threads as this run did before" in capsys.readouterr().out


def test_snapshots_are_spaced_by_the_logarithm(prepared, whole):
    steps = sorted(int(path.stem.removeprefix("step-")) for path in (whole / "snapshots").iterdir())
    assert steps[0] == 0 and steps[-1] == STEPS and 8 <= len(steps) <= 20
    half = load_file(whole / "snapshots" / f"step-{STEPS}.safetensors")
    assert all(tensor.dtype == torch.float16 for tensor in half.values())
    assert torch.equal(half["token.weight"], state(whole)["model.token.weight"].half())


def test_minutes_are_wall_time(prepared, tmp_path):
    config = make_config(**{"train.steps": None, "train.minutes": 0.05, "train.eval_every_steps": 1000})
    assert run(config, prepared, tmp_path)
    last = [line for line in read_metrics(tmp_path / "metrics.jsonl") if "loss" in line][-1]
    assert 2 < last["seconds"] < 30  # three, and whatever a busy machine adds to the last step
    assert last["learning_rate"] < 0.1 * config.train.rate  # the schedule came to its end


def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_save(prepared, tmp_path):
    config = make_config(**{"train.learning_rate": 1e30, "train.warmup": 0.0, "train.max_norm": 1e30})
    with pytest.raises(ArithmeticError, match=r"stopped before step \d+ at rate .*the loss is"):
        run(config, prepared, tmp_path)
    tensors, progress = checkpoint.load(tmp_path / "state.safetensors")
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert progress.step <= 4


@pytest.mark.parametrize("kills", [KILLS, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_again_and_again_it_is_the_same_run(tmp_path, corpus, kills):
    """SIGKILL at random moments, in preparing, starting, training and saving; then to the end."""
    more = f"--model.dropout 0.1 --train.steps {100 * kills} --train.save_every_steps 3 --train.eval_every_steps 20"
    start = ["--data.path", str(corpus), *SMALL, *more.split(), "--train.sample_every_steps", "10", "--run"]
    assert process("train", *start, "undisturbed", cwd=tmp_path, seconds=900).returncode == 0
    chance, came_to = random.Random(int(SEED or 1)), []
    for _ in range(kills):
        begun = (tmp_path / "killed" / "config.yaml").exists()
        arguments = ["--resume", "--run", "killed"] if begun else [*start, "killed"]
        command = [sys.executable, "-u", str(PROJECT / "train.py"), *arguments]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
            assert running.stdout is not None
            for _ in range(chance.choice([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])):  # lines of ten steps; 0: while it starts
                next(line for line in running.stdout if b"loss" in line)
            time.sleep(chance.uniform(0, 1.0 if chance.random() < 0.3 else 0.1))
            assert running.poll() is None, "the run ended before it could be killed"
            running.kill()
        lines = read_metrics(tmp_path / "killed" / "metrics.jsonl")
        came_to.append(lines[-1]["step"] if lines else 0)
    assert len(set(came_to)) > kills / 2, came_to  # it was killed on its way, and not always at the same place
    result = process("train", "--resume", "--run", "killed", cwd=tmp_path, seconds=900)
    assert result.returncode == 0, result.stderr
    assert_same_run(tmp_path / "undisturbed", tmp_path / "killed")


def test_killed_before_the_first_save_it_starts_anew(tmp_path, corpus, monkeypatch):
    flags = [*SMALL, "--data.path", corpus, "--train.steps", 3, "--run"]
    assert door("train", *flags, "whole", cwd=tmp_path).returncode == 0
    for moment in ("evaluate", "save"):
        with monkeypatch.context() as patched, pytest.raises(SystemError):
            patched.setattr(loop.Trainer, moment, lambda self: (_ for _ in ()).throw(SystemError("killed")))
            patched.chdir(tmp_path)
            train_door.main([str(flag) for flag in [*flags, moment]])
        assert not (tmp_path / moment / "state.safetensors").exists()
        result = door("train", "--resume", "--run", moment, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        for name, tensor in state(tmp_path / "whole").items():
            assert torch.equal(tensor, state(tmp_path / moment)[name]), name
        steps = [line["step"] for line in read_metrics(tmp_path / moment / "metrics.jsonl")]
        assert steps == [line["step"] for line in read_metrics(tmp_path / "whole" / "metrics.jsonl")]


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_saves_and_has_its_exit_code(tmp_path, corpus, name, code):
    command = [sys.executable, str(PROJECT / "train.py"), "--data.path", str(corpus), *SMALL, "--train.steps", "100000"]
    with subprocess.Popen(
        [*command, "--run", "stopped"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as running:
        for line in running.stdout:
            if line.startswith("step 10 "):
                running.send_signal(getattr(signal, name))
                break
        out, err = running.communicate(timeout=60)
    assert running.returncode == code and "Traceback" not in err, err
    assert "stopped and saved; go on by: python train.py --resume --run stopped" in out
    step = checkpoint.load(tmp_path / "stopped" / "state.safetensors")[1].step
    assert 10 <= step < 100_000
    assert step == read_metrics(tmp_path / "stopped" / "metrics.jsonl")[-1]["step"] or step % 10
    assert (tmp_path / "stopped" / "curve.png").stat().st_size > 1000
    assert door("sample", "--run", "stopped", "--tokens", "3", cwd=tmp_path).returncode == 0


def test_a_signal_that_is_ignored_stays_ignored(prepared, tmp_path, monkeypatch):
    """As SIGHUP is under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take = loop.Trainer.step_once

    def step_once(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        take(self)

    try:
        monkeypatch.setattr(loop.Trainer, "step_once", step_once)
        assert loop.train(make_config(**{"train.steps": 3}), prepared, tmp_path) == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_nearest_snapshot_can_be_read(whole, prepared, tmp_path):
    from run.folder import nearest_snapshot, snapshots

    steps = sorted(snapshots(whole))
    assert nearest_snapshot(whole, 0) == snapshots(whole)[0] and nearest_snapshot(whole, 999) == snapshots(whole)[STEPS]
    assert nearest_snapshot(whole, steps[2]).name == f"step-{steps[2]}.safetensors"
    with pytest.raises(FileNotFoundError, match="has no snapshots"):
        nearest_snapshot(tmp_path, 3)


def test_finished_runs_and_clashing_settings(run_copy, tmp_path):
    result = door("train", "--resume", "--run", run_copy, cwd=tmp_path)
    assert result.returncode == 0 and "is finished" in result.stdout
    before = {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()}
    result = door("train", "--resume", "--run", run_copy, "--model.width", 32, "--train.seed", 1, cwd=tmp_path)
    assert (
        result.returncode == 1
        and "--model.width cannot change" in result.stderr
        and "--train.seed" not in result.stderr
    )
    result = door("train", "--run", run_copy, "--train.steps", 5, cwd=tmp_path)
    assert result.returncode == 1 and "holds a run already" in result.stderr
    assert before == {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()}
    result = door("train", "--resume", "--run", run_copy, "--train.steps", 45, cwd=tmp_path)
    assert result.returncode == 0 and "train.steps is now 45 (was 40)" in result.stdout, result.stderr
    assert checkpoint.load(run_copy / "state.safetensors")[1].step == 45


@pytest.fixture
def run_copy(run, tmp_path):
    import shutil

    shutil.copytree(run.parent.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / "runs" / "lines"
    edit_config(copy, str(run.parent.parent), str(tmp_path / "copy"))
    return copy


def test_a_damaged_or_missing_file_of_a_run_is_named(run_copy, tmp_path):
    for name in ("state.safetensors", "model.safetensors", "tokenizer.model", "config.yaml"):
        whole = (run_copy / name).read_bytes()
        flipped = (len(whole) // 3, len(whole) - 3, 150)
        damaged = [whole[: len(whole) // 2], whole[:-1], b"", None]
        damaged += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in flipped]
        for content in damaged:
            (run_copy / name).unlink(missing_ok=True)
            if content is not None:
                (run_copy / name).write_bytes(content)
            result = door("train", "--resume", "--run", run_copy, "--train.steps", "41", cwd=tmp_path)
            assert result.returncode == 1 and name in result.stderr and "Traceback" not in result.stderr, (
                name,
                content and len(content),
                result.stderr,
            )
            assert len(result.stderr.splitlines()) <= 2 and "--debug shows" not in result.stderr
        (run_copy / name).write_bytes(whole)


def test_a_config_changed_by_hand_is_taken_when_its_checksum_is(run_copy, tmp_path):
    path = run_copy / "config.yaml"
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + rest.replace(b"log_every_steps: 10", b"log_every_steps: 11"))
    refused = door("sample", "--run", run_copy, "--tokens", 1, cwd=tmp_path)
    assert refused.returncode == 1 and "without its first line it is taken" in refused.stderr
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    assert door("sample", "--run", run_copy, "--tokens", 1, cwd=tmp_path).returncode == 0


def test_nothing_is_ever_unpickled():
    sources = [
        *PROJECT.glob("*.py"),
        *(path for part in ("data", "model", "training") for path in (PROJECT / part).rglob("*.py")),
    ]
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert "torch.load(" not in text and "pickle" not in text.replace("unpickled", ""), path


def test_the_newest_run_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run under .*python train.py"):
        newest_run()
    for age, name in enumerate(("old", "new", "older")):
        file = tmp_path / "runs" / name / "model.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
        os.utime(file, (1000 - [2, 1, 3][age], 1000 - [2, 1, 3][age]))
    assert newest_run().name == "new"


def test_the_curve_shows_every_evaluation(prepared, tmp_path, monkeypatch):
    from training import log

    seen = []
    monkeypatch.setattr(
        log, "draw_curve", lambda folder: seen.append(read_metrics(folder / "metrics.jsonl")[-1]["step"])
    )
    run(make_config(), prepared, tmp_path)
    assert seen == [0, 5, 10, 15, 20]


def test_metrics_are_lines_of_json(whole):
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [*range(1, 11), 20]
    assert set(training[0]) == {"step", "seconds", "loss", "bits_per_character", "learning_rate", "tokens_per_second"}
    validation = [line for line in lines if "loss" not in line]
    assert [line["step"] for line in validation] == [0, 5, 10, 15, 20]
    assert set(validation[0]) == {"step", "validation_bits_per_character"}
    assert training[-1]["loss"] < training[0]["loss"]
