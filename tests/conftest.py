"""Fixtures shared by all tests."""

from __future__ import annotations

import signal

import pytest
import torch

from tinymodels import NAMES


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    """A shell starts what runs in its background with Ctrl-C ignored, and the commands under test inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=NAMES)
def family(request) -> str:
    return request.param
