"""A cache of fixed capacity: the numbers of one that grows, and a token that can be recorded once and repeated."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fakedevice import DEVICE, accelerator
from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.generation import Depth, KVCache, settle
from scse.model import LoopedLM
from tinymodels import SHAPES, TINY, some_ids, tiny

LENGTH, FIRST, CAPACITY = 8, 4, 12
REAL = torch.arange(FIRST) >= torch.tensor([0, 3])[:, None]  # the second row has one token


def begun(model, depth, fixed):
    """A cache that has seen the first tokens, of which some are padding."""
    cache = KVCache(model, 2, depth.deepest, CAPACITY if fixed else 1, fixed=fixed)
    settle(model, some_ids(2, LENGTH)[:, :FIRST], cache.append(FIRST, REAL), depth)
    return cache


def decoded(model, depth, fixed):
    """The logits of every later token, and the loops behind them."""
    cache, ids = begun(model, depth, fixed), some_ids(2, LENGTH)
    found = [settle(model, ids[:, n : n + 1], cache.append(1), depth) for n in range(FIRST, LENGTH)]
    return model.head(torch.cat([one.outputs for one in found], 1)), torch.cat([one.taken for one in found], 1)


@torch.no_grad()
def test_it_gives_the_numbers_of_one_that_grows(family):
    """With prelude and coda."""
    exactly = {"shape": SHAPES["everything"], "spread": 0.2}, 1e-12
    roughly = {"shape": SHAPES["layers"], "spread": 0.05, "dtype": torch.float32}, 1e-5
    for how, tolerance in (exactly, roughly):
        model = tiny(family, **how)
        (plain, _), (fixed, _) = (decoded(model, Depth(3), kind) for kind in (False, True))
        torch.testing.assert_close(fixed, plain, rtol=0, atol=tolerance)


class Tape(TorchDispatchMode):
    """Every operation that is executed, with its tensors, kept so that no address is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.played = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.played.append((func, args, kwargs or {}, found))
        return found

    def described(self):
        """The operations with all that a recording would fix: numbers, shapes, and the addresses of what was there
        before. What is made on the way goes by the order in which it is made."""
        made, lines = {}, []
        for func, args, kwargs, found in self.played:
            given = tree_map_only(torch.Tensor, lambda x: (*x.shape, made.get(id(x), x.data_ptr())), (args, kwargs))
            lines.append((func, given))
            for x in tree_leaves(found):
                made.setdefault(id(x), f"made {len(made)}")
        return lines

    def play(self):
        """The same operations again on the same addresses; the last result."""
        now = {}
        for func, args, kwargs, found in self.played:
            given = tree_map_only(torch.Tensor, lambda x: now.get(id(x), x), (args, kwargs))
            again = func(*given[0], **given[1])
            now.update(zip(map(id, tree_leaves(found)), tree_leaves(again), strict=True))
        return again


@torch.no_grad()
def test_one_token_is_recorded_and_repeated_for_all_others(family, monkeypatch):
    """What a CUDA graph does: the same kernels, shapes and addresses for every token, and nothing of our code."""
    monkeypatch.setattr(LoopedLM, "_check_ids", lambda *_: None)  # on a device nobody looks at them
    model, given = tiny(family, shape=SHAPES["layers"]), some_ids(2, LENGTH)
    expected, _ = decoded(model, Depth(2), fixed=False)
    cache, ids, tapes = begun(model, Depth(2), fixed=True), given[:, :1].clone(), []
    for n in range(FIRST, FIRST + 2):
        ids.copy_(given[:, n : n + 1])
        view = cache.append(1)
        with Tape() as tape:
            model.head(settle(model, ids, view, Depth(2)).outputs)
        tapes.append(tape)
    first, second = tapes
    assert "aten._local_scalar_dense.default" not in {str(func) for func, *_ in first.played}
    assert first.described() == second.described()
    for n in range(FIRST + 2, LENGTH):
        ids.copy_(given[:, n : n + 1])
        cache.append(1)
        torch.testing.assert_close(first.play(), expected[:, n - FIRST : n - FIRST + 1], rtol=0, atol=1e-12)


def test_a_tape_tells_a_cache_that_grows():
    """The test above can fail."""
    model, ids, tapes = tiny("scse"), some_ids(2, 1), []
    cache = begun(model, Depth(2), fixed=False)
    for _ in range(2):
        view = cache.append(1)
        with Tape() as tape:
            settle(model, ids, view, Depth(2))
        tapes.append(tape.described())
    assert tapes[0] != tapes[1]


def test_a_token_never_waits_for_the_device_and_stays_where_it_is(family):
    """With prelude and coda; from the ids on the device to the logits there."""
    model, ids = tiny(family, shape=SHAPES["everything"]), some_ids(2, LENGTH)
    with accelerator() as watch:
        there = copy.deepcopy(model).to(DEVICE)
        cache = KVCache(there, 2, 2, CAPACITY, fixed=True)
        tokens = [there.place(ids[:, n : n + 1])[0] for n in range(FIRST, LENGTH)]
        settle(there, *there.place(ids[:, :FIRST]), cache.append(FIRST, REAL), Depth(2))
        before, places = watch.total, set()
        for token in tokens:
            with torch.no_grad():
                there.head(settle(there, token, cache.append(1), Depth(2)).outputs)
            held = (cache.keys, cache.values, cache.energies, cache.padding, cache._column.visible)
            places.add(tuple((x.host.data_ptr(), x.shape) for x in held))
        assert watch.total == before, watch.waits
        assert len(places) == 1


@torch.no_grad()
def test_rows_of_their_own_depth_and_early_exit():
    """Where rows leave, the others go on as in any cache."""
    model = tiny("scse", shape=SHAPES["layers"], spread=0.08)
    for depth in (Depth((2, 5)), Depth(5, 0.6), Depth(5, 0.01, RULES.find("kl"))):
        plain, fixed = (decoded(model, depth, kind) for kind in (False, True))
        torch.testing.assert_close(fixed[0], plain[0], rtol=0, atol=1e-12)
        assert fixed[1].tolist() == plain[1].tolist()


@torch.no_grad()
def test_it_says_when_it_is_full_and_begins_anew_in_its_place():
    model, ids = tiny("scse"), some_ids(2, TINY.context)
    cache = KVCache(model, 2, 3, capacity=5, fixed=True)
    place = cache.keys.data_ptr()
    for begin in (0, 1):
        cache.clear()
        settle(model, ids[:, begin : begin + 4], cache.append(4), Depth(3))
        last = settle(model, ids[:, begin + 4 : begin + 5], cache.append(1), Depth(3))
        expected = model(ids[:, begin : begin + 5], 3)[:, -1:]
        torch.testing.assert_close(model.head(last.outputs), expected, rtol=0, atol=1e-12)
    assert cache.keys.data_ptr() == place
    with pytest.raises(UserError, match="made for 5 positions and stays so; make one for at least 6"):
        cache.append(1)
