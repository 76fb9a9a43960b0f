"""Windows are full, begin with a document, show every token, and can be found again at any place."""

import tracemalloc

import numpy as np
import pytest

from data.batches import Place, Windows
from data.tokenizer import MARK


def text(*lengths):
    """Return documents of so many tokens, each token told from every other, with a mark before, between and after."""
    ids = np.arange(100, 101 + sum(length + 1 for length in lengths))
    ids[np.cumsum([0, *(length + 1 for length in lengths)])] = MARK
    return ids


def an_epoch(windows):
    """Return the windows of the epoch that is under way, inputs and targets."""
    epoch, found = windows.place.epoch, []
    while windows.place.epoch == epoch and windows.place.used < len(windows.order):
        found.append(tuple(part[0] for part in windows.next(1)))
    return found


def pieces(inputs):
    """Return the parts of a window that begin with a mark, by their tokens."""
    return [part.tolist() for part in np.split(inputs, np.flatnonzero(inputs == MARK)) if len(part)]


def test_every_window_begins_at_a_document_and_its_targets_are_one_position_later():
    ids = text(5, 9, 3, 12, 7, 7, 1, 14)
    following = dict(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    for inputs, targets in an_epoch(Windows(ids, 15, 0)):
        assert len(inputs) == len(targets) == 15 and inputs[0] == MARK
        assert [following[token] for token in inputs.tolist() if token != MARK] == targets[inputs != MARK].tolist()


def test_an_epoch_shows_each_document_whole_once():
    ids = text(*range(1, 15), *range(1, 15))
    documents = [[MARK, *part.tolist()[1:]] for part in np.split(ids[:-1], np.flatnonzero(ids[:-1] == MARK))[1:]]
    for epoch in range(3):
        windows = Windows(ids, 15, 7, Place(epoch))
        shown = [piece for inputs, _ in an_epoch(windows) for piece in pieces(inputs)]
        assert all(shown.count(document) >= 1 for document in documents)
        whole = [piece for piece in shown if piece in documents]
        assert len(whole) <= len(documents) + 14  # the last window goes on into the next epoch


def test_a_document_longer_than_the_context_is_cut_elsewhere_in_each_epoch():
    ids = text(50)
    windows = Windows(ids, 8, 0)
    cuts = {tuple(windows.drawn(epoch)[0].tolist()) for epoch in range(100)}
    assert len(cuts) == 8
    for begins in cuts:
        assert begins[0] == 0 and begins[-1] == 51 and max(np.diff(begins)) <= 8
    seen = {int(token) for inputs, targets in an_epoch(windows) for token in (*inputs, *targets)}
    assert seen == set(ids.tolist())


def test_a_short_document_is_never_cut():
    begins, _ = Windows(text(7, 7, 30, 7), 8, 3).drawn(0)
    assert [begin for begin in begins.tolist() if not 16 < begin < 47] == [0, 8, 16, 47, 55]


def test_one_window_at_the_least_length_and_none_below():
    inputs, targets = Windows(text(3), 4, 0).next(2)
    assert inputs.tolist() == [[MARK, 101, 102, 103]] * 2 and targets[0].tolist() == [101, 102, 103, MARK]
    with pytest.raises(ValueError, match="has 4 tokens, and a context of 4 needs at least 5"):
        Windows(text(2), 4, 0)


def test_seed_and_epoch_decide_the_order():
    ids = text(*[5] * 100)
    first = Windows(ids, 16, 3).next(5)[0]
    assert np.array_equal(first, Windows(ids, 16, 3).next(5)[0])
    assert not np.array_equal(first, Windows(ids, 16, 4).next(5)[0])
    assert not np.array_equal(first, Windows(ids, 16, 3, Place(1)).next(5)[0])


def test_any_place_can_be_found_again():
    ids = text(*[5, 9, 20, 40, 3] * 4)
    windows = Windows(ids, 8, 1)
    for _ in range(30):
        windows.next(5)
        again = Windows(ids, 8, 1, Place(windows.place.epoch, windows.place.used))
    assert windows.place.epoch >= 2
    for _ in range(5):
        assert np.array_equal(windows.next(5)[0], again.next(5)[0])


def test_memory_hardly_grows_with_the_text(tmp_path):
    peaks = []
    for tokens in (400_000, 4_000_000):
        ids = np.arange(2, tokens + 2, dtype=np.uint32)
        ids[::100] = ids[-1] = MARK
        ids.tofile(tmp_path / "ids")
        ids = np.memmap(tmp_path / "ids", np.uint32, "r")
        tracemalloc.start()
        Windows(ids, 128, 0).next(8)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 100 * (4_000_000 - 400_000) / 100  # a hundred bytes a document
