"""Anchor-started rollouts and the injection-gain intervention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_pointwise import SILENT, TOKENS

from scse.config.use import INJECTION_GAINS
from scse.diagnostics.steering import (
    Steering,
    per_input,
    plane,
    sentence,
    sources,
    steer,
    summary,
    with_source_gain,
)
from scse.errors import RunFailure, UserError
from scse.recurrence import deviation_map
from tinymodels import anchored, some_ids, tiny


def steered(model, inputs=3, steps=6):
    return steer(model, TOKENS, inputs, steps, trained_depth=4, meter=SILENT)


def test_rollouts_start_at_the_anchor_and_follow_their_ray_first(family):
    model = tiny(family)
    if not anchored(family):
        with pytest.raises(UserError, match="no anchor"):
            steered(model)
        return
    found = steered(model)
    assert found.paths.shape == (4, 3, 7, 24)
    assert not found.trained[:, 0].any()
    assert found.moves != model.recurrence.anchor_preserving
    np.testing.assert_allclose(found.trained[:, 1], found.forcing, atol=1e-12)
    if found.moves:
        np.testing.assert_allclose(found.ray_cosines[:, 0], 1.0)
        assert summary(found)["cosine_highest"] <= 1 + 1e-12


def test_families_without_a_source_have_nothing_to_turn():
    found = steered(tiny("scse"))
    assert not found.has_source
    assert not found.paths.any()
    assert summary(found) == {"push": 0.0, "circle": 0.0}
    assert per_input(found)[0]["share"] is None


@torch.no_grad()
@pytest.mark.parametrize(
    "family", ["looped", "step-adapter", "film-adapter", "forcing-subtraction", "sc-cond-unmasked"]
)
def test_turning_the_gain_scales_the_injected_source_alone(family):
    """The block's input is affine in the gain, also where the injection is nested or prepared with the anchor."""
    recurrence = tiny(family).recurrence
    model, ids = tiny(family), some_ids()
    before = {name: p.clone() for name, p in model.named_parameters()}
    frames = {g: with_source_gain(model.recurrence, g).begin(model.embed(ids)) for g in INJECTION_GAINS}
    z = torch.ones_like(frames[0.0].embedding)
    seen = {g: model.recurrence.drive(2, z, frames[g].drive) for g in INJECTION_GAINS}
    step = seen[1.0] - seen[0.0]
    assert step.abs().max() > 1e-3
    torch.testing.assert_close(seen[2.0] - seen[0.0], 2 * step)
    torch.testing.assert_close(seen[0.5] - seen[0.0], step / 2)
    torch.testing.assert_close(seen[1.0], model.recurrence.drive(2, z, recurrence.begin(model.embed(ids)).drive))
    torch.testing.assert_close(frames[2.0].hidden_anchor, frames[0.0].hidden_anchor, rtol=0, atol=0)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters()), "the model itself is untouched"
    assert len(sources(model.recurrence)) == 1


@torch.no_grad()
def test_the_trained_gain_is_the_model_itself():
    model = tiny("tuned-adapter")
    ids = torch.from_numpy(TOKENS[:48].astype(np.int64)).view(3, 16)
    frame = model.recurrence.begin(model.embed(ids))
    delta = torch.zeros_like(frame.embedding)
    for t in range(6):
        delta = deviation_map(model.recurrence, t, delta, frame)
    np.testing.assert_allclose(steered(model).trained[:, -1], delta.mean(dim=1).numpy(), atol=1e-10)


def made_up():
    """Two inputs that drift along x; the injection adds g·t along y (and half a unit along x for the second)."""
    t = np.arange(5.0)
    paths = np.zeros((4, 2, 5, 3))
    for g, gain in enumerate(INJECTION_GAINS):
        paths[g, :, :, 0] = 4 * t
        paths[g, :, :, 1] = gain * t
        paths[g, 1, :, 0] += gain * t
    forcing = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    return Steering(INJECTION_GAINS, paths, forcing, has_source=True, trained_depth=2)


def test_numbers_of_a_made_up_steering():
    first, second = per_input(made_up())
    push = np.hypot(16, 4)
    assert first["push"] == pytest.approx(push)
    assert first["push_trained"] == pytest.approx(np.hypot(8, 2))
    assert first["share"] == pytest.approx(4 / push)
    assert first["cosine_last"] == pytest.approx(16 / push)
    assert first["angle"] == pytest.approx(90 - np.degrees(np.arctan2(4, 16)))
    assert (first["half"], first["double"], first["collinear"], first["growing"]) == pytest.approx((0.5, 2.0, 1.0, 1.0))
    assert second["share"] == pytest.approx(np.hypot(4, 4) / np.hypot(20, 4))
    numbers = summary(made_up())
    assert numbers["share_rms"] == pytest.approx(np.sqrt((first["share"] ** 2 + second["share"] ** 2) / 2))
    assert numbers["share_lowest"] == first["share"]


def test_the_sentence_mentions_only_what_exists():
    assert "the injection's displacement is 24% … 28% of the anchor push" in sentence(made_up())
    assert sentence(replace(made_up(), has_source=False)) == "cosines to the forcing ray 0.97 … 0.98"
    still = replace(made_up(), paths=np.zeros_like(made_up().paths))
    assert sentence(still) == "nothing moves: the anchor is a fixed point"


def test_the_plane_holds_the_points_and_does_not_depend_on_signs():
    points = made_up().trained
    axes = plane(points)
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose((points @ axes.T) @ axes, points, atol=1e-9)
    np.testing.assert_allclose(plane(-points), axes, atol=1e-9)


def test_non_finite_rollouts_name_the_step(monkeypatch):
    from scse.recurrence import Recurrence

    original = Recurrence.step
    monkeypatch.setattr(
        Recurrence,
        "step",
        lambda self, t, z, f, m=True, memory=None: original(self, t, z, f, m) * (np.inf if t == 3 else 1.0),
    )
    with pytest.raises(RunFailure, match="no longer finite after step 3"):
        steered(tiny("looped"))
