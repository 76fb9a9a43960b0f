"""The measurement of preparing: memory of all processes, parts that add up, a peer that encodes as much."""

import json
import math
import subprocess
import sys
import time

import pytest

from bench import prepare
from tests.conftest import sentences


@pytest.mark.whole
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone tells RssAnon")
def test_at_toy_size(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(sentences(300)), encoding="utf-8")
    arguments = ["--text", str(tmp_path / "lines.txt"), "--megabytes", "0.3", "--vocabulary", "400"]
    assert prepare.main([*arguments, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    seconds = {part: found[f"seconds_{part}"]["median"] for part in ("reading", "learning", "encoding")}
    figures = [value["median"] for row in found["rows"] for value in row.values() if isinstance(value, dict)]
    assert len(figures) == 2 * 4
    assert all(math.isfinite(figure) and figure > 0 for figure in [*figures, *seconds.values()])
    for row in found["rows"]:
        every = found["MB_of_text"] / sum(seconds.values()) / row["its MB/s"]["median"]
        assert row["share, with the tokenizer"]["median"] == pytest.approx(every, rel=0.03)


def test_the_text_is_lengthened_without_repeating_a_line(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(sentences(30)), encoding="utf-8")
    prepare.lengthen([tmp_path / "lines.txt"], tmp_path / "long.txt", 10_000)
    lines = (tmp_path / "long.txt").read_text(encoding="utf-8").splitlines()
    assert (tmp_path / "long.txt").stat().st_size >= 10_000
    assert len(set(lines)) == len(lines) and lines[30] == f"{sentences(30)[0]} 1"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone tells RssAnon")
def test_memory_counts_what_a_process_started(tmp_path):
    hold = "import time; held = bytearray(b'x') * 50_000_000; print(flush=True); time.sleep(60)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.1)
        assert 50_000_000 < prepare.anonymous(process.pid) < 90_000_000
        subprocess.run(["pkill", "-P", str(process.pid)], check=False)
        process.kill()
    assert prepare.anonymous(process.pid) == 0
