"""A small model, and a server of it."""

from __future__ import annotations

import pytest
from liveserver import TEXT, running

from scse import Shape
from scse.data.tokenizer import train_tokenizer
from scse.serve.served import Served
from tinymodels import tiny


@pytest.fixture(scope="session")
def served():
    tokenizer = train_tokenizer([TEXT * 3], 300)
    shape = Shape(width=24, heads=3, ff_width=48, context=48, vocabulary=tokenizer.vocab_size, prelude=1, coda=1)
    return Served("tiny", tiny("scse", shape=shape, spread=0.1), tokenizer, loops=4)


@pytest.fixture(scope="module")
def live(served):
    with running(served) as server:
        yield server
