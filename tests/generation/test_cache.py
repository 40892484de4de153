"""Cached equals uncached, for every family, depth, split of the sequence, padding and exit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from scse import FAMILIES
from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.evaluation.tokenwise import freeze_tokens
from scse.generation.cache import KVCache, LastLoopsCache, make_cache
from scse.generation.decode import Depth, settle
from scse.generation.window import PaddedWindow
from scse.nn import Block
from scse.recurrence import Recurrence, family
from scse.recurrence.anchors import LearnedAnchor, ProjectedStart
from scse.recurrence.coordinates import Deviation
from scse.recurrence.modifiers import FixedScale
from scse.recurrence.updates import Direct, SharedCore
from tinymodels import TINY, some_ids, tiny

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SPLITS = [(11,), (1,) * 11, (4, 1, 1, 5), (1, 10)]
BY_DEPTH = {1: SPLITS[:2], 2: SPLITS[1:], 7: SPLITS[2:]}


def cached_logits(model, ids, depth, split, cache=None):
    """Logits of all positions, the sequence fed in parts; and the loops each took."""
    cache = cache or KVCache(model, len(ids), depth.deepest, capacity=2)
    found = [settle(model, part, cache.append(part.shape[1]), depth) for part in ids.split(list(split), dim=1)]
    return model.head(torch.cat([s.outputs for s in found], 1)), torch.cat([s.taken for s in found], 1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.no_grad()
def test_cached_logits_equal_uncached(family, dtype):
    # Weights of a usual size for float32: with large ones the recurrence itself amplifies rounding.
    model, ids = tiny(family, dtype=dtype, spread=0.2 if dtype == torch.float64 else 0.05), some_ids()
    for loops, splits in BY_DEPTH.items():
        wanted = model(ids, loops)
        for split in splits:
            logits, taken = cached_logits(model, ids, Depth(loops), split)
            torch.testing.assert_close(logits, wanted, rtol=0, atol=TOLERANCE[dtype])
            assert (taken == loops).all(), split


@torch.no_grad()
def test_depth_per_row(family):
    model, ids = tiny(family), some_ids()
    logits, taken = cached_logits(model, ids, Depth((2, 5, 3)), (6, 1, 4))
    for row, loops in enumerate((2, 5, 3)):
        torch.testing.assert_close(logits[row], model(ids[row : row + 1], loops)[0], rtol=0, atol=1e-12)
        assert (taken[row] == loops).all()


@torch.no_grad()
def test_left_padding_is_invisible(family):
    model, ids = tiny(family), some_ids()
    lengths = (11, 4, 8)
    real = torch.arange(11) >= 11 - torch.tensor(lengths)[:, None]
    depth = Depth(4)
    cache = KVCache(model, 3, 4)
    settled = [settle(model, ids[:, :9], cache.append(9, real[:, :9]), depth)]
    settled += [settle(model, ids[:, n : n + 1], cache.append(1), depth) for n in (9, 10)]
    logits = model.head(torch.cat([part.outputs for part in settled], 1))
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, 11 - length :], 4)[0]
        torch.testing.assert_close(logits[row, 11 - length :], alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_adaptive_decoding_equals_uncached_freezing(family):
    freezes_alike(family, "update")


@pytest.mark.parametrize("family", ["looped", "step-adapter", "universal"])
@pytest.mark.parametrize("rule", [name for name in RULES.names() if name != "update"])
@torch.no_grad()
def test_adaptive_decoding_by_every_rule(family, rule):
    freezes_alike(family, rule)


def freezes_alike(family, rule):
    model, ids = tiny(family, spread=0.08, shape=replace(TINY, gate=True)), some_ids()
    hidden = [model.hidden(ids, t) for t in range(1, 9)]
    moved = torch.stack([RULES.find(rule).statistic(model, *pair) for pair in itertools.pairwise(hidden)])
    # A little beside a value, so that rounding cannot put that value on either side.
    thresholds = [1.0003 * float(moved.quantile(q / 10)) for q in (2, 5, 8, 9)]
    frozen = [freeze_tokens(model, ids, RULES.find(rule), threshold, 9) for threshold in thresholds]
    kinds = [len(set(taken.ravel().tolist())) for _, taken in frozen]
    threshold, (state, taken) = max(zip(kinds, thresholds, frozen, strict=True), key=lambda found: found[0])[1:]
    still = float(moved.max()) == 0  # scse-initial starts at its anchor and never moves
    assert max(kinds) > 1 or still
    for split in SPLITS[1:3]:
        logits, loops = cached_logits(model, ids, Depth(9, threshold, RULES.find(rule)), split)
        assert loops.tolist() == taken.tolist()
        torch.testing.assert_close(logits, model.readout(state.hidden), rtol=0, atol=1e-12)


@torch.no_grad()
def test_selected_rows_go_on_alone(family):
    model, ids = tiny(family), some_ids()
    cache = KVCache(model, 3, 4)
    settle(model, ids[:, :6], cache.append(6), Depth(4))
    cache.select(torch.tensor([2, 0, 0]))
    found = settle(model, ids[[2, 0, 1], 6:7], cache.append(1), Depth(4))
    wanted = torch.stack([ids[2, :7], ids[0, :7], torch.cat([ids[0, :6], ids[1, 6:7]])])
    torch.testing.assert_close(model.head(found.outputs[:, 0]), model(wanted, 4)[:, -1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_rows_that_finished_cost_nothing():
    model, ids = tiny("scse"), some_ids()
    seen = []
    model.recurrence.core.block.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    cache = KVCache(model, 3, 5)
    settle(model, ids[:, :1], cache.append(1), Depth((1, 5, 3)))
    assert seen == [3, 2, 2, 1, 1]


@torch.no_grad()
def test_a_cache_grows_by_doubling_and_reports_its_memory():
    model = tiny("sc-cond-subtractive", dtype=torch.float32)
    cache = KVCache(model, 2, loops=3, capacity=2)
    sizes = []
    for _ in range(TINY.context):
        settle(model, some_ids(2, 1), cache.append(1), Depth(3))
        sizes.append(cache.keys.shape[3])
    assert sorted(set(sizes)) == [2, 4, 8, 16]
    # keys and values × loops × bodies × rows × positions × width × 4 bytes
    assert cache.nbytes == 2 * 3 * 2 * 2 * 16 * TINY.width * 4


@torch.no_grad()
def test_approximate_caches_use_less_memory_and_stay_exact_where_they_can():
    model, ids = tiny("scse", spread=0.05), some_ids()
    exact, loops = model(ids, 6), Depth(6)
    differences = {}
    for name in ("exact", "last-6", "last-4", "shared"):
        cache = make_cache(name, model, 3, 6, capacity=16)
        logits, _ = cached_logits(model, ids, loops, (1,) * 11, cache)
        differences[name] = float((logits - exact).abs().max()), cache.nbytes
        first, _ = cached_logits(model, ids, loops, (11,), make_cache(name, model, 3, 6))
        torch.testing.assert_close(first, exact, rtol=0, atol=1e-12)  # one prefill sees no old positions
    assert differences["exact"][0] < 1e-12
    assert differences["last-6"][0] < 1e-12
    assert differences["last-4"][0] > 1e-9
    assert differences["shared"][0] > 1e-9
    assert [size for _, size in differences.values()] == [6 * n for n in (s // 6 for _, s in differences.values())]
    assert differences["shared"][1] * 6 == differences["exact"][1]
    assert differences["last-4"][1] * 6 == differences["exact"][1] * 4


def test_names_of_caches():
    model = tiny("scse")
    assert type(make_cache("exact", model, 1, 4)) is KVCache
    for name, slots in (("shared", 1), ("last-3", 3)):
        kept = make_cache(name, model, 1, 4)
        assert isinstance(kept, LastLoopsCache)
        assert kept.slots == slots
    with pytest.raises(UserError, match="did you mean 'shared'"):
        make_cache("sharde", model, 1, 4)
    with pytest.raises(UserError, match="at least one loop"):
        make_cache("last-0", model, 1, 4)


@torch.no_grad()
def test_mistakes_are_named():
    model = tiny("scse")
    cache = KVCache(model, 1, 2)
    settle(model, some_ids(1, 10), cache.append(10), Depth(2))
    with pytest.raises(UserError, match="17 tokens are more than the model's 16 positions"):
        cache.append(7)
    with pytest.raises(UserError, match="made for 2 loops; make one for at least 3"):
        settle(model, some_ids(1, 1), cache.append(1), Depth(3))
    with pytest.raises(UserError, match="already holds some"):
        cache.append(2, torch.tensor([[False, True]]))
    for real in ([[True, False]], [[False, False]], [[False, True, False, True]]):
        with pytest.raises(UserError, match="on the left"):
            KVCache(model, 1, 2).append(len(real[0]), torch.tensor(real))
    with pytest.raises(UserError, match="at least one row"):
        KVCache(model, 1, 0)
    with pytest.raises(UserError, match="loops must be at least 1, got 0"):
        Depth(0)
    with pytest.raises(UserError, match="must not be negative"):
        Depth(2, -1.0)
    with pytest.raises(UserError, match="2 loop counts were given for 3 rows"):
        replace(Depth(2), loops=(1, 2)).of(3)


@torch.no_grad()
def test_rows_of_a_padded_window_go_on_alone(family):
    model, ids = tiny(family), some_ids(3, 7)
    real = torch.ones_like(ids, dtype=torch.bool)
    real[0, :3] = False
    states = model.unroll(ids, memory=PaddedWindow(real))
    for _ in range(2):
        state = next(states)
    kept = state.rows(torch.tensor([0, 2])).step().hidden
    together = next(states).hidden
    torch.testing.assert_close(kept, together[[0, 2]], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_state_without_a_memory_rests_nowhere():
    state = next(tiny("scse").unroll(some_ids()))
    before = state.z.clone()
    state.rest()
    assert torch.equal(state.z, before)


class TwoBlocks(SharedCore):
    """B_2(x + B_1(x)), one past for both."""

    def __init__(self, shape):
        super().__init__(shape)
        self.second = Block(shape)

    def forward(self, t, x, past=None):
        own = None if past is None else past.layer(0)
        return self.second(x + self.block(x, own), own)


class TwoPasts(Direct):
    """The same, and each block has a past of its own."""

    bodies = 2

    def forward(self, core, drive, t, z, frame, memory=None):
        pasts = (None, None) if memory is None else (memory.past(0).layer(0), memory.past(1).layer(0))
        return z, core.second(z + core.block(z, pasts[0]), pasts[1])


@torch.no_grad()
def test_two_blocks_that_share_a_past_are_refused(monkeypatch):
    def two_blocks(shape, *, apart: bool = False):
        units = {"start": ProjectedStart(shape), "anchor": LearnedAnchor(shape), "gain": FixedScale(0.3)}
        return Recurrence(TwoBlocks(shape), Deviation(), update=TwoPasts() if apart else Direct(), **units)

    monkeypatch.setitem(FAMILIES._items, "two-blocks", family("two-blocks", two_blocks))
    model, ids = tiny("two-blocks"), some_ids()
    expected = model(ids, 3)
    with pytest.raises(UserError, match=r"family 'two-blocks' writes one past twice .* memory\.past\(n\)"):
        cached_logits(model, ids, Depth(3), (6, 1, 4))
    logits, _ = cached_logits(tiny("two-blocks", apart=True), ids, Depth(3), (6, 1, 4))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
