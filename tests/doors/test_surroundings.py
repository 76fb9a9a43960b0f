"""What is round a run, a terminal, a notebook, a full disk behind stdout, other processes, never stops or spoils it."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from run import checkpoint
from run.folder import claimed, occupied
from tests.conftest import PROJECT, SMALL, door, process, sentences
from training.log import read_metrics

SOME = [*SMALL, "--train.steps", 12, "--train.eval_every_steps", 4, "--train.sample_every_steps", 4]


def command(corpus, *more):
    return [sys.executable, "-u", str(PROJECT / "train.py"), "--data.path", str(corpus), *map(str, [*SOME, *more])]


def whole(folder):
    """The run came to its end, and its figures are there."""
    assert read_metrics(folder / "metrics.jsonl")[-1]["step"] == 12
    return checkpoint.load(folder / "state.safetensors")[1].finished


# Pictures


@pytest.mark.whole
@pytest.mark.parametrize("name", ["module://matplotlib_inline.backend_inline", "nonsense", "TkAgg"])
def test_the_backend_of_a_notebook_stops_nothing(run, tmp_path, corpus, name):
    result = process("train", "--data.path", corpus, *SOME, "--run", "r", cwd=tmp_path, MPLBACKEND=name)
    assert result.returncode == 0 and whole(tmp_path / "r"), result.stderr
    assert (tmp_path / "r" / "curve.png").read_bytes()[:4] == b"\x89PNG"
    result = process("attend", "나는 사과를", "--run", run, "-o", "a.png", cwd=tmp_path, MPLBACKEND=name)
    assert result.returncode == 0 and (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG", result.stderr


@pytest.mark.whole
def test_a_style_that_cannot_be_drawn_is_not_used(run, tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nbackend: TkAgg\n", encoding="utf-8")
    result = process("attend", "나는 사과를", "--run", run, "-o", "a.png", cwd=tmp_path, MATPLOTLIBRC=str(tmp_path))
    assert result.returncode == 0 and (tmp_path / "a.png").exists(), result.stderr


def test_a_curve_that_cannot_be_drawn_is_said_once(tmp_path, corpus, monkeypatch):
    from training import log

    monkeypatch.setattr(log, "draw_curve", lambda folder: (_ for _ in ()).throw(RuntimeError("no latex")))
    result = door("train", "--data.path", corpus, *SOME, "--run", "r", cwd=tmp_path)
    assert result.returncode == 0 and whole(tmp_path / "r")
    assert result.stdout.count("curve.png could not be drawn (no latex)") == 1


# Streams


def test_a_reader_that_goes_away_stops_no_training(tmp_path, corpus):
    with subprocess.Popen(
        command(corpus, "--run", "r"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdout.readline()
        running.stdout.close()
        err = running.stderr.read().decode("utf-8")
        assert running.wait(60) == 0, err
    assert whole(tmp_path / "r") and err.count("could not be shown to its end") == 1


@pytest.mark.whole
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_behind_stdout_or_stderr(run, tmp_path, corpus):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command(corpus, "--run", "r"), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0 and whole(tmp_path / "r"), done.stderr
        asked = [sys.executable, str(PROJECT / "sample.py"), "--run", str(run), "--prompt", "나는", "--tokens", "5"]
        done = subprocess.run(asked, stdout=subprocess.PIPE, stderr=full, check=False)
        assert done.returncode == 0 and done.stdout.decode("utf-8").startswith("나는")


@pytest.mark.whole
def test_a_closed_terminal_stops_no_training(tmp_path, corpus):
    master, slave = pty.openpty()
    ignoring = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731, as nohup and disown do
    with subprocess.Popen(
        command(corpus, "--run", "r"), cwd=tmp_path, stdout=slave, stderr=slave, stdin=slave, preexec_fn=ignoring
    ) as running:
        os.close(slave)
        os.read(master, 10)
        os.close(master)
        assert running.wait(60) == 0
    assert whole(tmp_path / "r")


@pytest.mark.whole
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_do_not_exist(run, tmp_path, corpus, closed):
    asked = " ".join(f"'{part}'" for part in command(corpus, "--run", "r"))
    assert subprocess.run(f"{asked} {closed}", shell=True, cwd=tmp_path, check=False).returncode == 0
    assert whole(tmp_path / "r")
    asked = f"'{sys.executable}' '{PROJECT / 'sample.py'}' --run '{run}' --prompt 나는 --tokens 3 --json"
    done = subprocess.run(f"{asked} {closed}", shell=True, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
    if not closed.startswith(">"):
        assert json.loads(done.stdout)["prompt"] == "나는"
    done = subprocess.run(f"{asked.replace('--prompt 나는', '--interactive')} <&-", shell=True, check=False)
    assert done.returncode == 0


# Folders


@pytest.mark.whole
def test_two_starts_never_share_a_folder(tmp_path, corpus):
    """Both see no folder when they look; the one that comes second under the lock takes the next name."""
    running = [subprocess.Popen(command(corpus), cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(90) for process in running] == [0, 0]
    assert whole(tmp_path / "runs" / "tiny") and whole(tmp_path / "runs" / "tiny-2")
    running = [subprocess.Popen(command(corpus, "--run", "same"), cwd=tmp_path, stderr=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL) for _ in range(2)]  # fmt: skip
    assert sorted(process.wait(90) for process in running) == [0, 1]
    assert whole(tmp_path / "same")


def test_a_claim_is_looked_at_again_under_the_lock(tmp_path):
    first, lock = claimed(tmp_path / "tiny", fixed=False)
    second, other = claimed(tmp_path / "tiny", fixed=False)
    assert (first.name, second.name) == ("tiny", "tiny-2")
    with pytest.raises(ValueError, match="being trained by another process"):
        claimed(tmp_path / "tiny", fixed=True)
    for each in (lock, other):
        each.lock.release()
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="holds a run already"):
        claimed(tmp_path / "tiny", fixed=True)
    third, lock = claimed(tmp_path / "tiny", fixed=False)
    assert third.name == "tiny-2"
    lock.lock.release()


def test_a_name_that_a_file_or_a_dead_link_has_is_not_free(tmp_path):
    (tmp_path / "tiny").touch()
    (tmp_path / "tiny-2").symlink_to("nowhere")
    found, lock = claimed(tmp_path / "tiny", fixed=False)
    lock.lock.release()
    assert found.name == "tiny-3"
    for name in ("tiny", "tiny-2"):
        with pytest.raises(FileExistsError):
            claimed(tmp_path / name, fixed=True)


@pytest.mark.parametrize(
    "wrong", [["--precision", "fp16"], ["--model.context", 5000], ["--train.beta1", 1], ["--train.seed", 2**64]]
)
def test_a_start_that_failed_leaves_its_folder_free(tmp_path, corpus, wrong):
    result = door("train", "--data.path", corpus, *SOME, "--run", "r", *wrong, cwd=tmp_path)
    assert result.returncode in (1, 2) and not occupied(tmp_path / "r")
    result = door("train", "--data.path", corpus, *SOME, "--run", "r", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


# Numbers


@pytest.fixture
def not_a_number(run, tmp_path):
    """A run whose weights are NaN, sealed as if they were right."""
    import shutil

    shutil.copytree(run, tmp_path / "nan")
    path = tmp_path / "nan" / "model.safetensors"
    weights, progress = checkpoint.load(path)
    weights["norm.weight"] = torch.full_like(weights["norm.weight"], torch.nan)
    checkpoint.save(path, weights, progress)
    return tmp_path / "nan"


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("sample", ["--prompt", "나는"]), ("sample", ["--temperature", 0, "--json"]), ("evaluate", ["--json"]),
        ("attend", ["나는 사과를"]), ("attend", ["나는 사과를", "--format", "json"]),
        ("attend", ["나는", "-o", "a.html"]),
    ],
)  # fmt: skip
def test_weights_that_give_no_numbers_are_told_in_every_door(not_a_number, tmp_path, name, arguments):
    result = door(name, *arguments, "--run", not_a_number, cwd=tmp_path)
    assert result.returncode == 1 and "NaN" not in result.stdout
    assert result.stderr.splitlines()[-1].startswith("error: the weights give no finite numbers")
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    "name, flag, value",
    [
        ("sample", "--repetition-penalty", "1e-308"), ("sample", "--repetition-penalty", "nan"),
        ("sample", "--temperature", "inf"), ("sample", "--seed", 2**64), ("sample", "--seed", -1),
        ("sample", "--tokens", 2**70), ("sample", "--top-p", "nan"),
        ("train", "--train.seed", 2**64), ("train", "--tokenizer.vocab_size", 2**31),
        ("train", "--train.steps", 10**30),
        ("train", "--train.learning_rate", "1e300"), ("train", "--train.learning_rate", "nan"),
        ("train", "--train.beta1", 1), ("train", "--train.weight_decay", "inf"), ("train", "--train.max_norm", "inf"),
        ("train", "--train.minutes", "inf"), ("train", "--model.dropout", "nan"), ("train", "--train.snapshots", 10**9),
    ],
)  # fmt: skip
def test_every_number_has_its_bounds(run, tmp_path, corpus, name, flag, value):
    given = ["--run", run] if name == "sample" else ["--data.path", corpus, *SMALL]
    result = door(name, *given, flag, value, cwd=tmp_path)
    assert result.returncode in (1, 2) and flag.lstrip("-").split(".")[-1] in result.stderr, result.stderr
    assert "unexpected" not in result.stderr


@pytest.mark.parametrize(
    "error", ["[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you", "std::bad_alloc",
              "DefaultCPUAllocator: not enough memory: you tried to allocate", "CUDA out of memory. Tried"],
)  # fmt: skip
def test_out_of_memory_is_known_by_all_its_names(error, capsys):
    import sample
    from doors.door import run_door

    def main(_):
        raise RuntimeError(error)

    assert run_door(main, [], memory=sample.MEMORY) == 1
    assert capsys.readouterr().err == "error: out of memory: lower --count or --tokens\n"


# Prompts


def test_a_prompt_is_a_text(run, tmp_path):
    """BOM, line ends and decomposed Hangul, in every way that a prompt comes."""
    import unicodedata

    def ids(*arguments, stdin=""):
        result = door(
            "sample", "--run", run, "--tokens", 2, "--seed", 1, "--json", *arguments, cwd=tmp_path, stdin=stdin
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["ids"]

    expected = ids("--prompt", "나는 각")
    for other in ("\ufeff나는 각", unicodedata.normalize("NFD", "나는 각")):
        assert ids("--prompt", other) == expected
        (tmp_path / "prompt.txt").write_text(other, encoding="utf-8")
        assert ids("--prompt-file", "prompt.txt") == expected
        assert ids("--interactive", stdin=other + "\r\n") == expected
    for codec in ("cp949", "utf-16", "utf-8-sig"):
        (tmp_path / "prompt.txt").write_bytes("나는 각".encode(codec))
        assert ids("--prompt-file", "prompt.txt") == expected
    assert ids("--prompt", "나는 각".encode().decode("ascii", "surrogateescape")) == expected  # a locale without Hangul
    assert ids("--prompt", "나는\r각") == ids("--prompt", "나는\r\n각") == ids("--prompt", "나는\n각")


@pytest.mark.whole
def test_a_bad_line_costs_one_line(run, tmp_path):
    asked = [sys.executable, str(PROJECT / "sample.py"), "--run", str(run), "--tokens", "2", "--seed", "1", "--json"]
    lines = (
        b"\xb3\xaa\xb4\xc2\n\xff\xff\n\xef\xbb\xbf" + "나는".encode() + b"\r\n\0\n"
    )  # CP949, no encoding at all, BOM
    done = subprocess.run([*asked, "--interactive"], input=lines, capture_output=True, check=False)
    assert done.returncode == 0
    assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == ["나는", "나는"]
    assert done.stderr.decode("utf-8").count("error: ") == 2


def test_what_could_drive_a_terminal_is_shown_and_not_obeyed(run, tmp_path):
    from machine.streams import visible

    text = "가\x1b[31m\x9b1m\u202e\x07나👨‍👩‍👧\t\n"
    assert visible(text) == "가‹1B›[31m‹9B›1m‹202E›‹07›나👨‍👩‍👧\t\n"
    result = door("attend", "나는\x1b]\x07 집을", "--run", run, cwd=tmp_path)
    assert result.returncode == 0 and "\x1b]" not in result.stdout and "‹1B›" in result.stdout
    result = door("attend", "나는\x1b] 집을", "--run", run, "--format", "json", cwd=tmp_path)
    assert json.loads(result.stdout)["text"] == "나는\x1b] 집을"  # in a file it is what was typed


# Files


@pytest.mark.whole
def test_a_pipe_in_a_run_is_refused_and_not_waited_for(run, tmp_path):
    import shutil

    for name in ("samples.txt", "metrics.jsonl", "model.safetensors", "snapshots/step-3.safetensors"):
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        shutil.copytree(run, tmp_path / "r")
        (tmp_path / "r" / "snapshots").mkdir(exist_ok=True)
        (tmp_path / "r" / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / "r" / name)
        result = process("train", "--resume", "--run", "r", "--train.steps", 41, cwd=tmp_path, seconds=30)
        assert result.returncode == 1 and name in result.stderr and "no plain file" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names in any bytes")
def test_a_run_under_a_name_in_any_bytes_opens_again(tmp_path, corpus):
    name = os.fsdecode(b"run-\xb3\xaa")
    assert door("train", "--data.path", corpus, *SOME, "--run", name, cwd=tmp_path).returncode == 0
    for other, arguments in (("sample", ["--tokens", 2]), ("attend", ["나는 사과를"]), ("evaluate", [])):
        result = door(other, "--run", name, *arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    result = door("train", "--resume", "--run", name, "--train.steps", 13, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.whole
def test_a_page_that_cannot_be_written_leaves_the_older_one(run, tmp_path):
    import resource

    for name in ("keep.html", "keep.png", "keep.json", "keep.csv"):
        assert door("attend", "나는 사과를", "--run", run, "-o", name, cwd=tmp_path).returncode == 0
        before = (tmp_path / name).read_bytes()
        asked = [sys.executable, str(PROJECT / "attend.py"), "나는 작은 집을 보았다", "--run", str(run), "-o", name]
        short = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))  # noqa: E731
        done = subprocess.run(asked, cwd=tmp_path, preexec_fn=short, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 1 and name in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert (tmp_path / name).read_bytes() == before and not list(tmp_path.glob("*.new"))


def test_what_stands_in_a_folder_is_read_or_named(tmp_path):
    texts = sentences(90)
    folder, elsewhere = tmp_path / "d", tmp_path / "elsewhere"
    for place in (folder, elsewhere, folder / ".git", folder / "sub"):
        place.mkdir()
    (folder / "a.txt").write_text("\n".join(texts[:30]), encoding="utf-8")
    (elsewhere / "b.txt").write_text("\n".join(texts[30:60]), encoding="utf-8")
    (folder / "sub" / "c.ndjson").write_text(
        "\n".join(json.dumps({"text": text}) for text in texts[60:]), encoding="utf-8"
    )
    for name in (".hidden.txt", ".git/x.txt", "notes.pdf", "README.md"):
        (folder / name).write_text("아니다\n", encoding="utf-8")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "again.txt").symlink_to(folder / "a.txt")
    (folder / "dead.txt").symlink_to(folder / "nothing")
    (folder / "sub" / "round").symlink_to(folder)
    result = door("train", "--data.path", "d", *SMALL, "--data.unit", "line", "--train.steps", 0, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "90 documents by unit 'line'" in result.stdout
    for words in (".hidden.txt", ".git", "notes.pdf", "README.md", "dead.txt", "the same file as"):
        assert words in result.stdout, words


def test_json_by_another_name_is_no_text(tmp_path):
    import gzip

    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"text": "a"}'))
    result = door("train", "--data.path", "a.json.gz", *SMALL, "--train.steps", 0, cwd=tmp_path)
    assert result.returncode == 1 and ".json holds no rows" in result.stderr


def test_bytes_that_are_no_text_in_a_parquet_name_the_file(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    column = pa.array(["a", "b"]).cast(pa.binary())
    bad = pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe"))
    parquet.write_table(pa.table({"text": bad}), tmp_path / "bad.parquet")
    result = door("train", "--data.path", "bad.parquet", *SMALL, "--train.steps", 0, cwd=tmp_path)
    assert result.returncode == 1 and "bad.parquet" in result.stderr and "no UTF-8" in result.stderr, result.stderr
    parquet.write_table(pa.table([column, column], names=["text", "text"]), tmp_path / "two.parquet")
    result = door("train", "--data.path", "two.parquet", *SMALL, "--train.steps", 0, cwd=tmp_path)
    assert result.returncode == 1 and "2 columns 'text'" in result.stderr, result.stderr
    (tmp_path / "two.csv").write_text("text,text\na,b\n", encoding="utf-8")
    result = door("train", "--data.path", "two.csv", *SMALL, "--train.steps", 0, cwd=tmp_path)
    assert result.returncode == 1 and "2 columns 'text'" in result.stderr, result.stderr


def test_weights_are_read_from_their_bytes(run):
    tensors, _ = checkpoint.load(run / "model.safetensors")
    assert all(torch.equal(tensor, load_file(run / "model.safetensors")[name]) for name, tensor in tensors.items())
