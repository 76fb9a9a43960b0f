"""The measurement of whole processes: what is waited for, and what counts."""

import json
import math
import subprocess
import time

import pytest

from bench import startup
from tests.conftest import SMALL

PAUSE = 0.5
WRITES = f"""
import time
print("나는", end="", flush=True)
time.sleep({PAUSE})
print(" 집", end="", flush=True)
time.sleep({PAUSE})
print("에 갔다")
"""
DOORS = ("train", "sample", "attend", "evaluate")
WRITING = ["--prompt", "나는", "--seed", "1", "--tokens", "20"]
COMMANDS = [
    "python -c pass",
    "import torch",
    "python train.py --help",
    "python sample.py --help",
    "python attend.py --help",
    "python evaluate.py --help",
    "python sample.py --prompt 나는 --tokens 20, to its first token",
    "python sample.py --prompt 나는 --tokens 20, to its end",
]


def measured(path, *arguments):
    assert startup.main([*arguments, "--json", str(path)]) == 0
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [row["command"] for row in content["rows"]] == COMMANDS
    figures = [content["share_of_the_first_token_that_importing_torch_takes"]]
    figures += [row["seconds"] for row in content["rows"]]
    assert all(math.isfinite(value) and value > 0 for figure in figures for value in figure.values())
    return content


def test_a_warming_round_is_not_counted(monkeypatch, tmp_path):
    calls = []

    def until(arguments):
        calls.append(arguments)
        return 1000.0 if len(calls) <= len(COMMANDS) else float(len(calls))

    monkeypatch.setattr(startup, "until_the_end", until)
    monkeypatch.setattr(startup, "until_first_token", until)
    content = measured(tmp_path / "startup.json", "--run", str(tmp_path / "run"), "--repeats", "2")
    turn = calls[: len(COMMANDS)]
    assert calls == 3 * turn
    assert turn[1][1].startswith("import torch; print(")
    assert [turn[0], *turn[2:6]] == [["-c", "pass"], *([f"{d}.py", "--help"] for d in DOORS)]
    assert turn[6] == turn[7] == ["sample.py", "--run", str(tmp_path / "run"), *WRITING]
    assert content["rows"][0]["seconds"] == {"median": 13.0, "least": 9.0, "most": 17.0}
    share = content["share_of_the_first_token_that_importing_torch_takes"]
    assert (share["least"], share["most"]) == (pytest.approx(10 / 15, abs=1e-3), pytest.approx(18 / 23, abs=1e-3))


@pytest.mark.whole
def test_without_a_run_one_is_trained(corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(startup, "BRIEFLY", [*SMALL, "--train.steps", "2", "--data.path", str(corpus)])
    monkeypatch.setattr(startup, "until_the_end", lambda arguments: 1.0)  # doors/ has the doors themselves
    measured(tmp_path / "startup.json", "--repeats", "1")
    assert "no --run is given: training one of a few steps" in capsys.readouterr().err


def test_the_first_token_is_what_follows_the_prompt():
    start = time.perf_counter()
    found = startup.until_first_token(["-c", WRITES])
    rest = time.perf_counter() - start - found
    assert found >= PAUSE and rest >= PAUSE  # not the prompt before the one pause, nor the end after the other


def test_a_model_that_writes_nothing_is_told():
    with pytest.raises(ValueError, match="writes nothing behind its prompt"):
        startup.until_first_token(["-c", "print('나는')"])


@pytest.mark.parametrize("until", [startup.until_first_token, startup.until_the_end])
def test_a_command_that_fails_is_no_measurement(until):
    with pytest.raises(subprocess.CalledProcessError):
        until(["-c", "print('나는 집에'); raise SystemExit(3)"])


def test_a_command_takes_its_time():
    assert startup.until_the_end(["-c", f"import time; time.sleep({PAUSE})"]) >= PAUSE
