"""The largest local expansion and the verdict: known matrices, Jacobians formed by hand, and claims that break."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from test_pointwise import SILENT, TOKENS

from scse.diagnostics import StepDiagnosis, diagnose, local_expansion
from scse.diagnostics.differentials import differentiable, largest_gain, pull, push, unit
from scse.diagnostics.stability import broken_claims, judge, stability
from scse.recurrence import deviation_map
from tinymodels import anchored, some_ids, tiny


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_gain_of_known_matrices(dtype):
    """One example stretches a single direction a little: plain power iteration would stop at the bulk near 1."""
    nearly_identity = torch.eye(300, dtype=dtype) + 1e-3 * random(300, 300, dtype=dtype)
    nearly_identity[0, 0] = 1.08
    matrices = torch.stack([nearly_identity, random(300, 300, seed=1, dtype=dtype)])
    found = largest_gain(
        lambda v: torch.einsum("bij,bj->bi", matrices, v),
        lambda v: torch.einsum("bij,bi->bj", matrices, v),
        random(2, 300, seed=2, dtype=dtype),
        iterations=40,
    )
    exact = torch.linalg.svdvals(matrices.double())[:, 0]
    torch.testing.assert_close(found.value, exact, rtol=1e-3, atol=0)
    assert (found.value <= exact * (1 + 1e-5)).all()
    assert found.residual[0] < 1e-4


def test_too_few_iterations_show_in_the_residual():
    matrix = random(300, 300)
    few, many = (largest_gain(lambda v: v @ matrix.T, lambda v: v @ matrix, random(1, 300), n) for n in (3, 60))
    assert few.value < many.value
    assert few.residual > 10 * many.residual


def test_multiples_of_the_identity_and_zero():
    for factor in (1.7, 0.0):
        found = largest_gain(lambda v: factor * v, lambda v: factor * v, random(2, 5, 4), 6)  # noqa: B023
        torch.testing.assert_close(found.value, torch.full((2,), factor, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_push_and_pull_agree_with_finite_differences_and_each_other(family):
    model, ids = tiny(family), some_ids()
    state = next(islice(model.unroll(ids), 3, None))
    if state.frame.anchor is None:
        return
    at, frame = state.deviation.detach() + 0.1, state.frame
    v, w = random(*at.shape), random(*at.shape, seed=1)

    def step(x):
        return deviation_map(model.recurrence, 3, x, frame)

    with differentiable():
        pushed = push(step, at, torch.stack([v, w]))
        difference = (step(at + 1e-6 * v) - step(at - 1e-6 * v)) / 2e-6
        torch.testing.assert_close(pushed[0], difference, rtol=1e-5, atol=1e-6)
        pulled = pull(step, at, w)
    assert float((pushed[0] * w).sum()) == pytest.approx(float((v * pulled).sum()), rel=1e-9)


def test_the_expansion_is_that_of_the_jacobian_formed_by_hand():
    model, ids = tiny("scse", spread=0.1), some_ids(batch=2, length=5)
    state = next(islice(model.unroll(ids), 2, None))
    delta = state.deviation.detach()
    found = local_expansion(model.recurrence, 2, delta, state.frame, torch.Generator().manual_seed(0))
    with differentiable():
        for row in range(2):
            frame, at = state.frame.rows(torch.tensor([row])), delta[row : row + 1]
            jacobian = torch.func.jacrev(lambda x: deviation_map(model.recurrence, 2, x, frame))(at)  # noqa: B023
            exact = torch.linalg.svdvals(jacobian.reshape(at.numel(), at.numel()))[0]
            assert float(found.value[row]) == pytest.approx(float(exact), rel=1e-3)


def test_unit_keeps_zero():
    assert not unit(torch.zeros(2, 3)).any()


def row(step, energy, largest, expansion=None):
    measured = {} if expansion is None else {"gain": 1.0, "expansion": expansion, "expansion_residual": 1e-6}
    return StepDiagnosis(step, 0.0, 0.0, 0.0, 1.0, energy, largest, **measured)


def test_the_verdict_names_the_depth_at_which_the_state_leaves():
    rows = [row(0, 1.0, 2.0), row(1, 3.0, 5.0), row(2, 4.0, 9.0), row(3, 4.9, 9.0), row(4, 5.1, 9.0, 1.5)]
    found = judge(rows, trained=1)
    assert (found.stability, found.step, found.leaves_at) == ("expands", 4, 4)
    assert "leaves the range of the trained depths 0 … 1 at T = 4" in str(found)
    assert judge(rows, trained=2).leaves_at is None
    assert "stays in the range" in str(judge(rows, trained=2))
    assert "only trained depths" in str(judge(rows, trained=4))


def test_contracts_neutral_expands():
    assert [stability(x) for x in (0.5, 0.98, 0.995, 1.0, 1.005, 1.02)] == [
        *("contracts", "contracts", "neutral", "neutral", "neutral", "expands")
    ]


@pytest.mark.parametrize(("factor", "expected"), [(0.9, "contracts"), (1.0, "neutral"), (1.1, "expands")])
def test_linear_maps_are_judged_by_their_factor(monkeypatch, factor, expected):
    model = tiny("scse")
    monkeypatch.setattr(model.recurrence, "step", lambda t, z, frame, masked=True, memory=None: factor * z)
    rows = diagnose(model, TOKENS, 6, 4, 2, (5,), SILENT)
    assert rows[5].expansion == pytest.approx(factor, rel=1e-9)
    found = judge(rows, trained=2)
    assert found.stability == expected
    assert (found.leaves_at is not None) == (factor > 1)


def test_claims_hold_for_every_family(family):
    model = tiny(family, dtype=torch.float32)
    if anchored(family):
        assert broken_claims(model.recurrence, diagnose(model, TOKENS, 5, 4, 2, (), SILENT)) == []


def test_a_broken_claim_is_named(monkeypatch):
    model = tiny("scse")
    original = model.recurrence.core.forward
    monkeypatch.setattr(model.recurrence.core, "forward", lambda t, x, past=None: original(t, x) + 0.1)
    rows = diagnose(model, TOKENS, 5, 4, 2, (), SILENT)
    (sentence,) = broken_claims(model.recurrence, rows)
    assert "before the mask" in sentence
    assert "moves there" in sentence
    assert len(broken_claims(model.recurrence, [replace(row, bias_ratio=1.0) for row in rows])) == 2
