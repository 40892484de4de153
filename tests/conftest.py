"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from itertools import groupby
from pathlib import Path

import pytest
import torch

from tinymodels import NAMES

# What torch's compiler makes for one instruction set does not compile for another, and its cache does not know that.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(Path(tempfile.gettempdir()) / f"scse-inductor-{os.getuid()}-{os.environ.get('ATEN_CPU_CAPABILITY', 'best')}"),
)

# Folders whose files share what takes long to make: one worker has them together.
TOGETHER = ("report", "lens")
# They take longest and so come first: nobody waits at the end for a worker that began one of them last.
LONGEST = (
    "robustness/test_crashes.py",
    "suites/test_suite_command.py",
    "report",
    "training/test_resume.py",
    "hf/test_export.py",
    "lens",
    "doors/test_guests.py",
    "diagnostics/test_theory.py",
    "training/test_distributed.py",
    "suites/test_cluster.py",
    "test_demo.py",
    "test_examples.py",
    "devices/test_compilation.py",
)


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files, and the tests in each, in a random order")


def part(nodeid: str) -> str:
    """What is not divided between workers: a file, because fixtures are shared in it, or a folder."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    folder = path.partition("/")[0]
    return folder if folder in TOGETHER else path


def pytest_collection_modifyitems(config, items):
    seed = config.getoption("--shuffle")
    if seed is not None:
        draw = random.Random(seed)
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        draw.shuffle(files)
        items[:] = [test for tests in files for test in draw.sample(tests, len(tests))]
    elif config.getoption("numprocesses", None):
        order = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(part(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByPart(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return part(nodeid)

    config.option.loadscopereorder = False  # the order is that of the collection
    return ByPart(config, log)


def pytest_report_header(config):
    seed = config.getoption("--shuffle")
    return None if seed is None else f"random order: --shuffle {seed}"


@pytest.fixture(autouse=True)
def _threads():
    """One, or as many as the environment asks for; a test may have set others."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture
def one_thread(_threads):
    """For tests that hold what is computed here to the bits of a forked command, which has one thread."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    """A shell starts what runs in its background with Ctrl-C ignored, and the commands under test inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=NAMES)
def family(request) -> str:
    return request.param
