"""What the tests share: a tiny model whose axes all differ in size, a tokenizer, a corpus, a way to call the doors."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, seed, settings

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.split import survey
from doors.door import run_door
from model.config import ModelConfig
from model.gpt import GPT
from run.config import sealed

PROJECT = Path(__file__).resolve().parent.parent
SEED = os.environ.get("MALSSI_SEED")  # draws other inputs than those of every other time
V, B, T = 31, 3, 7  # vocabulary, sequences, positions: each axis of a size that no other has


def fuzzed(examples: int):
    """Try so many drawn inputs, the same each time unless MALSSI_SEED is set."""
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    drawn = settings(
        max_examples=examples, deadline=None, derandomize=SEED is None, database=None, suppress_health_check=slow
    )
    return lambda test: seed(int(SEED))(drawn(test)) if SEED else drawn(test)


@pytest.fixture(scope="session", autouse=True)
def prepared_elsewhere(tmp_path_factory: pytest.TempPathFactory):
    with mock.patch("data.prepare.FOLDER", tmp_path_factory.mktemp("prepared")):
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def make_model(**changes) -> GPT:
    """A model of 2 layers, 5 heads of width 4, context 16."""
    settings = {"layers": 2, "heads": 5, "width": 20, "context": 16} | changes
    return GPT(ModelConfig(**settings), V).eval()


def wide(**changes) -> GPT:
    """A model with opinions: its matrices are larger than those of an untrained one."""
    model = make_model(**changes)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(8)
    return model


@pytest.fixture
def tiny() -> GPT:
    return make_model()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))


def sentences(count: int) -> list[str]:
    """Simple Korean sentences, each different."""
    who = ["나는", "고양이가", "할머니가", "누리는", "바우가", "토끼가", "선생님이"]
    what = ["사과를", "나무를", "작은 집을", "바다를", "우산을", "편지를"]
    how = ["맛있게", "천천히", "혼자", "다시", "조용히"]
    did = ["먹었다.", "보았다.", "그렸다.", "찾았다.", "기다렸다."]
    every = [f"{a} {c} {b} {d}" for a in who for b in what for c in how for d in did]
    return [every[index * 13 % len(every)] for index in range(count)]


def split(documents: list[str]) -> tuple[list[str], list[str]]:
    """The training and the validation side of documents."""
    found = survey(documents)
    return list(found.side(documents, validation=False)), list(found.side(documents, validation=True))


@pytest.fixture(scope="session")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.train(sentences(200), TokenizerConfig(vocab_size=400))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text file of sixty documents of two lines."""
    lines = sentences(120)
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join("\n".join(lines[at : at + 2]) for at in range(0, 120, 2)) + "\n", encoding="utf-8")
    return path


SMALL = (
    "--model.layers 1 --model.heads 2 --model.width 16 --model.context 16 --tokenizer.vocab_size 330 --device cpu "
    "--precision fp32 --compile off --train.batch_size 4 --train.snapshots 0 --train.sample_every_steps 0"
).split()


def edit_config(run: Path, old: str, new: str) -> None:
    """Put `new` for `old` in the config of a run, its checksum renewed."""
    path = run / "config.yaml"
    text = path.read_text(encoding="utf-8").split("\n", 1)[1]
    assert old in text
    path.write_bytes(sealed(text.replace(old, new)))


@dataclass
class Result:
    """What a door left behind."""

    returncode: int
    stdout: str
    stderr: str


def door(name: str, *arguments: object, cwd: Path, stdin: str = "") -> Result:
    """Call a door in this process as its command line would, from the folder `cwd`."""
    out, err = io.StringIO(), io.StringIO()
    before, threads = os.getcwd(), torch.get_num_threads()
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.stdin", io.StringIO(stdin)):
            code = run_door(import_module(name).main, [str(argument) for argument in arguments])
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)
    return Result(code, out.getvalue(), err.getvalue())


def process(name: str, *arguments: object, cwd: Path, seconds: int = 120, **environment: str) -> Result:
    """Run a door as a process of its own, with Python told to report every file opened in the locale's encoding."""
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(PROJECT / f"{name}.py"), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of forty steps on two hundred one-line documents, trained once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("trained")
    torch.set_num_threads(1)
    (folder / "lines.txt").write_text("\n".join(sentences(200)) + "\n", encoding="utf-8")
    result = door(
        "train", "--data.path", "lines.txt", "--data.unit", "line", *SMALL, "--train.steps", 40, "--run", "runs/lines",
        "--train.learning_rate", "1e-2", cwd=folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder / "runs" / "lines"
