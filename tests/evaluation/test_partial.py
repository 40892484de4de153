"""An evaluation that is stopped or killed goes on where it was, to the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from scse.config.adaptive import AdaptiveSettings
from scse.evaluation.budgets import AdaptiveEvaluation
from scse.evaluation.completion import Completion, complete
from scse.evaluation.perplexity import perplexity_over_depths
from scse.runs.partial import Partial
from scse.signals import Terminated
from tinymodels import TINY, tiny

TOKENS = np.arange(16 * 7 + 5) % 61
PASSAGES = [Completion([(7 * n + place) % 61 for place in range(4 + n)], 2) for n in range(9)]
SETTINGS = AdaptiveSettings(budgets=(3,), ceiling=5, batch=2, modes=("offline",))


def adaptive(model, partial):
    (row,), _ = AdaptiveEvaluation(model, SETTINGS, partial=partial).run(TOKENS, TOKENS[::-1].copy())
    return row.threshold, row.mean_depth, row.ppl, row.histogram


# How each is called, and how many batches it unrolls: adaptive depth to calibrate, to evaluate, and at a fixed depth.
WORK = {
    "perplexity": (lambda model, partial: perplexity_over_depths(model, TOKENS, [1, 3], 2, partial=partial), 5),
    "completion": (lambda model, partial: complete(model, PASSAGES, [1, 3], 2, partial=partial), 5),
    "adaptive": (adaptive, 15),
}


@pytest.fixture(params=WORK)
def work(request):
    return WORK[request.param]


@pytest.fixture
def model(monkeypatch):
    """With `unrolled`, which counts, and `left`: how many times it may still unroll."""
    found = tiny("scse", spread=0.08)
    real, found.unrolled, found.left = found.unroll, 0, None

    def unroll(ids):
        if found.left == 0:
            raise Terminated
        found.unrolled += 1
        found.left = None if found.left is None else found.left - 1
        return real(ids)

    monkeypatch.setattr(found, "unroll", unroll)
    return found


def test_one_that_is_stopped_goes_on_where_it_was(tmp_path, model, work):
    evaluate, batches = work
    undisturbed = evaluate(model, None)
    assert model.unrolled == batches
    model.unrolled = 0
    for left in (3, 1, *([3] if batches > 5 else [])):  # the third in another pass
        model.left = left
        with pytest.raises(Terminated):
            evaluate(model, Partial(tmp_path, {"a": 1}))
    model.left = None
    assert evaluate(model, Partial(tmp_path, {"a": 1})) == undisturbed
    assert model.unrolled == batches, "nothing is computed twice"
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_killed_goes_on_from_the_last_time_it_wrote(tmp_path, model, work, monkeypatch):
    evaluate, batches = work
    undisturbed = evaluate(model, None)
    monkeypatch.setattr(Partial, "forget", lambda self: None)  # as if killed before that
    evaluate(model, Partial(tmp_path, {"a": 1}))
    model.unrolled = 0
    assert evaluate(model, Partial(tmp_path, {"a": 1})) == undisturbed
    assert model.unrolled == 0, "nothing is computed twice"
    model.unrolled = 0
    assert evaluate(model, Partial(tmp_path, {"a": 2})) == undisturbed
    assert model.unrolled == batches, "nothing is taken from another evaluation"
    for kept in tmp_path.rglob("*.json"):
        kept.write_text(kept.read_text().replace('"tokens": ', '"tokens": 1', 1))
    model.unrolled = 0
    assert evaluate(model, Partial(tmp_path, {"a": 1})) == undisturbed
    assert model.unrolled == batches, "nor from a file that is damaged"


def test_nothing_is_taken_from_before_a_gate_was_trained_again(tmp_path, monkeypatch):
    model = tiny("scse", spread=0.08, shape=replace(TINY, gate=True))
    settings = replace(SETTINGS, rule="gate")
    monkeypatch.setattr(Partial, "forget", lambda self: None)  # as if killed before that

    def evaluated(partial):
        (row,), _ = AdaptiveEvaluation(model, settings, partial=partial).run(TOKENS, TOKENS)
        return row.threshold

    before = evaluated(Partial(tmp_path, {"a": 1}))
    with torch.no_grad():
        model.recurrence.exit.proj.bias.add_(1.0)
    after = evaluated(Partial(tmp_path, {"a": 1}))
    assert after == evaluated(None) != before


def test_what_was_done_is_written_from_time_to_time(tmp_path, model, work, monkeypatch):
    evaluate, _ = work
    written = []
    monkeypatch.setattr("scse.runs.partial.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(Partial, "keep", lambda self, batches: written.append(len(batches)))
    evaluate(model, Partial(tmp_path, {"a": 1}))
    assert written[:5] == [1, 2, 3, 4, 5]
