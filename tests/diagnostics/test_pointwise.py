"""Pointwise diagnostics: exact where the paper says exact, and against direct computations everywhere."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from runs import run, write_corpus
from scse.cli import main
from scse.diagnostics import diagnose, random_direction_gain
from scse.diagnostics.pointwise import FINITE_DIFFERENCE, apart
from scse.diagnostics.stability import broken_claims, with_verdicts
from scse.diagnostics.steering import steer, summary
from scse.diagnostics.theory import theory
from scse.errors import RunFailure, UserError
from scse.progress import SILENT
from scse.recurrence import deviation_map
from tinymodels import TINY, anchored, some_ids, tiny

TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 8 + 1).astype(np.uint16)


def diagnosis(model, steps=9, gain_steps=(), batch=4):
    return diagnose(model, TOKENS, steps, batch, 2, gain_steps, SILENT)


@torch.no_grad()
def test_the_one_step_map_is_the_step_seen_from_the_anchor(family):
    model, ids = tiny(family), some_ids()
    state = next(islice(model.unroll(ids), 3, None))
    if not anchored(family):
        with pytest.raises(UserError, match="no anchor"):
            _ = state.deviation
        return
    following = next(islice(model.unroll(ids), 4, None)).deviation
    mapped = deviation_map(model.recurrence, 3, state.deviation, state.frame)
    torch.testing.assert_close(mapped, following, rtol=0, atol=1e-10)


def test_zeros_are_literal_where_claimed(family):
    model = tiny(family, dtype=torch.float32)
    if not anchored(family):
        return
    for row in diagnosis(model, steps=48):
        assert (row.bias_ratio == 0) == model.recurrence.anchor_preserving
        assert (row.raw_bias_ratio == 0) == model.recurrence.zero_preserving


@torch.no_grad()
@pytest.mark.parametrize("family", ["universal", "unshared-3"])
def test_without_an_anchor_states_alone_are_measured(family):
    model = tiny(family)
    found = diagnosis(model, steps=4, gain_steps=(0, 3))
    (ids,) = model.place(torch.from_numpy(TOKENS[: 16 * 8].astype(np.int64)).view(8, 16))
    states = [state.hidden for state in islice(model.unroll(ids), 5)]
    for row in found:
        moved = (states[row.step + 1] - states[row.step]).pow(2).view(2, -1).mean(1)
        assert row.update_energy == pytest.approx(float(moved.mean()), rel=1e-10, abs=1e-30)
        assert row.input_dependence > 0
        assert {row.bias_ratio, row.anchor_energy, row.gain, row.expansion} == {None}
    assert {row["beyond_trained_range"] for row in with_verdicts(found, 2)} == {None}
    assert broken_claims(model.recurrence, found) == []


@pytest.mark.parametrize("family", ["looped", "looped-s035", "scalar-gate", "channel-gate"])
def test_a_trajectory_that_starts_at_its_anchor_has_a_ratio_of_one(family):
    first = diagnosis(tiny(family, dtype=torch.float32))[0]
    assert first.bias_ratio == 1.0
    assert first.anchor_energy == 0.0


@torch.no_grad()
def test_ratios_equal_a_direct_computation_per_batch():
    model = tiny("tuned-adapter")
    found = diagnosis(model, steps=3)
    ratios = []
    for first in (0, 4):
        cut = np.stack([TOKENS[r * 16 : (r + 1) * 16] for r in range(first, first + 4)]).astype(np.int64)
        ids = torch.from_numpy(cut)
        frame = model.recurrence.begin(model.embed(ids))
        h = [state.hidden for state in islice(model.unroll(ids), 4)]
        bias = model.recurrence.step(2, frame.hidden_anchor, frame) - frame.hidden_anchor
        ratios.append(float(bias.pow(2).mean() / (h[3] - h[2]).pow(2).mean()))
        energy = float((h[2] - frame.hidden_anchor).pow(2).mean())
    assert found[2].bias_ratio == pytest.approx(np.mean(ratios), rel=1e-10)
    assert energy > 0


@pytest.mark.parametrize("windows", [1, 3, 6])
def test_a_rest_that_is_no_window_changes_nothing(windows):
    """A split of whole windows and the same two tokens longer: the same numbers, however short the split is."""
    model, whole = tiny("tuned-adapter"), 16 * windows + 1
    exact, longer = (diagnose(model, TOKENS[:size], 4, 4, 2, (0, 3), SILENT) for size in (whole, whole + 2))
    assert exact == longer
    steered = [steer(model, TOKENS[:size], 6, 4, 4, SILENT) for size in (whole, whole + 2)]
    assert summary(steered[0]) == summary(steered[1])
    assert len(steered[0].forcing) == windows


def test_a_batch_that_is_not_whole_is_left_out():
    """Six windows in batches of four are one batch: a half one would count as much as the whole."""
    model = tiny("tuned-adapter")
    assert diagnose(model, TOKENS[: 16 * 6 + 1], 3, 4, 2, (), SILENT) == diagnose(model, TOKENS, 3, 4, 1, (), SILENT)


def test_a_split_without_a_whole_window_is_a_mistake():
    for measure in (
        lambda tokens: diagnose(tiny("scse"), tokens, 3, 4, 2, (), SILENT),
        lambda tokens: steer(tiny("scse"), tokens, 6, 4, 4, SILENT),
        lambda tokens: theory(tiny("scse"), tokens, 1, 3, 2, SILENT),
    ):
        with pytest.raises(UserError, match="a split of 16 tokens has no whole window of 17; choose a longer text"):
            measure(TOKENS[:16])


def test_the_floor_guards_a_state_that_does_not_move():
    rows = diagnosis(tiny("scse-initial"))
    assert all(row.update_energy == 0 and row.bias_ratio == 0 for row in rows)


@torch.no_grad()
def test_the_gain_of_a_linear_map_is_known(monkeypatch):
    """T(Δ) = 1.7Δ: every direction grows by 1.7."""
    model, ids = tiny("scse"), some_ids()
    monkeypatch.setattr(model.recurrence, "step", lambda t, z, frame, masked=True, memory=None: 1.7 * z)
    gain = random_direction_gain(model, ids, 0, torch.randn(3, 11, 24), torch.Generator().manual_seed(0))
    assert gain == pytest.approx(1.7, rel=1e-9)


def test_the_gain_agrees_with_jacobian_vector_products():
    model, ids = tiny("scse"), some_ids()
    state = next(islice(model.unroll(ids), 2, None))
    delta = state.deviation.detach()
    found = random_direction_gain(model, ids, 2, delta, torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    gains = []
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for _ in range(4):
            v = torch.randn(delta.shape, generator=generator, dtype=torch.float64)
            v /= v.pow(2).sum(dim=(1, 2), keepdim=True).sqrt()
            _, pushed = torch.func.jvp(lambda x: deviation_map(model.recurrence, 2, x, state.frame), (delta,), (v,))
            gains.append(pushed.detach().pow(2).sum(dim=(1, 2)).sqrt())
    assert found == pytest.approx(float(torch.stack(gains).mean()), rel=50 * FINITE_DIFFERENCE)


def test_gains_are_measured_where_asked():
    rows = diagnosis(tiny("scse", dtype=torch.float32), gain_steps=(0, 8))
    assert [row.step for row in rows if row.gain is not None] == [0, 8]


def test_how_far_inputs_are_apart_is_the_mean_over_pairs_and_ignores_lengths():
    states = torch.randn(4, 3, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    directions = states / states.norm(dim=-1, keepdim=True)
    pairs = [(directions[i] - directions[j]).pow(2).sum(-1).mean() for i in range(4) for j in range(i)]
    wanted = float(torch.stack(pairs).mean().sqrt())
    assert apart(states) == pytest.approx(wanted, rel=1e-12)
    assert apart(states * torch.tensor([1.0, 5.0, 0.1, 1e3]).view(4, 1, 1)) == pytest.approx(wanted, rel=1e-12)
    assert apart(states[:1].expand(4, -1, -1)) == pytest.approx(0, abs=1e-12)
    assert apart(states[:1]) == apart(torch.zeros(4, 3, 24)) == 0
    unrelated = torch.eye(4, dtype=torch.float64)[:, None]
    assert apart(unrelated) == pytest.approx(2**0.5, rel=1e-12)


def test_input_dependence_is_relative_to_what_the_loop_is_given():
    from_embedding = diagnosis(tiny("looped"), steps=3)
    assert from_embedding[0].input_dependence == 1.0
    for start in ("noise", "zero"):
        rows = diagnosis(tiny("parcae", start=start), steps=3)
        assert rows[0].input_dependence == pytest.approx(0, abs=1e-12), "no input is in the state yet"
        assert rows[1].input_dependence > 0.1
    assert {row.input_dependence for row in diagnosis(tiny("looped"), steps=3, batch=1)} == {None}


def test_a_recurrence_that_forgets_its_input_has_no_input_dependence(monkeypatch):
    """z' = ½z + ½c for every input: what tells inputs apart is halved at every step, and falls below any bound."""
    model = tiny("ouro")
    goal = torch.randn(1, 1, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    monkeypatch.setattr(model.recurrence, "step", lambda t, z, frame, masked=True, memory=None: 0.5 * z + 0.5 * goal)
    found = [row.input_dependence for row in diagnosis(model, steps=30)]
    assert all(after < before for before, after in pairwise(found))
    assert found[29] == pytest.approx(found[28] / 2, rel=1e-3)


def test_a_family_that_breaks_its_claim_is_caught(monkeypatch):
    """A bias in the block makes SCSE move at its anchor; the raw diagnosis shows it although the mask hides it."""
    model = tiny("scse")
    original = model.recurrence.core.forward
    monkeypatch.setattr(model.recurrence.core, "forward", lambda t, x, past=None: original(t, x) + 0.1)
    row = diagnosis(model)[0]
    assert row.bias_ratio == 0
    assert row.raw_bias_ratio > 0


def test_non_finite_states_name_the_step(monkeypatch):
    model = tiny("scse")
    original = model.recurrence.step
    monkeypatch.setattr(
        model.recurrence,
        "step",
        lambda t, z, f, m=True, memory=None: original(t, z, f, m) * (float("inf") if t == 5 else 1.0),
    )
    with pytest.raises(RunFailure, match="no longer finite after step 5"):
        diagnosis(model)


def test_the_command(tmp_path, capsys):
    torch.set_num_threads(1)
    corpus = write_corpus(tmp_path / "corpus")
    run(corpus, tmp_path / "run")
    arguments = ["diagnose", str(tmp_path / "run"), "--steps", "5", "--batch", "4", "--quiet"]
    arguments += ["--cache-dir", str(tmp_path / "cache")]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in rows] == list(range(5))
    assert all(row["bias_ratio"] == 0 == row["raw_bias_ratio"] for row in rows)
    assert rows[0]["gain"] > 0 < rows[4]["gain"]
    assert rows[2]["gain"] is None
    assert all(row["input_dependence"] > 0 for row in rows)
    assert len((tmp_path / "run" / "records.jsonl").read_text().splitlines()) == 5
    assert main(arguments) == 0
    capsys.readouterr()
    for extra, message in (
        (["--gain", "7"], "outside 0 … 4"),
        (["--gain", "x"], "step numbers"),
        (["--steps", "0"], "1"),
    ):
        assert main([*arguments, *extra]) == 2
        assert message in capsys.readouterr().err
