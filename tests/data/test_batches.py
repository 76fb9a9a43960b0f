"""Windows are full, begin with a document, show every token, and can be found again at any place."""

import tracemalloc

import numpy as np
import pytest

from data.batches import Place, Windows, pack
from data.tokenizer import MARK


def text(*lengths):
    """Return documents of so many tokens, each token told from every other, with a mark before, between and after."""
    ids = np.arange(100, 101 + sum(length + 1 for length in lengths))
    ids[np.cumsum([0, *(length + 1 for length in lengths)])] = MARK
    return ids


def an_epoch(windows, epoch=0):
    """Return the inputs and targets of every window of an epoch."""
    return [(windows.ids[at], windows.ids[at + 1]) for at in windows.windows(epoch)]


def documents(ids):
    """Return the documents of a text, and what of them stands in a window, each as a list of tokens with its mark."""
    return [part.tolist() for part in np.split(ids, np.flatnonzero(ids == MARK)) if len(part) > 1]


def test_every_window_begins_at_a_document_and_its_targets_are_one_position_later():
    ids = text(5, 9, 3, 12, 7, 7, 1, 14)
    following = dict(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    for inputs, targets in an_epoch(Windows(ids, 15, 0)):
        assert len(inputs) == len(targets) == 15 and inputs[0] == MARK
        assert [following[token] for token in inputs.tolist() if token != MARK] == targets[inputs != MARK].tolist()


def test_an_epoch_shows_each_document_whole_and_few_twice():
    ids = text(*range(1, 15), *[5, 8] * 200)
    windows = Windows(ids, 15, 7)
    for epoch in range(3):
        found = an_epoch(windows, epoch)
        shown = [tuple(document) for inputs, _ in found for document in documents(inputs)]
        assert {tuple(document) for document in documents(ids)} <= set(shown)
        assert 15 * len(found) < 1.2 * len(ids)
        assert len(documents(found[0][0])) in (1, 2, 3) and found[0][0].tolist() not in [
            f[0].tolist() for f in found[1:]
        ]


def test_a_window_holds_what_fills_it_best():
    assert sorted(map(sorted, pack([3, 9, 6, 1, 5, 4], 10))) == [[0, 4], [1, 3], [2, 5]]
    assert pack([], 10) == [] and pack([10, 10], 10) == [[1], [0]]


def test_a_document_longer_than_the_context_is_cut_elsewhere_in_each_epoch():
    ids = text(50)
    windows = Windows(ids, 8, 0)
    begins = [windows.pieces(offset) for offset in range(8)]
    assert len({tuple(each) for each in begins}) == 8
    for each in begins:
        assert each[0] == 0 and each[-1] == 51 and max(np.diff(each)) <= 8
    for epoch in range(5):
        assert {int(token) for pair in an_epoch(windows, epoch) for token in np.concatenate(pair)} == set(ids.tolist())
    assert len({tuple(sorted(inputs[0] for inputs, _ in an_epoch(windows, epoch))) for epoch in range(30)}) > 3


def test_a_short_document_is_never_cut():
    begins = Windows(text(7, 7, 30, 7), 8, 3).pieces(5)
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
