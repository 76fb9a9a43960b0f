"""Windows are full, reach the last token, and can be found again at any place."""

import tracemalloc

import numpy as np
import pytest

from data.batches import Place, Windows


def starts(windows, epoch):
    """Return the first position of each window of an epoch, in the order of use."""
    offset, order = windows.drawn(epoch)
    return offset + windows.context * order.astype(int)


def test_every_window_is_full_and_reaches_the_last_token():
    ids = np.arange(10, dtype=np.uint16)
    windows = Windows(ids, context=4, seed=0)
    assert {int(start) for epoch in range(200) for start in starts(windows, epoch)} == set(
        range(6)
    )  # the last one ends in the last token
    for _ in range(50):
        inputs, targets = windows.next(3)
        assert inputs.shape == targets.shape == (3, 4)
        assert (targets == inputs + 1).all()


def test_one_window_at_the_least_length_and_none_below():
    assert [starts(Windows(np.arange(5), 4, seed), 0).tolist() for seed in range(5)] == [[0]] * 5
    with pytest.raises(ValueError, match="has 4 tokens, and a context of 4 needs at least 5"):
        Windows(np.arange(4), 4, 0)


def test_an_epoch_visits_each_token_once():
    windows = Windows(np.arange(1000), 16, 3)
    places = np.sort(starts(windows, 0))
    assert (np.diff(places) == 16).all() and places[0] < 16 and places[-1] + 16 + 16 > 999
    assert not np.array_equal(starts(windows, 0), starts(windows, 1))
    assert not np.array_equal(starts(windows, 0), starts(Windows(np.arange(1000), 16, 4), 0))


def test_any_place_can_be_found_again():
    windows = Windows(np.arange(100), 8, 1)
    for _ in range(7):  # 35 windows: over an epoch end, since an epoch has 11 or 12
        windows.next(5)
    assert windows.place.epoch >= 2
    again = Windows(np.arange(100), 8, 1, Place(windows.place.epoch, windows.place.used))
    for _ in range(5):
        assert np.array_equal(windows.next(5)[0], again.next(5)[0])


def test_a_batch_may_span_epochs_and_keeps_the_places_of_each():
    windows = Windows(np.arange(50), 4, 0)
    first, second = starts(windows, 0), starts(windows, 1)
    assert first.min() != second.min()  # the epochs begin at different places
    inputs, _ = windows.next(len(first) + len(second))
    assert inputs[:, 0].tolist() == [*first, *second]


def test_memory_hardly_grows_with_the_text(tmp_path):
    peaks = []
    for tokens in (400_000, 4_000_000):
        np.arange(tokens, dtype=np.uint16).tofile(tmp_path / "ids")
        ids = np.memmap(tmp_path / "ids", np.uint16, "r")
        tracemalloc.start()
        Windows(ids, 128, 0).next(8)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 4.5 * (4_000_000 - 400_000) / 128  # four bytes a window
