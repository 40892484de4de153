"""Loops saved at a given loss of quality: against the best fixed depth found by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.rules import NO_PAST, RULES, ExitRule, Stopping
from scse.evaluation.savings import saving
from tinymodels import TINY, tiny

TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 24 + 1).astype(np.uint16)
CEILING = 6


@pytest.mark.parametrize("name", ["update", "gate"])
def test_the_fixed_depth_is_the_best_and_the_loss_is_kept(name):
    model = tiny("scse", spread=0.08, shape=replace(TINY, gate=True))
    found = saving(model, TOKENS, TOKENS, Stopping(RULES.find(name), CEILING, batch=8), 20.0)
    depths = perplexity_over_depths(model, TOKENS, list(range(1, CEILING + 1)), 8)
    best = min(depths, key=lambda result: result.ppl)
    assert found.fixed_depth == best.depth
    assert found.fixed_ppl == pytest.approx(best.ppl)
    assert found.ppl <= best.ppl * 1.2 * (1 + 1e-9), "calibrated and evaluated on the same text"
    assert found.saved == pytest.approx(1 - found.mean_depth / best.depth)
    assert found.ppl_change == pytest.approx(found.ppl / best.ppl - 1)
    assert found.time > 0


class Contrary(ExitRule):
    """Says of every state that it is further from done than the one before: nothing that it stops early is good."""

    name = "contrary"

    def statistic(self, model, before, after, codas=NO_PAST):
        return -(after - before).norm(dim=-1)


def test_a_rule_that_can_save_nothing_takes_the_fixed_depth():
    model = tiny("scse", spread=0.08)
    found = saving(model, TOKENS, TOKENS, Stopping(Contrary(), CEILING, batch=8), 0.0)
    assert found.mean_depth <= found.fixed_depth
    assert found.ppl_change <= 1e-9
