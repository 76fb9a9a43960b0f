"""Prepared tokens are the text, know their tokenizer, and are the same bytes for the same input."""

import re
import signal
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.encoding import Document, id_type
from data.prepare import Lowest, prepare
from data.split import below, digest, survey
from data.tokenizer import MARK
from data.tokens import TokenFile, encode, open_tokens
from tests.conftest import PROJECT, sentences, split

CONFIG = TokenizerConfig(vocab_size=330)


def test_both_sides_hold_their_documents_between_marks(tmp_path):
    documents = sentences(300)
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    for tokens, side in zip((ready.train, ready.validation), split(documents), strict=True):
        assert tokens.ids[0] == tokens.ids[-1] == MARK
        texts = [
            ready.tokenizer.decode(part[1:]) for part in np.split(tokens.ids, np.flatnonzero(tokens.ids == MARK)[1:])
        ]
        assert texts[:-1] == side
        assert tokens.documents == len(side)
        assert tokens.characters == sum(len(text) + 1 for text in side)
        assert tokens.bytes == sum(len(text.encode()) + 1 for text in side)
        assert tokens.targets == len(tokens.ids) - 1
        assert isinstance(tokens.ids, np.memmap)


def test_the_tokenizer_learns_from_the_training_side_alone(tmp_path):
    documents = sentences(300)
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    assert ready.tokenizer.model == tokenizers.train(split(documents)[0], CONFIG).model


def files(folder):
    """Return what lies in `folder`, by name, locks left out."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.suffix in KEPT}


KEPT = (".model", ".safetensors")


def test_the_same_input_gives_the_same_bytes_and_other_input_another_folder(tmp_path):
    documents = sentences(300)
    for place in ("one", "two"):
        prepare(documents, CONFIG, 10_000, folder=tmp_path / place)
    one, two = (files(tmp_path / place) for place in ("one", "two"))
    assert one == two and len(one) == 3  # the tokenizer and both sides
    prepare(documents[1:], CONFIG, 10_000, folder=tmp_path / "one")
    prepare(documents, TokenizerConfig(vocab_size=331), 10_000, folder=tmp_path / "one")
    assert len(files(tmp_path / "one")) == 3 * 3


def test_what_is_prepared_is_used_again_and_what_is_damaged_is_not(tmp_path):
    documents, said = sentences(300), []
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    prepare(documents, CONFIG, 10_000, said.append, folder=tmp_path)
    assert len(said) == 1 and "prepared before" in said[0]
    expected = np.array(ready.train.ids)
    (place,) = tmp_path.glob("*/train.safetensors")
    whole = place.read_bytes()
    for damaged in (whole[:100], whole[:-2], whole[:-7] + b"\xff" + whole[-6:], whole[:9] + b"X" + whole[10:], b""):
        said.clear()
        place.write_bytes(damaged)
        again = prepare(documents, CONFIG, 10_000, said.append, folder=tmp_path)
        assert any("is damaged: made anew" in line for line in said)
        assert np.array_equal(again.train.ids, expected) and place.read_bytes() == whole
    (model,) = tmp_path.glob("*.model")
    whole = model.read_bytes()
    model.write_bytes(tokenizers.train(sentences(100), CONFIG).model)  # one that is not the one of its name
    prepare(documents, CONFIG, 10_000, said.append, folder=tmp_path)
    assert model.read_bytes() == whole


def test_evaluation_in_training_takes_whole_documents_by_hash(tmp_path):
    documents = sentences(700)
    few = prepare(documents, CONFIG, 60, folder=tmp_path)
    every = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    assert 0 < few.validation.targets <= 60 < every.validation.targets
    assert few.validation.ids[-1] == MARK


@pytest.mark.parametrize("documents", [["나는 사과를 먹었다."], ["나는 사과를 먹었다."] * 30, ["나"]])
def test_fewer_than_two_different_documents_are_all_training_text(tmp_path, documents):
    said = []
    for _ in range(2):  # made, and prepared before
        ready = prepare(documents, CONFIG, 100, said.append, folder=tmp_path)
        assert ready.validation is None and ready.train.documents == len(documents)
    assert any("fewer than two different documents" in line for line in said)
    assert any("prepared before" in line for line in said)


def test_two_documents_are_parted_wherever_their_hashes_lie(tmp_path):
    low = [text for text in map(str, range(300)) if digest(text.encode()) < below(0.05)]
    high = [text for text in map(str, range(300)) if digest(text.encode()) >= below(0.05)]
    assert len(low) > 3 < len(high)
    for documents in (low[:2], high[:2], [low[0], high[0]], low[:3]):
        found = survey(documents)
        train, validation = (list(found.side(documents, side)) for side in (False, True))
        assert validation and train and sorted(train + validation) == sorted(documents)
        assert min(documents, key=lambda text: digest(text.encode())) in validation
        assert sorted(found.sample) == sorted(train) and found.training_bytes == sum(map(len, train))


def test_the_width_of_ids_follows_the_vocabulary(tmp_path, tokenizer):
    assert id_type(65_536) is np.uint16 and id_type(65_537) is np.uint32 and id_type(70_000) is np.uint32
    ids = np.array([0, 65535, 65536, 69999], id_type(70_000))
    save_file({"ids": ids}, tmp_path / "wide.safetensors")
    assert load_file(tmp_path / "wide.safetensors")["ids"].tolist() == [0, 65535, 65536, 69999]


def write(path, by, ids, documents=1):
    with TokenFile(path, by) as file:
        file.add(ids, documents, 10, 20)
    return path


def test_a_token_file_is_safetensors_and_another_tokenizer_or_width_is_refused(tmp_path, tokenizer):
    tokens = encode(sentences(5), tokenizer)
    path = write(tmp_path / "right.safetensors", tokenizer, tokens.ids[1:], 5)
    assert np.array_equal(load_file(path)["ids"], tokens.ids)
    opened = open_tokens(path, tokenizer)
    assert np.array_equal(opened.ids, tokens.ids) and opened.documents == 5

    other = tokenizers.train(sentences(100), TokenizerConfig(vocab_size=340))
    with pytest.raises(ValueError, match="was not made by this tokenizer"):
        open_tokens(path, other)

    large = SimpleNamespace(hash=tokenizer.hash, vocab_size=70_000)
    wide = write(tmp_path / "wide.safetensors", large, np.array([65_536, 69_999]))
    assert load_file(wide)["ids"].tolist() == [MARK, 65_536, 69_999]
    with pytest.raises(ValueError, match="holds ids as U32"):
        open_tokens(wide, tokenizer)


def test_several_processes_give_the_same_bytes_as_one(tmp_path, monkeypatch):
    documents = [f"{sentence} {number}" for number, sentence in enumerate(sentences(500) * 6)]
    prepare(documents, CONFIG, 5_000, folder=tmp_path / "one")
    monkeypatch.setattr("data.encoding.ONE_PROCESS", 0)
    monkeypatch.setattr("data.encoding.BLOCK", 700)
    monkeypatch.setattr("data.encoding.cores", lambda: 3)
    prepare(documents, CONFIG, 5_000, folder=tmp_path / "three")
    assert files(tmp_path / "one") == files(tmp_path / "three")


def test_the_sample_stays_within_its_bounds_whatever_the_order(monkeypatch):
    documents = [f"{sentence} {number}" for number, sentence in enumerate(sentences(500) * 4)]
    monkeypatch.setattr("data.split.SAMPLE_BYTES", 20_000)
    found = survey(documents)
    assert 10_000 < sum(len(document.encode()) for document in found.sample) <= 20_000 < found.training_bytes
    assert found.training_bytes == sum(len(document.encode()) for document in found.side(documents, False))
    assert set(found.sample) <= set(found.side(documents, False))
    assert sorted(survey(documents[::-1]).sample) == sorted(found.sample)
    assert survey(documents[::-1]).hash != found.hash


def test_how_much_the_tokenizer_saw_is_said(tmp_path, monkeypatch):
    documents, said = [f"{sentence} {number}" for number, sentence in enumerate(sentences(500))], []
    monkeypatch.setattr("data.split.SAMPLE_BYTES", 10_000)
    prepare(documents, CONFIG, 100, said.append, folder=tmp_path)
    (line,) = [line for line in said if line.startswith("tokenizer:")]
    taken, given = (int(number.replace(",", "")) for number in re.search(r"([\d,]+) of ([\d,]+) bytes", line).groups())
    assert 4000 < taken <= 10_000 and given == sum(len(document.encode()) for document in split(documents)[0])


def test_the_validation_documents_of_lowest_hash_are_chosen(tmp_path):
    documents = sentences(700)
    ready = prepare(documents, CONFIG, 60, folder=tmp_path)
    side = split(documents)[1]
    taken, total = [], 0
    for document in sorted(side, key=lambda text: digest(text.encode())):
        total += len(ready.tokenizer.encode(document)) + 1
        if total > 60 and taken:
            break
        taken.append(document)
    assert np.array_equal(ready.validation.ids, encode([text for text in side if text in taken], ready.tokenizer).ids)


@pytest.mark.parametrize("order", permutations(range(4)))
def test_the_choice_for_validation_does_not_hang_on_the_order(order):
    sizes = [4, 4, 9, 1]  # by hash: the third is too large, and then the fourth is not taken either
    lowest = Lowest(10)
    for number in order:
        lowest.add(Document(bytes([number]) * 32, np.zeros(sizes[number]), 1, 1))
    assert {document.hash[0] for document in lowest.in_order()} == {0, 1}


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path):
    class Growing:
        def __init__(self):
            self.documents = sentences(100)

        def __iter__(self):
            yield from list(self.documents)
            self.documents.append("또 하나")

    with pytest.raises(ValueError, match="changed while it was being prepared"):
        prepare(Growing(), CONFIG, 100, folder=tmp_path)
    assert not list(tmp_path.glob("*.draft")) + list(tmp_path.glob("*/*"))


def test_what_a_kill_left_is_never_taken_for_the_whole(tmp_path):
    documents = sentences(300)
    ready = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    (place,) = {path.parent for path in tmp_path.glob("*/*.safetensors")}
    place.rename(place.with_suffix(".draft"))  # killed before the name was given
    (place.with_suffix(".draft") / "validation.safetensors").unlink()
    again = prepare(documents, CONFIG, 10_000, folder=tmp_path)
    assert np.array_equal(again.validation.ids, ready.validation.ids)
    assert not list(tmp_path.glob("*.draft"))


def test_a_second_process_waits_for_the_first(tmp_path):
    documents, said = sentences(300), []
    prepare(documents, CONFIG, 10_000, folder=tmp_path)
    (lock,) = tmp_path.glob("*.lock")
    code = f"""
import filelock, time
lock = filelock.FileLock({str(lock)!r})
lock.acquire()
print(flush=True)
time.sleep(1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        prepare(documents, CONFIG, 10_000, said.append, folder=tmp_path)
        assert other.wait(0.5) == 0  # it had let go of the lock
    assert "another process prepares the same text: waiting for it" in said and "prepared before" in said[-1]


def test_long_documents_are_encoded_as_short_ones(tokenizer):
    text = "\n".join(sentences(300)) + "\n\n\t\n" + " ".join(sentences(20))
    assert tokenizer.encode(text * 40) == encode_by_lines(tokenizer, text * 40)


def encode_by_lines(tokenizer, text):
    (end,) = tokenizer.encode("\n")
    ids = []
    for number, line in enumerate(text.split("\n")):
        ids += [end] * (number > 0) + tokenizer.encode(line)
    return ids


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_while_several_encode_nothing_half_and_no_one_is_left(tmp_path, number):
    code = f"""
import sys
from pathlib import Path
from data import encoding, prepare
from data.config import TokenizerConfig
from doors.door import run_door
encoding.ONE_PROCESS, encoding.BLOCK, encoding.cores = 0, 2000, lambda: 2
documents = [f"나는 오늘 {{number}}번 바다를 보았다. " * 5 for number in range(300_000)]
say = lambda line: print(line, flush=True)
main = lambda _: prepare.prepare(documents, TokenizerConfig(vocab_size=330), 1000, say, Path({str(tmp_path)!r})) and 0
sys.exit(run_door(main))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as running:
        assert any(line.startswith("encoding") for line in running.stdout)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while len(started := children.read_text(encoding="utf-8").split()) < 3:  # two, and what keeps count of them
            time.sleep(0.01)
        time.sleep(0.3)
        running.send_signal(number)
        message = running.stderr.read()
    assert running.returncode == (130 if number == signal.SIGINT else -9)
    assert number == signal.SIGKILL or message == "stopped\n"  # after a kill, Python tells of what it clears away
    until = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in started)
    assert not [path for path in tmp_path.glob("*/train.safetensors") if path.parent.suffix != ".draft"]
    if number == signal.SIGINT:
        assert not list(tmp_path.glob("*.draft"))
