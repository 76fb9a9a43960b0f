"""Any bytes at all, as corpus, prompt, config or file of a run, give a result or the one-line fault."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SMALL, door, fuzzed

# Each of the four tests draws so many; .ci/run asks for 2,500, which makes 10,000.
EXAMPLES = int(os.environ.get("MALSSI_EXAMPLES", "40"))
thorough = fuzzed(EXAMPLES)

KOREAN = st.text(st.sampled_from("가나다 각ㅋㅠ\n\n.\t뷁😀\ufeff\u1100\u1161\u2581"), max_size=400)
TEXTS = st.one_of(
    st.binary(max_size=300),
    KOREAN.map(lambda text: text.encode("utf-8")),
    st.builds(
        lambda text, codec: text.encode(codec, "replace"), KOREAN, st.sampled_from(["cp949", "utf-16", "utf-32"])
    ),
    st.builds(lambda text, tail: text.encode("utf-8") + tail, KOREAN, st.binary(max_size=5)),
)


def plain(result):
    """The result is one, or a fault told in one line."""
    assert result.returncode in (0, 1), result
    assert "Traceback" not in result.stderr and "--debug shows" not in result.stderr, result.stderr
    if result.returncode:
        assert sum(line.startswith("error: ") for line in result.stderr.splitlines()) == 1, result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: "), result.stderr


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@thorough
@given(raw=TEXTS, suffix=st.sampled_from([".txt", ".md", ".jsonl", ".csv", ".tsv", ".parquet", ".txt.gz", ".csv.gz"]),
       unit=st.sampled_from(["document", "line", "file"]))  # fmt: skip
def test_corpora(folder, raw, suffix, unit):
    path = folder / f"a{suffix}"
    path.write_bytes(raw)
    plain(door("train", "--data.path", path, "--data.unit", unit, *SMALL, "--train.steps", 0, cwd=folder))


@thorough
@given(raw=TEXTS, tokens=st.integers(0, 3))
def test_prompts(run, folder, raw, tokens):
    (folder / "prompt.txt").write_bytes(raw)
    plain(door("sample", "--run", run, "--prompt-file", folder / "prompt.txt", "--tokens", tokens, cwd=folder))
    argument = os.fsdecode(raw.replace(b"\0", b""))  # as a shell hands it over
    plain(door("sample", "--run", run, f"--prompt={argument}", "--tokens", tokens, "--seed", 1, "--json", cwd=folder))


WORDS = st.sampled_from(
    "model: train: data: tokenizer: layers: heads: width: context: steps: minutes: path: unit: 3 -1 0 1e9 null true "
    "[a] {a: 1} 'x' on off .inf .nan 2026-01-01 &a *a !!python/name:os.system !!binary |".split(" ")
)
CONFIGS = st.one_of(
    st.binary(max_size=200),
    st.lists(st.tuples(WORDS, st.sampled_from(["\n", "\n  ", " ", "\n- "])), max_size=20).map(
        lambda parts: "".join(word + between for word, between in parts).encode("utf-8")
    ),
)


@thorough
@given(raw=CONFIGS)
def test_configs(folder, corpus_of_all, raw):
    (folder / "config.yaml").write_bytes(raw)
    arguments = ("--config", folder / "config.yaml", "--data.path", corpus_of_all, "--train.steps", 0)
    plain(door("train", *arguments, "--tokenizer.vocab_size", 330, cwd=folder))


@pytest.fixture(scope="module")
def corpus_of_all(folder):
    path = folder / "corpus.txt"
    path.write_text("\n\n".join(f"문서 {number}입니다." for number in range(40)), encoding="utf-8")
    return path


@thorough
@given(
    name=st.sampled_from(["config.yaml", "tokenizer.model", "model.safetensors", "state.safetensors", "metrics.jsonl"]),
    raw=st.binary(max_size=300), at=st.floats(0, 1), whole=st.booleans(),
)  # fmt: skip
def test_files_of_a_run(run, folder, name, raw, at, whole):
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    before = (copy / name).read_bytes()
    place = int(at * len(before))
    (copy / name).write_bytes(raw if whole else before[:place] + raw + before[place + len(raw) :])
    plain(door("sample", "--run", copy, "--tokens", 1, "--seed", 1, cwd=folder))
    plain(door("train", "--resume", "--run", copy, "--train.steps", 40, cwd=folder))
