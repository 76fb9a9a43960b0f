"""Preparing a large text: memory beyond the interpreter, and the rate against processes that only encode.

The text is the given one, a line a document, repeated with a number behind each line until it is as long as asked for.
Memory is RssAnon of the process and of all it started, summed, less what the interpreter holds with its imports before
it begins; so the other processes count whole. The peer holds its documents ready in memory, in as many processes as
there are cores, and encodes them, no more. Only Linux shows RssAnon.

python -m bench.prepare --text reviews-train.txt --megabytes 1000
"""

import argparse
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from bench.measure import PROJECT, in_turn, parser, report, spread

PARTS = ("reading", "learning", "encoding")
INCLUDED = {"encoding": ("encoding",), "with reading": ("reading", "encoding"), "with the tokenizer": PARTS}
PEER_BYTES = 50_000_000  # for each process of the peer: enough for a rate, little enough for its memory


def main(arguments: list[str] | None = None) -> int:
    """Prepare the text in a process that is watched, then let the peer encode."""
    flags = parser(__doc__, repeats=1)
    flags.add_argument("--text", type=Path, nargs="+", default=[PROJECT / "data" / "corpus"], metavar="PATH")
    flags.add_argument("--megabytes", type=float, default=1000, metavar="N", help="of text to prepare (1,000)")
    flags.add_argument("--vocabulary", type=int, default=4096, metavar="N", help="tokens of the tokenizer (4,096)")
    flags.add_argument("--one", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = flags.parse_args(arguments)
    if options.one:
        text, folder = options.one
        print(json.dumps(prepare_one(text, folder, options.vocabulary)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        lengthen(options.text, text, round(options.megabytes * 1e6))
        size = text.stat().st_size
        found = in_turn({"malssi": lambda: watched(text, options.vocabulary)}, options.repeats)["malssi"]
        peers = {
            "one document a call": [rate(text, run["tokenizer"], size, together=False) for run in found],
            "as malssi encodes": [rate(text, run["tokenizer"], size, together=True) for run in found],
        }
    rows = [
        {
            "peer": name,
            "its MB/s": spread([each / 1e6 for each in peer]),
            **{
                f"share, {what}": spread(
                    [size / sum(run[part] for part in parts) / each for run, each in zip(found, peer, strict=True)]
                )
                for what, parts in INCLUDED.items()
            },
        }
        for name, peer in peers.items()
    ]
    seconds = {f"seconds_{part}": spread([run[part] for run in found]) for part in PARTS}
    memory = spread([run["memory"] / 1e6 for run in found])
    report(f"Preparing {size / 1e6:,.0f} MB", rows, options, MB_of_text=size / 1e6, MB_of_memory=memory, **seconds)
    return 0


def lengthen(paths: list[Path], to: Path, size: int) -> None:
    """Write the lines that hold text again and again, a number behind each, until there are `size` bytes."""
    from data.config import DataConfig
    from data.read import Text

    lines = list(Text(DataConfig(path=tuple(str(path.resolve()) for path in paths), unit="line")))
    with to.open("w", encoding="utf-8", newline="\n") as file:
        for number in count():
            for start in range(0, len(lines), 10_000):
                file.writelines(f"{line} {number}\n" for line in lines[start : start + 10_000])
                if file.tell() >= size:
                    return


def prepare_one(text: Path, folder: Path, vocabulary: int) -> dict[str, float]:
    """Prepare in this process; return what its parts took."""
    from data.config import DataConfig, TokenizerConfig
    from data.prepare import prepare
    from data.read import Text

    print("ready", flush=True)
    sys.stdin.readline()  # the watcher has taken down what the imports hold
    began, times = time.perf_counter(), dict[str, float]()

    def say(line: str) -> None:
        for sign, part in (("documents by", "reading"), ("encoding", "learning")):
            if sign in line:
                times[part] = time.perf_counter() - began - sum(times.values())

    ready = prepare(Text(DataConfig(path=(str(text),), unit="line"), say), TokenizerConfig(vocab_size=vocabulary),
                    50_000, say, folder)  # fmt: skip
    times["encoding"] = time.perf_counter() - began - sum(times.values())
    (folder / "bench.model").write_bytes(ready.tokenizer.model)
    return times


def watched(text: Path, vocabulary: int) -> dict[str, Any]:
    """Run `prepare_one` in a process of its own; return what it tells, its tokenizer and its highest memory."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        command = [sys.executable, "-m", "bench.prepare", "--vocabulary", str(vocabulary), "--one", str(text), folder]
        with subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        ) as process:
            assert process.stdout is not None and process.stdin is not None
            process.stdout.readline()
            before = highest = anonymous(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            while process.poll() is None:
                highest = max(highest, anonymous(process.pid))
                time.sleep(0.02)
            found = json.loads(process.stdout.read())
        return found | {"memory": highest - before, "tokenizer": (Path(folder) / "bench.model").read_bytes()}


def anonymous(pid: int) -> int:
    """Return the bytes of RssAnon of a process and of all that it started; 0 for one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return 0
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.M)
    return (1024 * int(found[1]) if found else 0) + sum(anonymous(int(child)) for child in children)


def rate(text: Path, tokenizer: bytes, size: int, together: bool) -> float:
    """Return the bytes a second that as many processes as cores encode together, each its own part of the text."""
    from data.encoding import cores

    processes, context = cores(), multiprocessing.get_context("spawn")
    start, done = context.Barrier(processes + 1), context.Barrier(processes + 1)
    part = min(PEER_BYTES, size // processes)
    workers = [
        context.Process(
            target=only_encode, args=(text, tokenizer, number * (size // processes), part, together, start, done)
        )
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    done.wait()
    seconds = time.perf_counter() - began
    for worker in workers:
        worker.join()
    return processes * part / seconds


def only_encode(text: Path, tokenizer: bytes, at: int, size: int, together: bool, start: Any, done: Any) -> None:
    """Encode one part of the text, its documents ready in memory."""
    from data.tokenizer import Tokenizer

    with text.open("rb") as file:
        file.seek(at)
        documents = file.read(size).decode("utf-8", "ignore").split("\n")
    encoder = Tokenizer(tokenizer)
    start.wait()
    if together:
        encoder.encode_all(documents)
    else:
        for document in documents:
            encoder.encode(document)
    done.wait()


if __name__ == "__main__":
    sys.exit(main())
