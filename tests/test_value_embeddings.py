"""Layers that add embeddings of their tokens to their values, wherever states are looked at or weights are rounded.

What a coda needs for its values travels behind the hidden states; who looks at a state must not see it.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from scse.lens.compute import trace
from scse.nn.products import ROUNDED
from scse.recurrence.reading import MotionGate
from scse.training.exits import _loss, loop_gains
from scse.training.objectives import Objective
from tinymodels import VALUED, some_ids, tiny

FAMILIES = ("scse", "parcae")


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_as_wide_as_the_model(family):
    model, ids = tiny(family, shape=VALUED, spread=0.1), some_ids()
    states = model.unroll(ids)
    next(states)
    state = next(states)
    assert state.bare.shape == (*ids.shape, VALUED.width)
    assert state.hidden.shape[-1] > VALUED.width
    assert torch.equal(state.hidden[..., : VALUED.width], state.bare)
    assert torch.equal(model.trajectory(ids, 2, ("states",)).states[1], state.bare)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_trained_in_bfloat16(family):
    model, ids = (
        tiny(family, shape=replace(VALUED, width=32, heads=4, dropout=0.0), spread=0.05, dtype=torch.float32),
        some_ids(),
    )
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        rounded = Objective(model.train())(ids[:, :-1], ids[:, 1:], 3)
    rounded.backward()
    gradients = [table.weight.grad.clone() for table in model.values]
    model.zero_grad()
    exact = Objective(model)(ids[:, :-1], ids[:, 1:], 3)
    exact.backward()
    assert float(rounded.detach()) == pytest.approx(float(exact.detach()), rel=0.02)
    for found, table in zip(gradients, model.values, strict=True):
        error = torch.linalg.vector_norm(found - table.weight.grad)
        assert error < 0.2 * torch.linalg.vector_norm(table.weight.grad)


@torch.no_grad()
@pytest.mark.parametrize("precision", list(ROUNDED))
@pytest.mark.parametrize("family", FAMILIES)
def test_rounded_weights_say_nearly_the_same(family, precision):
    exact = tiny(family, shape=VALUED, spread=0.05, dtype=torch.float32)
    rounded = tiny(family, shape=VALUED, spread=0.05, dtype=torch.float32)
    rounded.lay_out(precision)
    ids = some_ids()
    wanted = exact(ids, 3)
    assert (rounded(ids, 3) - wanted).std() < 0.2 * wanted.std()


def test_a_gate_for_a_finished_model_sees_the_state_alone():
    model, ids = tiny("parcae", shape=VALUED, spread=0.1), some_ids()
    gate = MotionGate(VALUED).double()
    states, gains = loop_gains(model, ids[:, :-1], ids[:, 1:], 4)
    assert {state.shape[-1] for state in states} == {VALUED.width}
    loss, _ = _loss(gate, states, gains, torch.ones_like(ids[:, 1:]))
    loss.backward()
    assert gate.proj.weight.grad.any()


def test_the_lens_looks_at_the_state_alone():
    model, ids = tiny("parcae", shape=VALUED, spread=0.1), some_ids(1)
    found = trace(model, ids[0].numpy(), 3)
    sizes = torch.from_numpy(found.arrays["state"])
    states = model.trajectory(ids, 3, ("states",)).states
    torch.testing.assert_close(sizes.double().T, states[:, 0].norm(dim=-1), rtol=1e-5, atol=0)
