"""The C library is told to keep what is freed, where it can be told; what that gives stands in docs/speed.md."""

import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from machine import memory


@pytest.mark.parametrize("system, told", [("linux", True), ("darwin", False), ("win32", False)])
def test_glibc_alone_is_told(monkeypatch, system, told):
    library = mock.Mock()
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    memory.hold_memory()
    trim_threshold, mmap_max = -1, -4  # as malloc.h numbers them
    expected = [mock.call(trim_threshold, 2**31 - 1), mock.call(mmap_max, 0)] if told else []
    assert library.mallopt.mock_calls == expected


def test_another_c_library_has_no_such_call(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: SimpleNamespace())
    memory.hold_memory()
