"""The compiled step: once for all loops and depths, with the numbers of the plain one."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from scse.generation import GREEDY, Depth, Generation, KVCache, settle, stream
from tinymodels import NAMES, SHAPES, some_ids, tiny

DEPTHS = (1, 2, 5, 48)
FAMILIES = [name for name in NAMES if not name.startswith("unshared")]


@pytest.fixture(autouse=True, scope="module")
def _forgotten_after():
    """Families share graphs, so that one after another takes less time; a step that is not compiled any more fails."""
    with torch._dynamo.config.patch(recompile_limit=100, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def forgotten():
    """Nothing has been compiled before."""
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def shared():
    """Counts what all families let compile."""
    return counting("eager")


def counting(backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend(backend)


@torch.no_grad()
def compilations(model, counter):
    """How many graphs there are after each depth; the logits of each are those of the plain model."""
    ids, counts = some_ids(2, 9), []
    plain = [model(ids, depth) for depth in DEPTHS]
    model.compile_step(counter)
    for depth, expected in zip(DEPTHS, plain, strict=True):
        torch.testing.assert_close(model(ids, depth), expected, rtol=1e-5, atol=1e-5)
        counts.append(counter.frame_count)
    return counts


@torch.no_grad()
def decoding(model, counter):
    """How many graphs there are after each token of each depth, under a cache of fixed capacity."""
    ids, counts = some_ids(2, 6), []
    for loops in (1, 3):
        found = []
        for fixed in (False, True):
            cache = KVCache(model, 2, loops, 8, fixed)
            settle(model, ids[:, :3], cache.append(3), Depth(loops))
            for column in ids[:, 3:].split(1, dim=1):
                found.append(model.head(settle(model, column, cache.append(1), Depth(loops)).outputs))
                counts += [counter.frame_count] if fixed else []
        plain, fixed = (torch.cat(half) for half in (found[:3], found[3:]))
        torch.testing.assert_close(fixed, plain, rtol=1e-5, atol=1e-5)
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_no_depth_and_no_position_compiles_again(family, shared):
    """Two graphs, unless another family has them: the layers, and the update with its mask. More would be a break in
    one of them. Under a cache of fixed capacity two others; one that grows is not compiled at all."""
    before, model = shared.frame_count, tiny(family, dtype=torch.float32, spread=0.08)
    first, *others = compilations(model, shared)
    assert first - before <= 2
    assert set(others) == {first}
    cached, *others = decoding(model, shared)
    assert cached - first <= 2
    assert set(others) == {cached}


@pytest.mark.usefixtures("forgotten")
def test_the_two_graphs_are_there():
    """The test above counts something."""
    counter, model = counting("eager"), tiny("scse", dtype=torch.float32, spread=0.08)
    assert compilations(model, counter) == [2] * len(DEPTHS)
    assert decoding(model, counter) == [4] * 6


@pytest.mark.usefixtures("forgotten")
def test_layers_of_their_own_compile_until_all_have_been_seen():
    """Blocks of one form share a graph; the last one is the step that has no block left."""
    counts = compilations(tiny("unshared-3", dtype=torch.float32, spread=0.08), counting("eager"))
    assert counts[-1] == counts[-2] <= 4


@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, of its inputs
def test_gradients_and_dropout_of_a_compiled_step_are_those_of_the_plain_one():
    found = []
    for backend in (None, "aot_eager"):
        model = tiny("scse", dtype=torch.float32, spread=0.08).train()
        if backend is not None:
            model.compile_step(backend)
        torch.manual_seed(3)
        model.nll(some_ids(2, 9), some_ids(2, 9, seed=6), 3).backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    plain, compiled = found
    assert plain.keys() == compiled.keys()
    for name in plain:
        torch.testing.assert_close(compiled[name], plain[name], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("family", FAMILIES if os.environ.get("SCSE_COMPILED") == "all" else ["scse"])
def test_with_torchs_own_compiler(family):
    """One family, because the compiler takes its time; `make soak` has all of them."""
    counter, model = counting("inductor"), tiny(family, dtype=torch.float32, spread=0.08)
    assert compilations(model, counter) == [2] * len(DEPTHS)
    assert decoding(model, counter) == [4] * 6


@pytest.mark.usefixtures("forgotten")
def test_generation_of_a_compiled_model_keeps_its_shapes():
    """Rows end, and the window slides; the tokens are those of the plain model, from one compilation. The slots of
    the two layers lie in one tensor, which the step writes to."""
    counter, model = counting("aot_eager"), tiny("scse", spread=0.08, shape=SHAPES["layers"])
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6]]
    free = list(stream(model, prompts, Generation(Depth(3), 20, GREEDY, slide=True)))
    wanted = Generation(Depth(3), 20, GREEDY, stop=free[4][1].id, slide=True)
    plain = list(stream(model, prompts, wanted))
    assert len({len(new) for new in plain}) > 1, "a row ends before the others"
    model.compile_step(counter)
    assert list(stream(model, prompts, wanted)) == plain
    assert counter.frame_count == 2
