"""A disk that is full or cannot be written costs nothing but the command: one line names it, what was saved is whole.

Each scenario runs in a mount namespace of its own, on a small file system in memory.
"""

import json
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import PROJECT, SMALL, process, sentences
from tests.training.test_resume import assert_same_run

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
POSSIBLE = (
    shutil.which("unshare")
    and not subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    ).returncode
)
pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not POSSIBLE, reason="no namespace of its own can be mounted in here"),
]

PRELUDE = """
import json, os, shutil, subprocess, sys
from pathlib import Path

def mount(folder, size):
    Path(folder).mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)

def fill(folder, leave):
    with open(Path(folder) / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(os.path.getsize(file.name) - leave)

def door(name, *arguments):
    done = subprocess.run([sys.executable, f"PROJECT/{name}.py", *arguments], capture_output=True, encoding="utf-8")
    return done.returncode, done.stderr
""".replace("PROJECT", str(PROJECT))


def inside(code, cwd):
    """Run `code` where it may mount; return what it prints as JSON."""
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        cwd=cwd, capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def half(tmp_path, corpus):
    """A folder with a run of ten steps in it."""
    small = [*SMALL, "--data.path", corpus, "--train.eval_every_steps", 5, "--train.save_every_steps", 5]
    assert process("train", *small, "--run", "half", "--train.steps", 10, cwd=tmp_path).returncode == 0
    return tmp_path


def one_line(message, *words):
    assert len(message.splitlines()) == 1 and message.startswith("error: "), message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("leave", [0, 4096, 8192, 16_384])
def test_a_full_disk_in_training_leaves_the_saved_state_whole(half, leave):
    code, message, again, second = inside(
        f"""
        mount("disk", "1m")
        shutil.copytree("half", "disk/run")
        fill("disk", {leave})
        before = Path("disk/run/state.safetensors").read_bytes()
        resume = ("train", "--resume", "--run", "disk/run", "--train.steps", "20")
        code, message = door(*resume)
        whole = Path("disk/run/state.safetensors").read_bytes() == before
        os.unlink("disk/filler")
        again, second = door(*resume)
        shutil.copytree("disk/run", "mended")
        print(json.dumps([code, message if whole else "not whole", again, second]))
        """,
        half,
    )
    assert code == 1
    one_line(message, "the disk that holds", "is full", "disk/run/")
    assert again == 0, second
    stretched = process("train", "--resume", "--run", "half", "--train.steps", 20, cwd=half)
    assert stretched.returncode == 0
    assert_same_run(half / "half", half / "mended")


def test_a_disk_that_fills_with_metrics(half):
    code, message = inside(
        """
        mount("disk", "1m")
        shutil.copytree("half", "disk/run")
        fill("disk", 65536)
        more = ("--train.steps", "100000", "--train.log_every_steps", "1")
        # The state is never saved again before the disk is full.
        config = Path("disk/run/config.yaml")
        text = config.read_text(encoding="utf-8").split("\\n", 1)[1]
        config.write_text(text.replace("_every_steps: 5\\n", "_every_steps: 90000\\n"), encoding="utf-8")
        print(json.dumps(door("train", "--resume", "--run", "disk/run", *more)))
        """,
        half,
    )
    assert code == 1
    one_line(message, "the disk that holds", "metrics.jsonl is full")


def test_a_full_disk_in_preparing_leaves_nothing_half(tmp_path):
    numbered = [f"{sentence} {number}" for number, sentence in enumerate(sentences(500) * 30)]
    (tmp_path / "a.txt").write_text("\n".join(numbered), encoding="utf-8")
    code, message, left = inside(
        f"""
        prepared = "{PROJECT}/data/prepared"
        mount(prepared, "64k")
        arguments = ("--data.path", "a.txt", "--data.unit", "line", "--tokenizer.vocab_size", "400")
        code, message = door("train", *arguments, "--train.steps", "0")
        left = [str(path) for path in Path(prepared).rglob("*.safetensors")]
        print(json.dumps([code, message, left]))
        """,
        tmp_path,
    )
    assert code == 1 and left == []
    one_line(message, "the disk that holds", "data/prepared", "is full")


@pytest.mark.parametrize("what", ["run", "prepared"])
def test_a_folder_that_cannot_be_written(half, what):
    code, message = inside(
        f"""
        folder = "{PROJECT}/data/prepared" if "{what}" == "prepared" else "disk"
        mount(folder, "1m")
        if "{what}" == "run":
            shutil.copytree("half", "disk/run")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        resume = ("train", "--resume", "--run", "disk/run" if "{what}" == "run" else "half", "--train.steps", "20")
        print(json.dumps(door(*resume)))
        """,
        half,
    )
    assert code == 1
    one_line(message, "Read-only file system", "disk/run" if what == "run" else "data/prepared")
