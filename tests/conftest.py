"""Fixtures shared by all tests."""

from __future__ import annotations

import random
import signal
from itertools import groupby

import pytest
import torch

from tinymodels import NAMES


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests in each, in a random order")


def pytest_collection_modifyitems(config, items):
    """Files stay together, because fixtures are shared in them."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        draw = random.Random(seed)
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        draw.shuffle(files)
        items[:] = [test for tests in files for test in draw.sample(tests, len(tests))]


def pytest_report_header(config):
    seed = config.getoption("--shuffle")
    return None if seed is None else f"random order: --shuffle {seed}"


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
