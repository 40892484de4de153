"""Statistics against scipy and against cases worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from scse.errors import UserError
from scse.records.statistics import bootstrap_interval, paired_difference, summarise


def test_mean_and_sample_deviation_by_hand():
    summary = summarise({0: 1.0, 1: 2.0, 2: 6.0})
    assert summary.mean == 3.0
    assert summary.sd == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert summary.seeds == (0, 1, 2)
    assert summarise({7: 4.0}).sd == 0.0
    diverged = summarise({0: 1.0, 1: math.inf})
    assert diverged.mean == math.inf
    assert math.isnan(diverged.sd)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_intervals_agree_with_scipy(n):
    draw = np.random.default_rng(n)
    left = dict(enumerate(draw.normal(100, 3, n)))
    right = {seed: value + shift for (seed, value), shift in zip(left.items(), draw.normal(2, 1, n), strict=True)}
    found = paired_difference(left, right)
    test = stats.ttest_rel(list(left.values()), list(right.values()))
    low, high = test.confidence_interval(0.95)
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.half_width == pytest.approx((high - low) / 2)


def test_the_bootstrap_enumerates_every_resample_of_few_pairs():
    """Three pairs: 27 resamples; percentiles of their means, by hand."""
    deltas = np.array([-3.0, 0.0, 3.0])
    means = sorted(sum(pick) / 3 for pick in itertools.product(deltas, repeat=3))
    assert bootstrap_interval(deltas) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])))
    assert bootstrap_interval(np.array([2.0, 2.0])) == (2.0, 2.0)


def test_the_bootstrap_of_many_pairs_is_deterministic_and_agrees_with_scipy():
    deltas = np.random.default_rng(1).normal(1.0, 2.0, 40)
    assert bootstrap_interval(deltas) == bootstrap_interval(deltas)
    reference = stats.bootstrap((deltas,), np.mean, method="percentile", rng=3).confidence_interval
    assert bootstrap_interval(deltas) == pytest.approx((reference.low, reference.high), abs=0.08)


def test_the_papers_rounding_of_a_paired_comparison():
    """Differences of −1, −2, −3: mean −2, t half-width 4.303·1/√3."""
    found = paired_difference({0: 9.0, 1: 8.0, 2: 7.0}, {0: 10.0, 1: 10.0, 2: 10.0})
    assert found.mean == -2.0
    assert found.half_width == pytest.approx(4.302652729 / math.sqrt(3), rel=1e-6)


def test_pairs_need_partners():
    with pytest.raises(UserError, match="seed 1 has no partner"):
        paired_difference({0: 1.0, 1: 2.0}, {0: 1.0})
    with pytest.raises(UserError, match="at least two seeds"):
        paired_difference({0: 1.0}, {0: 1.0})
    with pytest.raises(UserError, match="nothing to summarise"):
        summarise({})
