"""Adaptive depth: both modes decide alike, calibration reaches its budgets, early exit skips the work it claims."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from scse.config.adaptive import AdaptiveSettings
from scse.errors import UserError
from scse.evaluation.adaptive import offline, online
from scse.evaluation.budgets import AdaptiveEvaluation
from scse.evaluation.calibration import (
    Trace,
    UnreachableBudget,
    calibrate,
    calibrate_quality,
    exit_depths,
    trace,
)
from scse.evaluation.perplexity import perplexity_over_depths, spread_windows, windows
from scse.evaluation.rules import RULES, Stopping
from scse.evaluation.tokenwise import calibrate_tokens, freeze_tokens, tokenwise
from scse.tasks.adaptive import CALIBRATION_WINDOWS, calibration_windows
from tinymodels import TINY, some_ids, tiny

TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 23 + 6).astype(np.uint16)
FEW = TOKENS[: 16 * 9 + 6]
CEILING = 12


def settling(family, **options):
    """A model whose states come to rest at different speeds: small weights keep updates shrinking."""
    return tiny(family, spread=0.08, shape=replace(TINY, gate=True), **options)


def reference_decisions(model, rule, threshold):
    """Each window alone, stepped by hand."""
    depths, total = [], 0.0
    for start in range(0, len(FEW) - 1, 16):
        cut = torch.from_numpy(FEW[start : start + 17].astype(np.int64))[None]
        frame = model.recurrence.begin(model.embed(cut[:, :-1]))
        z = frame.start
        for t in range(CEILING):
            new = model.recurrence.step(t, z, frame)
            h, h_new = model.recurrence.hidden(z, frame), model.recurrence.hidden(new, frame)
            z = new
            if float(rule.statistic(model, h, h_new).max()) <= threshold:
                break
        depths.append(t + 1)
        total += F.cross_entropy(model.readout(h_new)[0], cut[0, 1:], reduction="sum").item()
    return depths, total / (len(FEW) - 1)


@torch.no_grad()
def test_offline_online_and_stepping_by_hand_agree(family):
    model, rule = settling(family), RULES.find("update")
    statistics = trace(model, FEW, Stopping(rule, CEILING, 8)).statistics
    threshold = float(np.quantile(statistics, 0.4)) * 1.0001
    depths, nll = reference_decisions(model, rule, threshold)
    assert exit_depths(statistics, threshold).tolist() == depths
    for batch in (4, 64):
        (off,) = offline(model, FEW, Stopping(rule, CEILING, batch), [threshold])
        on = online(model, FEW, Stopping(rule, CEILING, batch), threshold)
        for result in (off, on):
            assert result.depths.tolist() == depths, batch
            assert result.nll == pytest.approx(nll, rel=1e-10)
            assert result.tokens == len(FEW) - 1
        assert sum(on.histogram(CEILING)) == len(depths)


@torch.no_grad()
@pytest.mark.parametrize("name", RULES.names())
def test_every_rule_decides_alike_in_both_modes(name):
    model, rule = settling("scse"), RULES.find(name)
    threshold = calibrate(trace(model, TOKENS, Stopping(rule, CEILING, 8)).statistics, 5)
    (off,) = offline(model, TOKENS, Stopping(rule, CEILING, 7), [threshold])
    on = online(model, TOKENS, Stopping(rule, CEILING, 7), threshold)
    assert off.depths.tolist() == on.depths.tolist()
    assert off.nll == pytest.approx(on.nll, rel=1e-10)
    assert abs(on.mean_depth - 5) <= 1


def test_rules_by_their_definitions():
    model = tiny("scse")
    before, after = torch.randn(2, 3, 24, dtype=torch.float64), torch.randn(2, 3, 24, dtype=torch.float64)
    moved = (after - before).pow(2).sum(-1).sqrt()
    torch.testing.assert_close(RULES.find("update").statistic(model, before, after), moved)
    relative = moved / after.pow(2).sum(-1).sqrt()
    torch.testing.assert_close(RULES.find("relative").statistic(model, before, after), relative)
    p, q = (torch.softmax(model.readout(h), -1) for h in (after, before))
    torch.testing.assert_close(RULES.find("kl").statistic(model, before, after), (p * (p / q).log()).sum(-1))
    ahead = torch.softmax(model.readout(after + (after - before)), -1)
    torch.testing.assert_close(
        RULES.find("lookahead").statistic(model, before, after), (ahead * (ahead / p).log()).sum(-1)
    )
    first, second = p.sort(dim=-1, descending=True).values[..., :2].unbind(-1)
    torch.testing.assert_close(RULES.find("margin").statistic(model, before, after), 1 - first + second)
    with pytest.raises(UserError, match="no exit gate; train one with 'scse train-exit RUN'"):
        RULES.find("gate").statistic(model, before, after)
    gated = settling("scse")
    gate = gated.recurrence.exit
    normed = after / (after.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    logit = normed @ gate.proj.weight[0] + gate.proj.bias + gate.motion * relative.log()
    torch.testing.assert_close(RULES.find("gate").statistic(gated, before, after), 1 - logit.sigmoid())


def test_a_confident_example_is_one_whose_tokens_are_on_average():
    per_token = torch.tensor([[0.1, 0.5], [0.2, 0.2]])
    assert RULES.find("margin").of_examples(per_token).tolist() == pytest.approx([0.3, 0.2])
    assert RULES.find("update").of_examples(per_token).tolist() == pytest.approx([0.5, 0.2])


@torch.no_grad()
def test_early_exit_takes_exactly_the_steps_it_reports(monkeypatch):
    """Rows times steps actually computed equal the sum of the reported depths: nothing runs and is thrown away."""
    model, rule = settling("scse"), RULES.find("update")
    threshold = calibrate(trace(model, TOKENS, Stopping(rule, CEILING, 8)).statistics, 4)
    computed = 0
    original = model.recurrence.step

    def counting(t, z, frame, masked=True, memory=None):
        nonlocal computed
        computed += len(z)
        return original(t, z, frame, masked)

    monkeypatch.setattr(model.recurrence, "step", counting)
    result = online(model, TOKENS, Stopping(rule, CEILING, 6), threshold)
    assert computed == result.depths.sum() < CEILING * len(result.depths)


@torch.no_grad()
def test_a_threshold_nobody_reaches_is_the_static_ceiling():
    model, rule = settling("scse"), RULES.find("update")
    result = online(model, TOKENS, Stopping(rule, CEILING, 5), -1.0)
    (static,) = perplexity_over_depths(model, TOKENS, [CEILING])
    assert set(result.depths) == {CEILING}
    assert result.ppl == pytest.approx(static.ppl, rel=1e-10)


class TestCalibration:
    falling = np.random.default_rng(2).gamma(2.0, 1.0, (200, 1)) * np.exp(-0.1 * np.arange(48))

    @pytest.mark.parametrize("budget", [2, 8, 16, 24, 40])
    def test_the_mean_depth_is_the_budget(self, budget):
        threshold = calibrate(self.falling, budget)
        assert exit_depths(self.falling, threshold).mean() == pytest.approx(budget, abs=0.05)

    def test_by_hand(self):
        statistics = np.array([[4.0, 2.0, 1.0], [5.0, 3.0, 0.5]])
        assert exit_depths(statistics, 3.0).tolist() == [2, 2]
        assert exit_depths(statistics, 0.1).tolist() == [3, 3]
        assert exit_depths(statistics, 4.5).tolist() == [1, 2]
        assert exit_depths(np.array([[3.0, 1.0, 9.0]]), 2.0).tolist() == [2], "the first time counts"
        assert 4.0 < calibrate(statistics, 1.5) < 5.0

    def test_budgets_outside_the_range(self):
        for budget in (0.5, 49):
            with pytest.raises(UserError, match="not between 1 and the ceiling of 48"):
                calibrate(self.falling, budget)

    def test_an_unreachable_budget_says_what_is_reachable(self):
        with pytest.raises(UserError, match=r"nearest reachable means are 1\.0 and 48\.0"):
            calibrate(np.zeros((5, 48)), 8)


def test_budget_rows():
    model = settling("scse", dtype=torch.float32)
    settings = AdaptiveSettings(budgets=(3, 6), ceiling=CEILING, batch=4)
    rows, unreachable = AdaptiveEvaluation(model, settings).run(TOKENS, TOKENS)
    assert not unreachable
    assert [(row.budget, row.mode) for row in rows] == [(b, m) for b in (3, 6) for m in ("offline", "online")]
    for row in rows:
        assert row.mean_depth == pytest.approx(row.budget, abs=0.5)
        assert row.static_depth == round(row.mean_depth)
        (static,) = perplexity_over_depths(model, TOKENS, [row.static_depth], batch=4)
        assert row.static_ppl == static.ppl
        assert row.seconds > 0 < row.static_seconds
        assert sum(row.histogram) == 24
    assert rows[0].ppl == pytest.approx(rows[1].ppl, rel=1e-5)


def test_thresholds_do_not_depend_on_how_much_is_evaluated():
    model, settings = settling("scse"), AdaptiveSettings(budgets=(3, 6), ceiling=CEILING, calibration=12)
    limited, whole = (
        AdaptiveEvaluation(model, replace(settings, limit=limit)).run(TOKENS, TOKENS)[0] for limit in (1, None)
    )
    assert [row.threshold for row in limited] == [row.threshold for row in whole]
    assert sum(limited[0].histogram) == 1


def test_calibration_reads_windows_spread_over_the_whole_text():
    seen = torch.cat([inputs for inputs, _ in spread_windows(TOKENS, 16, 4, 5)])
    starts = [0, 5, 11, 16, 22]
    assert seen.tolist() == [TOKENS[16 * row : 16 * (row + 1)].tolist() for row in starts]
    for enough in (23, 99, None):
        every = [inputs.tolist() for inputs, _ in spread_windows(TOKENS, 16, 4, enough)]
        assert every == [inputs.tolist() for inputs, _ in windows(TOKENS, 16, 4)]


def test_a_budget_out_of_reach_does_not_keep_the_others_from_theirs(monkeypatch):
    def fewer(statistics, budget):
        if budget == 6:
            raise UnreachableBudget("no threshold gives a mean of 6 loops")
        return calibrate(statistics, budget)

    monkeypatch.setattr("scse.evaluation.budgets.calibrate", fewer)
    settings = AdaptiveSettings(budgets=(3, 6), ceiling=CEILING)
    rows, unreachable = AdaptiveEvaluation(settling("scse"), settings).run(TOKENS, TOKENS)
    assert [row.budget for row in rows] == [3, 3]
    assert unreachable == dict.fromkeys([(6, "offline"), (6, "online")], "no threshold gives a mean of 6 loops")
    with pytest.raises(UserError, match="no threshold gives a mean of 6 loops"):
        AdaptiveEvaluation(settling("scse"), replace(settings, budgets=(6,))).run(TOKENS, TOKENS)


def test_what_records_state_about_calibration():
    """Whole splits leave it out, as records always did; what a limited evaluation was calibrated on is told."""
    whole = AdaptiveSettings().identity(8, "online")
    assert whole == {
        "rule": "update",
        "ceiling": 48,
        "calibrated_on": "validation",
        "budget": 8,
        "mode": "online",
    }
    assert AdaptiveSettings(limit=64, calibration=256).identity(8, "online") == {**whole, "calibration": 256}
    assert AdaptiveSettings(limit=64).identity(8, "online") == {**whole, "calibration": None}
    assert [calibration_windows(limit) for limit in (None, 1, 512)] == [None, CALIBRATION_WINDOWS, 512]


class TestQualityTarget:
    def test_by_hand(self):
        """Two examples, three depths: the best fixed depth is 2 with a mean nll of 2; stopping at 1 costs 0.5 more."""
        nll = np.array([[2.0, 2.0, 2.5], [3.0, 2.0, 2.5]])
        statistics = np.array([[0.4, 0.2, 0.1], [0.9, 0.3, 0.2]])
        found = Trace(statistics, nll, 2)
        assert exit_depths(statistics, calibrate_quality(found, 0.0)).tolist() == [1, 2]
        assert exit_depths(statistics, calibrate_quality(found, 70.0)).tolist() == [1, 1]
        for percent in (-1.0, math.nan, math.inf):
            with pytest.raises(UserError, match="must not be negative"):
                AdaptiveSettings(quality=percent)

    def test_where_nobody_stops_the_last_depth_is_kept(self):
        """The last depth is the best, and the least likely to stop there."""
        found = Trace(np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[9.0, 1.0], [9.0, 1.0]]), 2)
        assert exit_depths(found.statistics, calibrate_quality(found, 1.0)).tolist() == [2, 2]

    def test_an_impossible_target(self):
        """Every example stops after one loop or after three, and two would be right."""
        found = Trace(np.array([[1.0, 2.0, 2.0]] * 2), np.array([[9.0, 1.0, 9.0]] * 2), 2)
        with pytest.raises(UserError, match=r"no threshold stays within 1 %"):
            calibrate_quality(found, 1.0)

    def test_the_target_holds_on_the_data_it_was_calibrated_on(self):
        model = settling("scse")
        settings = AdaptiveSettings(quality=1.0, ceiling=CEILING, modes=("online",))
        ((row,), _) = AdaptiveEvaluation(model, settings).run(TOKENS, TOKENS)
        best = min(r.ppl for r in perplexity_over_depths(model, TOKENS, list(range(1, CEILING + 1))))
        assert row.ppl <= 1.01 * best * (1 + 1e-9)
        assert row.budget == pytest.approx(row.mean_depth)


class TestTokens:
    @torch.no_grad()
    def test_a_token_keeps_the_state_in_which_it_stopped(self):
        model, rule, ids = settling("scse"), RULES.find("update"), some_ids(length=16)
        statistic = rule.statistic(model, *(s.hidden for s in islice(model.unroll(ids), 2)))
        threshold = float(statistic.median())
        state, taken = freeze_tokens(model, ids, rule, threshold, CEILING)
        first = next(islice(model.unroll(ids), 1, None))
        stopped = torch.from_numpy(taken == 1)
        assert torch.equal(stopped, statistic <= threshold)
        assert torch.equal(state.hidden[stopped], first.hidden[stopped])
        assert taken.max() > 1

    @torch.no_grad()
    def test_later_tokens_see_frozen_ones_as_they_stopped(self):
        """By hand: step the whole state, put frozen tokens back."""
        model, rule, ids = settling("looped"), RULES.find("update"), some_ids(length=16)
        frame = model.recurrence.begin(model.embed(ids))
        z, active = frame.start, torch.ones(ids.shape, dtype=torch.bool)
        threshold = 0.5
        for t in range(CEILING):
            new = model.recurrence.step(t, z, frame)
            new = torch.where(active[..., None], new, z)
            active = active & ((new - z).norm(dim=-1) > threshold)
            z = new
        state, _ = freeze_tokens(model, ids, rule, threshold, CEILING)
        torch.testing.assert_close(state.z, z, rtol=0, atol=1e-12)

    def test_extremes_are_fixed_depths(self):
        model, rule = settling("scse"), RULES.find("update")
        for threshold, depth in ((-1.0, CEILING), (1e9, 1)):
            result = tokenwise(model, TOKENS, Stopping(rule, CEILING, 5), threshold)
            (static,) = perplexity_over_depths(model, TOKENS, [depth])
            assert set(result.depths) == {depth}
            assert result.ppl == pytest.approx(static.ppl, rel=1e-10)

    def test_budgets_are_means_over_tokens(self):
        settings = AdaptiveSettings(budgets=(4,), ceiling=CEILING, modes=("token",))
        ((row,), _) = AdaptiveEvaluation(settling("scse"), settings).run(TOKENS, TOKENS)
        assert row.mean_depth == pytest.approx(4, abs=0.2)
        assert sum(row.histogram) == len(TOKENS) - 1

    def test_a_token_may_be_surer_than_all_examples_are_on_average(self):
        settings = AdaptiveSettings(rule="margin", budgets=(1,), ceiling=CEILING, modes=("token",))
        ((row,), _) = AdaptiveEvaluation(settling("scse"), settings).run(TOKENS, TOKENS)
        assert row.mean_depth == pytest.approx(1, abs=0.1)

    def test_a_budget_that_no_threshold_reaches(self):
        """All tokens of a model that stands still stop after the same loop."""
        still = tiny("scse", spread=0.0, step_scale=0.0)
        with pytest.raises(UserError, match="no threshold gives a mean of 4 loops per token; choose another budget"):
            calibrate_tokens(still, TOKENS, Stopping(RULES.find("update"), CEILING, 5), 4, largest=1.0)


def test_unknown_mode():
    with pytest.raises(UserError, match="did you mean 'online'"):
        AdaptiveEvaluation(tiny("scse"), AdaptiveSettings(modes=("onlin",)))


def test_unknown_rule():
    with pytest.raises(UserError, match="did you mean 'update'"):
        RULES.find("updates")


def test_rows_of_a_frame_are_selected_and_overwritten(family):
    model = tiny(family)
    frame, other = (model.recurrence.begin(model.embed(some_ids(seed=seed))) for seed in (1, 2))
    mixed = model.recurrence.begin(model.embed(some_ids(seed=1)))
    mixed.overwrite(torch.tensor([1]), other.rows(torch.tensor([2])))
    ids = some_ids(seed=1)
    ids[1] = some_ids(seed=2)[2]
    expected = model.recurrence.begin(model.embed(ids))
    for name in ("embedding", "hidden_anchor", "start", "anchor", "drive"):
        want, have = getattr(expected, name), getattr(mixed, name)
        assert (want is None) == (have is None)
        if want is not None:
            torch.testing.assert_close(have, want, rtol=0, atol=1e-12)
    assert torch.equal(frame.rows(torch.tensor([0])).embedding, frame.embedding[:1])
