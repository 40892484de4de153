"""Verdicts on hand-made cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import toys

from scse.report.claims import CONTRADICTED, PENDING, SUPPORTED, UNDECIDED, judge
from scse.report.wording import papers_difference
from scse.suites.evidence import Cell
from scse.suites.suite import Claim, Column, Printed, Value

LOW, NEAR, FAR = {0: 10.0, 1: 11.0, 2: 12.0}, {0: 10.2, 1: 10.9, 2: 12.1}, {0: 20.1, 1: 20.9, 2: 22.0}
T8, T4 = Column("T=8", depth=8), Column("T=4", depth=4)
LATENCY = Column("latency", "profile", "latency_ms", depth=8)


def cells(column=T8, seeds=(0, 1, 2), wanted=True, **values):
    """{'left': …, 'right': …} in column T=8; names that end in '_4' are of column T=4."""
    found = {}
    arm = replace(toys.SCSE, seeds=seeds)
    for name, numbers in values.items():
        where, _, depth = name.partition("_")
        at = T4 if depth else column
        found[where, at.header] = Cell(arm, at, None, numbers, wanted)
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
        (LOW, LOW, {}, UNDECIDED),
        (LOW, FAR, {"by": 9.0}, SUPPORTED),
        (LOW, FAR, {"by": 10.0}, UNDECIDED),
        (LOW, FAR, {"by": 11.0}, CONTRADICTED),
        (FAR, LOW, {"by": 9.0, "lower": False}, SUPPORTED),
        (FAR, LOW, {"by": 11.0, "lower": False}, CONTRADICTED),
        (LOW, {}, {}, PENDING),
        (LOW, {}, {"margin": 0.1}, PENDING),
        (LOW, {0: 20.0}, {}, PENDING),
        (LOW, {3: 20.0, 4: 21.0}, {}, PENDING),
        (LOW, {0: 10.2, 1: 10.9}, {}, PENDING),
        (LOW, {0: math.inf, 1: 20.0, 2: 21.0}, {}, UNDECIDED),
    ],
)
def test_one_comparison(left, right, changes, verdict):
    assert judge(claim(**changes), cells(left=left, right=right)).verdict == verdict


@pytest.mark.parametrize(
    ("right", "changes", "verdict"),
    [
        (LOW, {"margin": 0.001}, SUPPORTED),
        (LOW, {"within": 0.0}, SUPPORTED),
        (NEAR, {"margin": 0.1}, SUPPORTED),
        (NEAR, {"within": 0.5}, SUPPORTED),
        (NEAR, {"margin": 0.01}, UNDECIDED),
        (FAR, {"margin": 0.1}, CONTRADICTED),
        (FAR, {"within": 9.0}, CONTRADICTED),
        (FAR, {"within": 10.0}, UNDECIDED),
    ],
)
def test_equivalence_needs_the_interval_within_the_margin(right, changes, verdict):
    assert judge(claim(**changes), cells(left=LOW, right=right)).verdict == verdict


def test_precision_supports_a_tie_and_noise_does_not():
    """A small difference known exactly is a tie; an interval that merely includes zero is not."""
    small = {seed: value + 0.02 + 0.001 * seed for seed, value in LOW.items()}
    noisy = {0: 5.0, 1: 11.0, 2: 17.0}
    assert judge(claim(margin=0.005), cells(left=LOW, right=small)).verdict == SUPPORTED
    assert judge(claim(margin=0.005), cells(left=LOW, right=noisy)).verdict == UNDECIDED


@pytest.mark.parametrize(
    ("left", "right", "column", "changes", "verdict"),
    [
        (10.0, 10.1, T8, {}, SUPPORTED),
        (10.1, 10.0, T8, {}, CONTRADICTED),
        (10.0, 10.0, T8, {}, CONTRADICTED),
        (10.0, 10.0, T8, {"within": 0.0}, SUPPORTED),
        (10.0, 10.1, LATENCY, {}, UNDECIDED),
        (10.0, 10.4, LATENCY, {}, SUPPORTED),
        (10.4, 10.0, LATENCY, {}, CONTRADICTED),
        (10.4, 10.0, LATENCY, {"margin": 0.1}, SUPPORTED),
        (10.4, 10.0, LATENCY, {"margin": 0.05}, UNDECIDED),
        (12.0, 10.0, LATENCY, {"margin": 0.1}, CONTRADICTED),
    ],
)
def test_one_model_each_exact_numbers_as_they_are_and_times_with_a_margin(left, right, column, changes, verdict):
    found = cells(column, (0,), left={0: left}, right={0: right})
    about = Claim("text", "left", ("right",), (column.header,), of_models=True, **changes)
    assert judge(about, found).verdict == verdict


def test_one_seed_decides_nothing_about_methods():
    judged = judge(claim(), cells(T8, (0,), left={0: 10.0}, right={0: 20.0}))
    assert (judged.verdict, judged.decisive.reason) == (UNDECIDED, "one seed in common")
    about_models = replace(claim(), of_models=True)
    assert judge(about_models, cells(left={0: 10.0}, right={0: 20.0})).verdict == PENDING, "three were asked for"


def test_a_number_as_the_other_side():
    assert judge(Claim("above 5", "left", (), ("T=8",), False, values=(5.0,)), cells(left=LOW)).verdict == SUPPORTED
    assert judge(Claim("below 5", "left", (), ("T=8",), values=(5.0,)), cells(left=LOW)).verdict == CONTRADICTED
    near = Claim("near 11", "left", (), ("T=8",), values=(11.0,), within=3.0)
    judged = judge(near, cells(left=LOW))
    assert (judged.verdict, judged.decisive.sides) == (SUPPORTED, "SCSE − 11")
    assert judge(near, cells(left={})).verdict == PENDING
    assert judge(near, cells(left={0: 11.0, 1: 11.0})).verdict == SUPPORTED


def test_most_is_more_than_half():
    sides = cells(a=LOW, b=LOW, c=FAR, near=NEAR)
    assert judge(Claim("most", ("a", "b", "c"), ("near",), ("T=8",), within=0.5, most=True), sides).verdict == SUPPORTED
    assert judge(Claim("most", ("a", "c"), ("near",), ("T=8",), within=0.5, most=True), sides).verdict == CONTRADICTED
    assert judge(Claim("all", ("a", "b", "c"), ("near",), ("T=8",), within=0.5), sides).verdict == CONTRADICTED


def test_any_is_one_of_them():
    sides = cells(a=LOW, b=FAR, near=NEAR, none={})
    near = Claim("any", ("a", "b"), ("near",), ("T=8",), within=0.5, any=True)
    assert judge(near, sides).verdict == SUPPORTED
    assert judge(replace(near, left=("b",)), sides).verdict == CONTRADICTED
    assert judge(replace(near, left=("b", "none")), sides).verdict == PENDING


@pytest.mark.parametrize(
    ("left", "right", "lower", "verdict"),
    [
        (LOW, FAR, True, SUPPORTED),
        (FAR, LOW, True, CONTRADICTED),
        (FAR, LOW, False, SUPPORTED),
        (LOW, FAR, False, CONTRADICTED),
        (LOW, LOW, True, SUPPORTED),
    ],
)
def test_no_worse_may_be_better_by_any_amount(left, right, lower, verdict):
    for slack in ({"within": 0.5}, {"margin": 0.02}):
        made = Claim("no worse", "left", ("right",), ("T=8",), lower=lower, no_worse=True, **slack)
        assert judge(made, cells(left=left, right=right)).verdict == verdict


def test_text_that_is_not_there_will_not_come():
    judged = judge(claim(), cells(wanted=False, left={}, right={}))
    assert (judged.verdict, judged.decisive.reason) == (UNDECIDED, "no text for T=8 at this size")


def test_the_papers_difference_is_the_one_it_prints_whichever_way_round():
    sides = {
        name: replace(cell, paper=Value(mean))
        for (name, cell), mean in zip(cells(left=LOW, right=FAR).items(), (10.0, 20.0), strict=True)
    }
    (plain,) = judge(claim(), sides).comparisons
    assert (plain.printed, plain.of_means) == (None, -10.0)
    printed = Printed(9.9, 0.5, (9.0, 10.5), 1)
    (turned,) = judge(claim(), sides, {(("right", "T=8"), ("left", "T=8")): printed}).comparisons
    assert turned.printed == Printed(-9.9, 0.5, (-10.5, -9.0), 1)
    (straight,) = judge(claim(), sides, {(("left", "T=8"), ("right", "T=8")): printed}).comparisons
    assert straight.printed == printed
    assert papers_difference(turned.printed, -10.0, 1) == "−9.9 ± 0.5 [−10.5, −9.0]"
    assert papers_difference(None, -10.0, 1) == "(−10.0)"


def test_the_statement_says_its_margin_and_what_cannot_fail():
    assert claim(margin=0.005).statement == "text (within 0.5 %)"
    assert claim(margin=0.1, by_construction="it is 0").statement == "text (within 10 %; by construction: it is 0)"
    assert claim().statement == "text"


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
    deeper = Claim("rises", "left", ("left",), ("T=8",), lower=False, against=("T=4",))
    judged = judge(deeper, cells(left=FAR, left_4=LOW))
    assert judged.verdict == SUPPORTED
    assert judged.decisive.sides == "SCSE, T=8 − SCSE, T=4"


def test_each_subsequent_depth_is_held_against_the_one_before():
    rising = Claim("rises", "left", ("left",), ("T=8", "T=16"), lower=False, against=("T=4", "T=8"))
    pairs = [(left[1], right[1]) for left, right in rising.comparisons()]
    assert pairs == [("T=8", "T=4"), ("T=16", "T=8")]
