"""The counterfactual theory: closed forms of linear maps, and every identity on every family in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from test_pointwise import SILENT, TOKENS

from scse.diagnostics.differentials import differentiable
from scse.diagnostics.secants import Secant, contributions, gauss_legendre, paired_paths, secant_maps, seen_through
from scse.diagnostics.theory import (
    NEUTRAL_GAP,
    analyse,
    largest_beta,
    loss_gap,
    one_input,
    spectral_response,
    theory,
    verdict,
)
from scse.errors import RunFailure, UserError
from tinymodels import anchored, some_ids, tiny

FIRST, LAST = 2, 9
N = LAST - FIRST


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def affine(matrix, forcing):
    """T_t(Δ) = AΔ + b, so b_t = b, a_t = (A − I)Δ and A_t^sec = A."""
    return lambda t, x: x @ matrix.T + forcing


def linear_loss(slope):
    return lambda x: (slope * x).sum()


def analysed(matrix, forcing, slope=None, first=FIRST, last=LAST):
    dimension = len(matrix)
    loss = linear_loss(torch.ones(1, dimension, dtype=torch.float64) if slope is None else slope)
    with differentiable():
        return analyse(affine(matrix, forcing), loss, random(1, dimension, seed=9), first, last, SILENT)


def test_gauss_legendre_integrates_polynomials_exactly():
    for order in (1, 2, 5):
        nodes, weights = map(np.array, gauss_legendre(order))
        for power in range(2 * order):
            assert (weights * nodes**power).sum() == pytest.approx(1 / (power + 1), rel=1e-13)


def test_a_linear_map_has_its_closed_form():
    """E_T = Σ_l A^l b and p_{T,k} = A^{T−k−1} b, with one node."""
    matrix, forcing = 0.3 * random(6, 6), random(1, 6, seed=1)
    paths = paired_paths(affine(matrix, forcing), random(1, 6, seed=2), FIRST, LAST)
    powers = [forcing @ torch.linalg.matrix_power(matrix, N - 1 - k).T for k in range(N)]
    torch.testing.assert_close(paths.response[-1], sum(powers))
    with differentiable():
        found = secant_maps(affine(matrix, forcing), paths, SILENT)
        vectors = contributions(found.maps, paths.forcing, SILENT)
        seen = seen_through(random(2, 1, 6, seed=3), found.maps, paths.forcing, SILENT)
    assert {secant.order for secant in found.maps} == {1}
    assert found.theorem_residual < 1e-14
    torch.testing.assert_close(vectors, torch.stack(powers))
    torch.testing.assert_close(seen, torch.stack([(vectors * v).sum((1, 2)) for v in random(2, 1, 6, seed=3)]))


def test_the_contraction_bound_is_met_by_the_map_that_attains_it():
    """A = qI: every step is ‖b‖ and shrinks by q, so ‖E_T‖ = B(1 − qⁿ)/(1 − q)."""
    forcing = random(1, 5)
    found = analysed(0.8 * torch.eye(5, dtype=torch.float64), forcing)
    size = float(forcing.norm())
    assert found.contraction.q == pytest.approx(0.8, rel=1e-9)
    assert size == pytest.approx(found.contraction.B)
    assert found.contraction.bound == pytest.approx(size * (1 - 0.8**N) / 0.2)
    assert found.response == pytest.approx(found.contraction.bound)


def test_the_contraction_bound_holds_and_is_silent_for_expansions():
    random_matrix = random(6, 6)
    contracting = 0.9 * random_matrix / torch.linalg.matrix_norm(random_matrix, 2)
    found = analysed(contracting, random(1, 6, seed=1))
    assert found.contraction.q == pytest.approx(0.9, rel=1e-6)
    assert found.response < found.contraction.bound < found.contraction.B / 0.1
    assert analysed(1.1 * torch.eye(6, dtype=torch.float64), random(1, 6)).contraction.bound is None


def test_coherent_accumulation():
    """A = I: all contributions are b, β = ‖b‖, and ‖E_T‖ = nβ."""
    forcing = random(1, 5)
    found = analysed(torch.eye(5, dtype=torch.float64), forcing)
    assert found.beta == pytest.approx(float(forcing.norm()))
    assert found.response == pytest.approx(N * found.beta)
    assert found.coherence == pytest.approx(1.0)


def test_cancelling_forcing_has_no_coherent_direction():
    """A = −I: contributions alternate, so an even number of them cancels."""
    found = analysed(-torch.eye(4, dtype=torch.float64), random(1, 4), last=FIRST + 6)
    assert found.response == pytest.approx(0.0, abs=1e-12)
    assert found.beta == 0.0
    assert found.coherence == pytest.approx(0.0, abs=1e-12)


def test_the_largest_beta_of_known_vectors():
    right_angle = torch.eye(2, dtype=torch.float64)
    assert largest_beta(right_angle) == pytest.approx(np.sqrt(0.5))
    assert largest_beta(3 * right_angle) == pytest.approx(3 * np.sqrt(0.5))
    assert largest_beta(torch.tensor([[4.0, 0.0], [1.0, 0.0]], dtype=torch.float64)) == pytest.approx(1.0)
    assert largest_beta(torch.tensor([[1.0, 0.0], [-1.0, 1e-12]], dtype=torch.float64)) == pytest.approx(0.0, abs=1e-9)
    assert largest_beta(torch.zeros(3, 4, dtype=torch.float64)) == 0.0


def test_no_direction_beats_the_largest_beta():
    vectors = random(5, 7) + 1.5
    best = largest_beta(vectors)
    tried = random(7, 20_000, seed=3) + vectors.mean(0)[:, None]
    reached = (vectors @ (tried / tried.norm(dim=0))).min(dim=0).values.max()
    assert best >= float(reached)
    assert best == pytest.approx(float(reached), rel=0.3)


@pytest.mark.parametrize("eigenvalue", [0.5, 1.0, 1.2, -0.7])
def test_the_spectral_sum_is_exact_for_a_constant_secant(eigenvalue):
    basis = torch.linalg.qr(random(5, 5)).Q
    matrix = basis @ torch.diag(torch.tensor([eigenvalue, 0.3, -0.2, 0.9, 0.1], dtype=torch.float64)) @ basis.T
    forcing, v = random(1, 5, seed=4), basis[:, 0][None]
    paths = paired_paths(affine(matrix, forcing), random(1, 5), FIRST, LAST)
    expected = spectral_response(v, forcing, eigenvalue, N)
    assert float((v * paths.response[-1]).sum()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, "harmful"), (-1.0, "beneficial"), (0.0, "neutral")])
def test_the_sign_of_the_loss_gap(sign, expected):
    """A loss that rises along b is hurt by it, one that falls is helped, one that is blind to it is neither."""
    forcing = random(1, 5)
    found = analysed(torch.eye(5, dtype=torch.float64), forcing, slope=sign * forcing)
    size = float(forcing.norm())
    assert found.verdict == expected
    assert found.loss_gap.gap == pytest.approx(sign * N * size**2)
    assert found.loss_gap.slope == pytest.approx(sign * size)
    np.testing.assert_allclose(found.loss, sign * size**2)


def test_small_gaps_are_neutral():
    assert [verdict(x) for x in (NEUTRAL_GAP / 2, -NEUTRAL_GAP / 2, 2 * NEUTRAL_GAP)] == [
        "neutral",
        "neutral",
        "harmful",
    ]


def test_the_integral_of_a_curved_loss_is_its_gap():
    def loss(x):
        return torch.logsumexp(3 * x, dim=-1).sum()

    with differentiable():
        found = loss_gap(loss, random(2, 6), random(2, 6, seed=1))
    assert found.residual < 1e-8
    product = float((found.gradient * random(2, 6, seed=1)).sum())
    assert product == pytest.approx(found.gap, abs=1e-7)


def test_all_identities_on_every_family(family):
    model, last = tiny(family), FIRST + 3
    ids = some_ids(batch=1, length=5)
    targets = some_ids(batch=1, length=5, seed=6)
    with differentiable():
        if not anchored(family):
            with pytest.raises(UserError, match="no anchor"):
                one_input(model, ids, targets, FIRST)
            return
        step, loss, start = one_input(model, ids, targets, FIRST)
        paths = paired_paths(step, start, FIRST, last)
        secants = secant_maps(step, paths, SILENT)
        vectors = contributions(secants.maps, paths.forcing, SILENT)
        found = analyse(step, loss, start, FIRST, last, SILENT, order=96)
    response = paths.response[-1]
    # The lemma and the theorem, with the vectors themselves and from the inside out.
    assert secants.lemma_residual < 1e-7
    assert found.theorem_residual < 1e-6
    assert found.vector_residual < 1e-6
    torch.testing.assert_close(vectors.sum(0), response, rtol=0, atol=1e-6 * max(1.0, float(response.norm())))
    # What covectors see backwards is what the vectors are.
    size = float(response.norm())
    assert found.along.sum() == pytest.approx(size, rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(found.loss, (vectors * found.loss_gap.gradient).sum((1, 2, 3)), atol=1e-6)
    # The proposition, and both corollaries' inequalities.
    assert found.loss_gap.residual < 1e-6
    assert found.loss.sum() == pytest.approx(found.loss_gap.gap, abs=1e-5)
    assert (last - FIRST) * found.beta <= size * (1 + 1e-6) + 1e-12
    if found.loss_gap.slope > 0:
        assert found.loss_gap.gap >= found.loss_gap.slope * size * (1 - 1e-6) - 1e-9
    if model.recurrence.zero_preserving:
        assert size == 0
        assert found.verdict == "neutral"
        assert not found.loss.any()
    else:
        assert size > 0


def test_the_secant_map_pushes_and_pulls_like_the_mean_jacobian():
    model, ids = tiny("tuned-adapter"), some_ids(batch=1, length=4)
    with differentiable():
        step, _, start = one_input(model, ids, ids, 1)
        response = 0.3 * random(*start.shape)
        found = Secant(partial(step, 1), start, response, 3)
        size = start.numel()
        nodes, weights = gauss_legendre(3)
        mean = sum(
            w * torch.func.jacrev(partial(step, 1))(start + x * response).reshape(size, size)
            for x, w in zip(nodes, weights, strict=True)
        )
        stack = random(40, *start.shape, seed=2)
        torch.testing.assert_close(found.push(stack).flatten(1), stack.flatten(1) @ mean.T)
        torch.testing.assert_close(found.pull(stack).flatten(1), stack.flatten(1) @ mean)


def test_orders_rise_until_the_theorem_holds():
    """T(Δ) = arctan(Δ) + b is curved: one node is not enough, and the residual says so."""

    def step(t, x):
        return torch.atan(3 * x) + 2.0

    with differentiable():
        paths = paired_paths(step, random(1, 8), FIRST, LAST)
        found = secant_maps(step, paths, SILENT)
        vectors = contributions([secant.limited(1) for secant in found.maps], paths.forcing, SILENT)
    assert max(secant.order for secant in found.maps) > 4
    assert found.theorem_residual < 1e-6
    assert (paths.response[-1] - vectors.sum(0)).norm() > 1e-3


def test_the_twin_of_a_raw_map_without_forcing_is_the_trajectory_itself():
    (found,) = theory(tiny("sc-cond-subtractive"), TOKENS, 1, 5, 1, SILENT)
    assert found.response == 0
    assert found.loss_gap.gap == 0


def test_masked_recurrences_are_analysed_before_the_mask():
    """SC-Cond's mask hides a forcing that its raw map has; the masked and the unmasked family agree here."""
    masked, unmasked = (theory(tiny(name), TOKENS, 1, 5, 1, SILENT)[0] for name in ("sc-cond", "sc-cond-unmasked"))
    assert masked.response > 0
    assert masked.loss_gap.gap == unmasked.loss_gap.gap


def test_a_broken_claim_shows_as_a_response(monkeypatch):
    model = tiny("scse")
    original = type(model.recurrence.core).forward
    monkeypatch.setattr(type(model.recurrence.core), "forward", lambda self, *given: original(self, *given) + 0.1)
    (found,) = theory(model, TOKENS, 1, 5, 1, SILENT)
    assert found.response > 0


def test_non_finite_states_name_the_step():
    def step(t, x):
        return x * (float("inf") if t == 5 else 1.0) + 1.0

    with pytest.raises(RunFailure, match="no longer finite after step 5; stop before it with --to 5"):
        paired_paths(step, random(1, 3), FIRST, LAST)
