"""What a researcher can watch: trajectories, and hooks that know the loop."""

from __future__ import annotations

import pytest
import torch

from scse.errors import UserError
from scse.nn import Block
from tinymodels import anchored, some_ids, tiny


@torch.no_grad()
def test_a_trajectory_is_every_depth_at_once(family):
    model, ids = tiny(family), some_ids()
    parts = {"states", "updates", "predictions"} | ({"deviations"} if anchored(family) else set())
    found = model.trajectory(ids, loops=5, keep=parts)
    assert found.states.shape == (6, 3, 11, 24)
    for loops in range(1, 6):
        assert torch.equal(found.states[loops], model.hidden(ids, loops))
        assert torch.equal(found.predictions[loops], model(ids, loops).argmax(-1))
    assert torch.equal(found.updates, found.states[1:] - found.states[:-1])
    if found.deviations is not None:
        anchor = model.recurrence.begin(model.embed(ids)).hidden_anchor
        torch.testing.assert_close(found.deviations, found.states - anchor, rtol=0, atol=1e-12)


def test_only_what_is_asked_for_is_kept():
    states = tiny("scse").trajectory(some_ids(), loops=3, keep=["states"])
    assert states.states.shape == (4, 3, 11, 24)
    assert states.predictions is None
    found = tiny("scse").trajectory(some_ids(), loops=3, keep=["predictions"])
    assert found.predictions.shape == (4, 3, 11)
    assert (found.states, found.deviations, found.updates) == (None, None, None)


@pytest.mark.parametrize(("change", "message"), [
    ({"keep": ["state"]}, "did you mean 'states'"),
    ({"loops": 0}, "at least 1"),
])  # fmt: skip
def test_mistakes_are_named(change, message):
    with pytest.raises(UserError, match=message):
        tiny("scse").trajectory(some_ids(), **{"loops": 2, **change})


def test_deviations_need_an_anchor():
    with pytest.raises(UserError, match="no anchor"):
        tiny("unshared-3").trajectory(some_ids(), loops=2)


@torch.no_grad()
def test_hooks_on_the_block_see_the_loop_index(family):
    model, ids = tiny(family), some_ids()
    seen = []
    for block in (module for module in model.modules() if isinstance(module, Block)):
        block.register_forward_hook(lambda block, inputs, update: seen.append(block.loop))
    model(ids, 3)
    bodies = model.recurrence.bodies_per_step
    assert seen == [t for t in range(3) for _ in range(bodies)]


@torch.no_grad()
def test_hooks_on_the_core_see_the_loop_index(family):
    model, ids = tiny(family), some_ids()
    seen = []
    hook = lambda module, inputs, update: seen.append((inputs[0], inputs[1].shape, update.shape))  # noqa: E731
    handle = model.recurrence.core.register_forward_hook(hook)
    model(ids, 3)
    handle.remove()
    bodies = model.recurrence.bodies_per_step
    assert [t for t, *_ in seen] == [t for t in range(3) for _ in range(bodies)]
    assert all(x == update == (*ids.shape, 24) for _, x, update in seen)
