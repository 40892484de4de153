"""How often the host waits for the device: never in a loop, and once where a decision is what is asked for."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch

from fakedevice import DEVICE, accelerator
from runs import config_for, options, write_corpus
from scse.config import data_config
from scse.data import open_corpus
from scse.evaluation.adaptive import offline, online
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.rules import RULES, Stopping
from scse.evaluation.tokenwise import tokenwise
from scse.generation import Depth, Generation, Sampling
from scse.generation.generate import stream
from scse.processes import World
from scse.progress import SILENT
from scse.training.feed import Feed
from scse.training.trainer import Trainer
from tinymodels import TINY, some_ids, tiny

TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 4 + 1).astype(np.uint16)  # one batch of 4
UPDATE = RULES.find("update")
NEVER = 0.0


@pytest.fixture(autouse=True)
def _never_behind(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def per_loop(work, family):
    """How many more times the host waits when there is one more loop, and for what."""
    model, counts = tiny(family, spread=0.08), []
    for loops in (2, 4):
        with accelerator() as watch:
            work(copy.deepcopy(model).to(DEVICE), loops)
        counts.append(watch)
    few, many = counts
    return (many.total - few.total) / 2, many.waits - few.waits


def trained(model, loops):
    model.nll(*model.place(some_ids(2, 5), some_ids(2, 5, seed=6)), loops).backward()


def evaluated(model, loops):
    perplexity_over_depths(model, TOKENS, list(range(1, loops + 1)), batch=4)


def written(model, loops):
    list(stream(model, [[3, 1, 4], [1, 5]], Generation(Depth(loops), 2, Sampling(0.9))))


@pytest.mark.parametrize("work", [trained, evaluated])
def test_no_loop_waits(family, work):
    waits, where = per_loop(work, family)
    assert waits == 0, where


@pytest.mark.parametrize("family", ["scse", "step-adapter", "loopformer", "universal", "centred-parcae"])
def test_no_loop_waits_under_a_cache(family):
    waits, where = per_loop(written, family)
    assert waits == 0, where


@pytest.mark.parametrize("family", ["scse", "step-adapter"])
@pytest.mark.parametrize("work", [
    lambda model, loops: offline(model, TOKENS, Stopping(UPDATE, loops, 4), [NEVER, NEVER / 2, -1.0]),
    lambda model, loops: online(model, TOKENS, Stopping(UPDATE, loops, 4), NEVER),
    lambda model, loops: tokenwise(model, TOKENS, Stopping(UPDATE, loops, 4), NEVER),
    lambda model, loops: list(stream(model, [[3, 1], [4]], Generation(Depth(loops, NEVER), 1, Sampling(0)))),
], ids=["offline", "online", "token", "generation"])  # fmt: skip
def test_a_decision_costs_one_transfer_a_loop_for_the_whole_batch(family, work):
    waits, where = per_loop(work, family)
    assert waits == 1, where


def test_a_token_of_a_whole_batch_is_fetched_at_once():
    model, counts = tiny("scse", spread=0.08), []
    for rows in (1, 3):
        with accelerator() as watch:
            there = copy.deepcopy(model).to(DEVICE)
            list(stream(there, [[3, 1, 4]] * rows, Generation(Depth(2), 3, Sampling(0.9))))
        counts.append(watch.total)
    assert counts[0] == counts[1]


def test_a_training_step_is_asked_once_however_many_parts_it_has(tmp_path):
    corpus, how = write_corpus(tmp_path / "corpus"), options(tmp_path / "cache", eval_every=100, checkpoint_every=100)
    for parts in (1, 4):
        config = config_for(corpus, "scse", steps=5, micro_batches=parts)
        text = open_corpus(data_config(config, how), progress=False)
        with accelerator() as watch:
            trainer = Trainer(config, how, tmp_path / str(parts), text, World(0, 1, DEVICE))
            trainer.rate = 1.0
            trainer._step(0, SILENT)  # the optimiser makes its moments
            before = watch.total
            trainer._step(1, SILENT)
            assert watch.total - before == 1, watch.waits


def test_a_batch_is_cut_ahead_elsewhere_pinned_and_sent_without_waiting(monkeypatch):
    made, pinned = [], []

    class Source:
        def batch(self, step, loops):
            made.append((step, threading.current_thread() is threading.main_thread()))
            return some_ids(4, 5), some_ids(4, 5, seed=6)

    monkeypatch.setattr("scse.devices.Tensor.pin_memory", lambda tensor: pinned.append(tensor.shape) or tensor)
    feed = Feed(Source(), DEVICE)
    feed.prepare(7, 3)
    with accelerator() as watch:
        parts = feed.sent(feed.batch(7, 3), 2, range(2))
        assert all(part.device == DEVICE for pair in parts for part in pair)
    assert made == [(7, False)]
    assert len(pinned) == 4
    assert watch.total == 0
    assert feed.batch(8, 3)[0].shape == (4, 5), "what was not prepared is made at once"
