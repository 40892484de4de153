"""The work of a step, counted in operations and memory. Time is for `scse bench`."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scse.generation import Depth, KVCache, Sampling, settle
from scse.measure import peak_bytes
from tinymodels import TINY, some_ids, tiny

TOKEN_LOOP = 66  # operations of one loop of SCSE under a cache
TRAINING_LOOP = 180  # of one loop, forward and backward


class Counted(TorchDispatchMode):
    """Counts the operations that reach torch's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def cached_step(rows: int, context: int, loops: int):
    model, ids = tiny("scse", dtype=torch.float32), some_ids(batch=rows)
    cache = KVCache(model, rows, loops, TINY.context)
    settle(model, ids[:, :context], cache.append(context), Depth(loops))

    def step():
        cache.length = context
        settle(model, ids[:, :1], cache.append(1), Depth(loops))

    return step, cache


def operations(work) -> Counter[str]:
    with Counted() as counted:
        work()
    return counted.seen


def test_a_loop_of_a_token_takes_few_operations_however_many_rows_and_positions():
    found = [
        sum(operations(cached_step(rows, context, loops)[0]).values())
        for rows, context, loops in ((1, 3, 3), (1, 3, 4), (9, 3, 4), (1, 10, 4))
    ]
    assert found[1] - found[0] <= TOKEN_LOOP
    assert found[1] == found[2] == found[3]


def test_a_token_is_written_in_place():
    step, cache = cached_step(9, 10, 8)
    before = cache.keys.data_ptr(), cache.values.data_ptr()
    assert peak_bytes(step) < 0.5 * cache.nbytes
    assert before == (cache.keys.data_ptr(), cache.values.data_ptr())


def test_nothing_is_sorted_to_draw_a_token():
    logits, draws = torch.linspace(-3, 3, 999)[None], [torch.Generator().manual_seed(0)]
    seen = operations(lambda: Sampling(1.0, 0.9).choose(logits, draws))
    assert not [name for name in seen if "sort." in name or "topk" in name]


def test_a_loop_of_training_takes_few_operations():
    model, ids = tiny("scse", dtype=torch.float32).train(), some_ids()

    def step(loops):
        return sum(operations(lambda: model.nll(ids[:, :-1], ids[:, 1:], loops).backward()).values())

    step(1)
    assert step(4) - step(3) == step(6) - step(5) <= TRAINING_LOOP
