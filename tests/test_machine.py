"""What the process asks of its machine, and that it does without where the machine has no such thing."""

from __future__ import annotations

import ctypes
import sys

import pytest

from scse.machine import keep_freed_memory


def no_library(*_):
    raise OSError("no such library")


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(sys, "platform", "darwin"), (ctypes, "CDLL", no_library), (ctypes, "CDLL", lambda _: object())],
    ids=["another system", "no C library", "a C library without mallopt"],
)
def test_memory_is_left_alone_where_it_cannot_be_kept(where, name, value, monkeypatch):
    monkeypatch.setattr(where, name, value)
    assert keep_freed_memory() is False
