"""Cached equals uncached with prelude, several layers and coda, for every family."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_cache import cached_logits

from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.evaluation.tokenwise import freeze_tokens
from scse.generation.cache import KVCache
from scse.generation.decode import Depth, settle
from tinymodels import SHAPES, some_ids, tiny

OPENED = [name for name in SHAPES if name != "block"]


@pytest.mark.parametrize("name", OPENED)
@torch.no_grad()
def test_splits_rows_and_padding(family, name):
    model, ids = tiny(family, shape=SHAPES[name]), some_ids()
    logits, _ = cached_logits(model, ids, Depth((2, 4, 3)), (4, 1, 1, 5))
    for row, loops in enumerate((2, 4, 3)):
        torch.testing.assert_close(logits[row], model(ids[row : row + 1], loops)[0], rtol=0, atol=1e-12)
    real = torch.arange(11) >= torch.tensor([0, 7, 3])[:, None]
    cache = KVCache(model, 3, 3, capacity=2)
    settled = [settle(model, ids[:, :9], cache.append(9, real[:, :9]), Depth(3))]
    cache.select(torch.tensor([2, 1]))
    settled += [settle(model, ids[[2, 1], 9:10], cache.append(1), Depth(3))]
    for row, place, lead in ((1, 1, 7), (2, 0, 3)):
        alone = model.head(torch.cat([settled[0].outputs[row], settled[1].outputs[place]]))
        wanted = model(ids[row : row + 1, lead:10], 3)[0]
        torch.testing.assert_close(alone[lead:], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "rules"), [("layers", ("update", "lookahead")), ("everything", ("kl",))])
@torch.no_grad()
def test_exit_per_token(family, name, rules):
    """By the paper's rule, and by those that read predictions through the coda after each loop."""
    model, ids = tiny(family, shape=SHAPES[name], spread=0.08), some_ids(2, 7)
    hidden = [model.hidden(ids, t) for t in (1, 2, 3)]
    for rule in map(RULES.find, rules):
        moved = torch.stack([rule.statistic(model, *pair) for pair in itertools.pairwise(hidden)])
        threshold = 1.0003 * float(moved.quantile(0.5))
        state, taken = freeze_tokens(model, ids, rule, threshold, 5)
        logits, loops = cached_logits(model, ids, Depth(5, threshold, rule), (3, 1, 3))
        assert loops.tolist() == taken.tolist()
        torch.testing.assert_close(logits, model.readout(state.hidden), rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_rule_that_reads_predictions_starts_with_an_empty_cache():
    model, ids = tiny("scse", shape=SHAPES["layers"]), some_ids(2, 4)
    cache = KVCache(model, 2, 3)
    settle(model, ids, cache.append(4), Depth(3))
    with pytest.raises(UserError, match="start it with an empty cache"):
        settle(model, ids[:, :1], cache.append(1), Depth(3, 0.1, RULES.find("kl")))


@torch.no_grad()
def test_the_memory_of_prelude_and_coda_does_not_grow_with_the_loops():
    model = tiny("sc-cond-subtractive", shape=SHAPES["layers"], dtype=torch.float32)
    # keys and values × (loops × bodies × layers + prelude + coda) × rows × positions × width × 4 bytes
    assert [KVCache(model, 2, loops, capacity=16).nbytes for loops in (3, 6)] == [
        2 * (loops * 2 * 2 + 1 + 2) * 2 * 16 * 24 * 4 for loops in (3, 6)
    ]
