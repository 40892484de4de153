"""Every term of an objective against a plain reference, and gradients through the last loops only."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from interrupting import Killed, assert_same_run, killed_at

from runs import run
from scse.config.objective import canonical_objective
from scse.errors import UserError
from scse.training.objectives import TERMS, Objective
from tinymodels import TINY, some_ids, tiny

LOOPS = 5


def example(family="scse", spread=0.2, options=None, **changes):
    model = tiny(family, shape=replace(TINY, **changes), spread=spread, **(options or {}))
    ids = some_ids(3, 9)
    return model, ids[:, :-1], ids[:, 1:].clone()


def plain_nll(model, hidden, targets, reduction="sum"):
    logits = model.readout(hidden).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), reduction=reduction, ignore_index=-1)


def states(model, ids, loops):
    return [state.hidden for state, _ in zip(model.unroll(ids), range(loops + 1), strict=False)]


def relative(here, there):
    return ((here - there).square().sum(-1) / there.square().sum(-1)).mean()


def plain(name, model, ids, targets):
    """The term by its equation, with full logits and no sharing of anything."""
    hidden = states(model, ids, LOOPS + 1)
    count, half = int((targets >= 0).sum()), math.ceil(LOOPS / 2)
    if name == "last":
        return plain_nll(model, hidden[LOOPS], targets)
    if name == "mean":
        return sum(plain_nll(model, h, targets) for h in hidden[1 : LOOPS + 1]) / LOOPS
    if name.startswith("mean:"):
        shares = [t ** float(name.removeprefix("mean:")) for t in range(1, LOOPS + 1)]
        return sum(s * plain_nll(model, h, targets) for s, h in zip(shares, hidden[1:], strict=False)) / sum(shares)
    if name == "short":
        return plain_nll(model, hidden[half], targets)
    if name == "consistency":
        return count * relative(hidden[half], hidden[LOOPS].detach())
    if name == "fixed-point":
        return count * relative(hidden[LOOPS + 1], hidden[LOOPS])
    assert name == "expected"
    gate, left, total = model.recurrence.exit, 1.0, 0.0
    entropy = 0.0
    for t, (before, after) in enumerate(pairwise(hidden[: LOOPS + 1]), 1):
        stop = gate(before, after) if t < LOOPS else torch.ones_like(gate(before, after))
        share = stop * left
        total = total + (share * plain_nll(model, after, targets, "none").view(share.shape)).sum()
        entropy = entropy - (share * share.log())[targets >= 0].sum()
        left = left * (1 - stop)
    return total - 0.05 * entropy


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["scse", "channel-gate", "huginn", "universal"])
@pytest.mark.parametrize("name", [*sorted(set(TERMS.names()) - {"expansion", "ponder"}), "mean:1", "mean:0.5"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_term_equals_its_equation(name, family, masked):
    model, ids, targets = example(family, gate=True, coda=1)
    if masked:
        targets[:, ::2] = -1
    value = Objective(model, name)(ids, targets, LOOPS)
    expected = plain(name, model, ids, targets)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    ours, theirs = gradients(model, value), gradients(model, expected)
    assert ours.keys() >= theirs.keys()
    for key, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs.get(key, torch.zeros_like(gradient)), rtol=1e-7, atol=1e-9)


def test_the_expansion_penalty_is_the_gain_along_one_direction():
    model, ids, targets = example("looped", spread=0.6)
    torch.manual_seed(7)
    value = Objective(model, "expansion")(ids, targets, LOOPS)
    torch.manual_seed(7)
    state = [state for state, _ in zip(model.unroll(ids), range(LOOPS + 1), strict=False)][-1]
    direction = torch.randn(state.z.shape).to(state.z.dtype)
    small = 1e-6

    def moved(sign):
        return state.recurrence.step(LOOPS, state.z + sign * small * direction, state.frame)

    pushed = (moved(1) - moved(-1)) / (2 * small)
    gain = pushed.flatten(1).square().sum(1) / direction.flatten(1).square().sum(1)
    expected = targets.numel() * (gain - 1).clamp_min(0).mean()
    assert expected > 0, "the example must expand, or nothing is compared"
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)
    ours, theirs = gradients(model, value), gradients(model, expected)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for key, gradient in theirs.items():
        torch.testing.assert_close(ours[key], gradient, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("bias", [-2.0, 0.5], ids=["some go on to the end", "all halt"])
def test_the_ponder_cost_counts_loops_and_what_is_left(bias):
    model, ids, targets = example("universal", options={"halting_epsilon": 0.01})
    with torch.no_grad():
        model.recurrence.halting.proj.bias.fill_(bias)
    targets[:, ::3] = -1
    value = Objective(model, "ponder")(ids, targets, LOOPS)
    halted = []
    cost = torch.zeros(())
    for row, position in np.ndindex(*ids.shape):
        spent, loops, halt = torch.zeros(()), 0, False
        for state in list(zip(model.unroll(ids), range(LOOPS + 1), strict=False))[1:]:
            loops += 1
            h = state[0].z[row, position, : TINY.width]
            wanted = spent + torch.sigmoid(model.recurrence.halting.proj(h)[0])
            halt = bool(wanted > 1 - 0.01)
            if halt:
                break
            spent = wanted if loops < LOOPS else spent
        halted.append(halt)
        cost = cost + loops + 1 - spent
    assert all(halted) == (bias > 0)
    expected = (targets >= 0).sum() * cost / ids.numel()
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    ours, theirs = gradients(model, value), gradients(model, expected)
    for key, gradient in theirs.items():
        torch.testing.assert_close(ours[key], gradient, rtol=1e-7, atol=1e-9)


def test_the_ponder_cost_needs_a_family_that_halts():
    with pytest.raises(UserError, match="'ponder' needs halting probabilities, and this recurrence has none"):
        Objective(example("looped")[0], "ponder")


def test_terms_add_up_with_their_weights():
    model, ids, targets = example()
    value = Objective(model, "last+0.5*mean:1+2*short")(ids, targets, LOOPS)
    losses = [plain_nll(model, h, targets) for h in states(model, ids, LOOPS)]
    weighted = sum(t * losses[t] for t in range(1, LOOPS + 1)) / sum(range(1, LOOPS + 1))
    torch.testing.assert_close(value, losses[LOOPS] + 0.5 * weighted + 2 * losses[3], rtol=1e-9, atol=1e-9)


def test_every_sequence_may_have_its_own_depth():
    model, ids, targets = example("step-adapter")
    objective = Objective(model)
    depths = np.array([4, 1, 4])
    alone = sum(objective(ids[i : i + 1], targets[i : i + 1], int(depths[i])) for i in range(3))
    torch.testing.assert_close(objective(ids, targets, depths), alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["scse", "parcae", "looped"])
def test_gradients_stop_before_the_last_loops(family):
    model, ids, targets = example(family)
    value = Objective(model, backprop=2)(ids, targets, LOOPS)
    unrolled = model.unroll(ids)
    state = next(unrolled)
    for _ in range(LOOPS):
        state = unrolled.send(state)
        if state.t == LOOPS - 2:
            state.z.detach_()
    expected = plain_nll(model, state.hidden, targets)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    ours, theirs = gradients(model, value), gradients(model, expected)
    for key, gradient in theirs.items():
        torch.testing.assert_close(ours[key], gradient, rtol=1e-7, atol=1e-9)
    whole = gradients(model, Objective(model)(ids, targets, LOOPS))
    assert any(not torch.allclose(whole[key], gradient) for key, gradient in ours.items()), "something is cut off"


def test_memory_does_not_grow_with_the_loops_that_get_no_gradient():
    model, ids, targets = example()

    def kept(loops, backprop):
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x.nbytes) or x, lambda x: x):
            Objective(model, backprop=backprop)(ids, targets, loops)
        return sum(held)

    assert kept(32, 4) == kept(8, 4)
    assert kept(32, 0) > 3 * kept(8, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"depths": "poisson:3"},
        {"depths": "lognormal-poisson:4/sequence", "backprop": 2, "objective": "last+0.05*fixed-point"},
        {"depths": "fixed:2", "objective": "last+0.1*expansion"},
        {"depths": "curriculum:4:6", "objective": "expected:0.1"},
        {"objective": "0.5*last+0.5*short+0.1*consistency"},
        {"objective": "mean"},
    ],
    ids=str,
)
def test_every_sampler_and_objective_resumes_bit_identically(corpus, tmp_path, changes):
    run(corpus, tmp_path / "whole", **changes)
    with pytest.MonkeyPatch.context() as patch:
        killed_at(patch, 5)
        with pytest.raises(Killed):
            run(corpus, tmp_path / "parts", **changes)
    assert run(corpus, tmp_path / "parts", **changes).finished
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("last+0.05*fixed-point", "last+0.05*fixed-point"),
        ("last + 1e+2*fixed-point", "last+100*fixed-point"),
        ("0.12345678*last", "0.12345678*last"),
        ("1e-05*last", "1e-05*last"),
        ("size+last", "size+last"),
    ],
)
def test_an_objective_is_stored_as_it_is_meant(written, stored):
    assert canonical_objective(written) == stored
    assert canonical_objective(stored) == stored


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("lsat", "did you mean 'last'"),
        ("last+", "a term without a name"),
        ("last+last", "has 'last' twice"),
        ("-1*last", "not a number of at least 0"),
        ("last+nan*mean", "not a number of at least 0"),
        (
            "last+fixed-point:0.05",
            "'fixed-point' takes no number, got 'fixed-point:0.05'; weights .*: 0.05[*]fixed-point",
        ),
        ("last+0.1*fixed-point:3", "weights .*: 0.1[*]fixed-point"),
        ("0*last", "is always 0"),
        ("last+0.01*ponder", "'ponder' needs halting probabilities"),
        ("fixed-point+0.5*expansion", "has no term that looks at predictions"),
        ("0*last+fixed-point", "has no term that looks at predictions"),
    ],
)
def test_a_mistake_in_an_objective_is_one_line(corpus, tmp_path, objective, message):
    with pytest.raises(UserError, match=message):
        run(corpus, tmp_path / "out", objective=objective)
    assert not list((tmp_path / "out").glob("*"))


def test_no_power_of_the_loops_overflows():
    model, ids, targets = example("scse")
    value = Objective(model, "mean:1000")(ids, targets, LOOPS)
    torch.testing.assert_close(value, Objective(model)(ids, targets, LOOPS))


@pytest.mark.parametrize("options", [{"depths": "poisson:8"}, {"depths": "fixed:2"}, {"backprop": 1}])
def test_layers_without_loops_take_no_depths(corpus, tmp_path, options):
    with pytest.raises(UserError, match="leave --depths and --backprop out"):
        run(corpus, tmp_path / "out", "unshared-2", **options)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*"))
