"""Numbers over seeds: means and sample standard deviations, and paired differences with two kinds of interval."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from scse.errors import UserError

CONFIDENCE = 0.95
RESAMPLES = 10_000
# Up to this many pairs every resample is enumerated: 5⁵ = 3,125, 6⁶ = 46,656.
ENUMERATED_PAIRS = 6
# Adaptive numbers whose realised mean depths differ by more than this share are not held against each other.
DEPTH_TOLERANCE = 0.1


def at_equal_compute(depths: Iterable[float]) -> bool:
    """Whether numbers were had at about the same mean depths, so that they can be ranked."""
    found = list(depths)
    return not found or max(found) <= (1 + DEPTH_TOLERANCE) * min(found)


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over `seeds`; 0 for a single value, NaN where a value is not finite."""

    mean: float
    sd: float
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class PairedDifference:
    """Mean of left − right over common seeds, its 95 % t half-width, and a paired-bootstrap percentile interval."""

    mean: float
    half_width: float
    interval: tuple[float, float]
    seeds: tuple[int, ...]


def summarise(values: dict[int, float]) -> Summary:
    numbers = list(values.values())
    if not numbers:
        raise UserError("there is nothing to summarise")
    if not all(map(math.isfinite, numbers)):
        return Summary(sum(numbers) / len(numbers), math.nan, tuple(values))
    sd = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return Summary(statistics.fmean(numbers), sd, tuple(values))


def paired_difference(left: dict[int, float], right: dict[int, float]) -> PairedDifference:
    """left − right, matched by seed; both sides must have the same seeds, and at least two."""
    odd = set(left) ^ set(right)
    if odd:
        raise UserError(f"seed {min(odd)} has no partner on the other side of the comparison")
    if len(left) < 2:
        raise UserError("a paired interval needs at least two seeds")
    deltas = np.array([left[seed] - right[seed] for seed in left])
    return PairedDifference(float(deltas.mean()), t_half_width(deltas), bootstrap_interval(deltas), tuple(left))


def t_half_width(deltas: np.ndarray) -> float:
    """t_{0.975, n−1} · s / √n"""
    from scipy.special import stdtrit  # the quantile that scipy.stats has too, which takes a second to load

    n = len(deltas)
    quantile = stdtrit(n - 1, 0.5 + CONFIDENCE / 2)
    return float(quantile * deltas.std(ddof=1) / np.sqrt(n))


def bootstrap_interval(deltas: np.ndarray) -> tuple[float, float]:
    """Percentiles of the mean over resampled pairs: all resamples for few pairs, a fixed random set for many."""
    n = len(deltas)
    if n <= ENUMERATED_PAIRS:
        picks = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        picks = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(deltas[picks].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)
