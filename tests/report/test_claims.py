"""Verdicts on hand-made cases."""

from __future__ import annotations

import math

import pytest
import toys

from scse.experiments.suite import Claim, Column
from scse.report.claims import CONTRADICTED, SUPPORTED, UNDECIDED, judge
from scse.report.evidence import Cell

LOW, NEAR, FAR = {0: 10.0, 1: 11.0, 2: 12.0}, {0: 10.2, 1: 10.9, 2: 12.1}, {0: 20.1, 1: 20.9, 2: 22.0}
T8, T4 = Column("T=8", depth=8), Column("T=4", depth=4)


def cells(**values):
    """{'left': …, 'right': …} in column T=8; names that end in '_4' are of column T=4."""
    found = {}
    for name, numbers in values.items():
        arm, _, depth = name.partition("_")
        column = T4 if depth else T8
        found[arm, column.header] = Cell(toys.SCSE, column, None, numbers, True)
    return found


def claim(right=("right",), **changes):
    return Claim("text", "left", right, ("T=8",), **changes)


@pytest.mark.parametrize(
    ("left", "right", "changes", "verdict"),
    [
        (LOW, FAR, {}, SUPPORTED),
        (FAR, LOW, {}, CONTRADICTED),
        (LOW, NEAR, {}, UNDECIDED),
        (FAR, LOW, {"lower": False}, SUPPORTED),
        (LOW, FAR, {"lower": False}, CONTRADICTED),
        (LOW, NEAR, {"tied": True}, SUPPORTED),
        (LOW, LOW, {"tied": True}, SUPPORTED),
        (LOW, FAR, {"tied": True}, CONTRADICTED),
        (LOW, LOW, {}, UNDECIDED),
        (LOW, {}, {}, UNDECIDED),
        (LOW, {}, {"tied": True}, UNDECIDED),
        (LOW, {0: 20.0}, {}, UNDECIDED),
        (LOW, {3: 20.0, 4: 21.0}, {}, UNDECIDED),
        (LOW, {0: math.inf, 1: 20.0, 2: 21.0}, {}, UNDECIDED),
    ],
)
def test_one_comparison(left, right, changes, verdict):
    assert judge(claim(**changes), cells(left=left, right=right)).verdict == verdict


def test_only_common_seeds_count():
    judged = judge(claim(), cells(left=LOW, right={0: 20.1, 1: 20.9, 7: -1000.0}))
    (comparison,) = judged.comparisons
    assert comparison.difference.seeds == (0, 1)
    assert comparison.difference.mean == pytest.approx(-10.0)
    assert comparison.partial, "seed 2 of the right side is missing"


def test_every_comparison_must_support_and_one_may_contradict():
    both = claim(("near", "far"))
    assert judge(both, cells(left=LOW, near=NEAR, far=FAR)).verdict == UNDECIDED
    assert judge(both, cells(left=LOW, near=FAR, far=FAR)).verdict == SUPPORTED
    below = {seed: value - 9 for seed, value in LOW.items()} | {0: 0.9}
    assert judge(both, cells(left=LOW, near=below, far={})).verdict == CONTRADICTED, "whatever else is missing"


def test_the_decisive_comparison_is_the_weakest_support_the_clearest_contradiction_or_what_is_missing():
    further = {seed: value + 50 + 0.1 * seed for seed, value in LOW.items()}
    supported = judge(claim(("further", "far")), cells(left=LOW, further=further, far=FAR))
    assert supported.decisive.right.values == FAR
    contradicted = judge(claim(("further", "far"), lower=False), cells(left=LOW, further=further, far=FAR))
    assert contradicted.decisive.right.values == further
    open_still = judge(claim(("near", "none")), cells(left=LOW, near=NEAR, none={}))
    assert open_still.decisive.reason == "no runs of SCSE"


def test_a_claim_over_depth_compares_an_arm_with_itself():
    deeper = Claim("rises", "left", ("left",), ("T=8",), lower=False, against="T=4")
    judged = judge(deeper, cells(left=FAR, left_4=LOW))
    assert judged.verdict == SUPPORTED
    assert judged.decisive.sides == "SCSE, T=8 − SCSE, T=4"
