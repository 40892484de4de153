"""The compiled step: once for all loops and depths, with the numbers of the plain one."""

from __future__ import annotations

import shutil

import pytest
import torch

from tinymodels import NAMES, some_ids, tiny

DEPTHS = (1, 2, 5, 48)
FAMILIES = [name for name in NAMES if not name.startswith("unshared")]


@pytest.fixture(autouse=True)
def _forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


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


@pytest.mark.parametrize("family", FAMILIES)
def test_no_depth_compiles_again(family):
    """Two graphs: the layers, and the update with its mask. More would be a break in one of them."""
    counter = counting("eager")
    assert compilations(tiny(family, dtype=torch.float32, spread=0.08), counter) == [2] * len(DEPTHS)


def test_layers_of_their_own_compile_until_all_have_been_seen():
    """Blocks of one form share a graph; the last one is the step that has no block left."""
    counts = compilations(tiny("unshared-3", dtype=torch.float32, spread=0.08), counting("eager"))
    assert counts[-1] == counts[-2] <= 4


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


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_with_torchs_own_compiler():
    counter = counting("inductor")
    assert compilations(tiny("scse", dtype=torch.float32, spread=0.08), counter) == [2] * len(DEPTHS)
