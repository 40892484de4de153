"""Whether the records support a claim of the paper.

A claim compares arms with each other, with themselves at another depth, or with a number. Methods are compared by the
95 % t interval of the paired difference over common seeds:

    order        supported if the interval lies on the claimed side of zero, contradicted if on the other; of that
                 difference rather than zero, where the claim says by how much
    equivalence  supported if the interval lies within the claim's margin, contradicted if it lies outside

and if neither, we can't tell; not yet, where runs are missing. A claim about single models is judged from one seed: an
exact number stands for itself, a time for itself give or take `TIMED`. All comparisons must support a claim, and one
contradicts it; where it speaks of most, more than half and half of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scse.records.statistics import PairedDifference, paired_difference
from scse.report.wording import loops
from scse.suites.evidence import Cell, Evidence, at_equal_depth
from scse.suites.statements import Place, Printed
from scse.suites.suite import Claim, Value, seeds_of

SUPPORTED, CONTRADICTED, UNDECIDED, PENDING = "supported", "contradicted", "can't tell", "can't tell yet"
# Two times of one machine that are closer than this, as a share of the larger, are not told apart.
TIMED = 0.03

Cells = Mapping[Place, Cell]
Differences = Mapping[tuple[Place, Place], Printed]


@dataclass(frozen=True)
class Comparison:
    """left − right, in one column or over two. Without a `difference` the `reason` says why there is none.

    `printed` is the paper's own difference, if it prints one. `slack` is the margin of a claim of equivalence, `bound`
    the difference that a claim of order must pass.
    """

    left: Cell
    right: Cell
    difference: PairedDifference | None
    verdict: str
    reason: str = ""
    printed: Printed | None = None
    slack: float | None = None
    bound: float = 0.0

    @property
    def of_means(self) -> float | None:
        """The difference of the paper's means."""
        left, right = self.left.paper, self.right.paper
        return None if left is None or right is None else left.mean - right.mean

    @property
    def sides(self) -> str:
        """'SCSE − Tuned adapter', or 'SCSE, T=8 − SCSE, T=4' where the columns differ."""
        left, right = self.left.arm.label, self.right.arm.label
        if self.left.column == self.right.column:
            return f"{left} − {right}"
        return f"{left}, {self.left.column.header} − {right}, {self.right.column.header}"

    @property
    def partial(self) -> bool:
        return bool(self.left.missing or self.right.missing)

    @property
    def clearance(self) -> float:
        """How far the interval is from where the verdict would be another; −1 where there is none."""
        if self.difference is None:
            return -1.0
        size, half = abs(self.difference.mean), self.difference.half_width
        if self.slack is None:
            return abs(abs(self.difference.mean - self.bound) - half)
        return abs(self.slack - size - half) if self.verdict == SUPPORTED else abs(size - half - self.slack)


@dataclass(frozen=True)
class Judgement:
    """A claim, what the records say about it, and the comparisons behind that."""

    claim: Claim
    verdict: str
    comparisons: tuple[Comparison, ...]

    @property
    def decisive(self) -> Comparison:
        """The comparison that shows best why the verdict is what it is.

        That is the clearest contradiction, the weakest support, or what is missing.
        """
        sharing = [comparison for comparison in self.comparisons if comparison.verdict == self.verdict]
        return (max if self.verdict == CONTRADICTED else min)(sharing, key=lambda comparison: comparison.clearance)


def judge_all(evidence: Evidence) -> list[Judgement]:
    return [judge(claim, evidence.cells, evidence.suite.printed) for claim in evidence.suite.claims]


def judge(claim: Claim, cells: Cells, printed: Differences | None = None) -> Judgement:
    comparisons = []
    for left, right in claim.comparisons():
        other = cells[right] if isinstance(right, tuple) else constant(cells[left], right)
        found = compare(claim, cells[left], other)
        comparisons.append(
            replace(found, printed=None if isinstance(right, float) else said(printed or {}, left, right))
        )
    return Judgement(claim, together(claim, [comparison.verdict for comparison in comparisons]), tuple(comparisons))


def together(claim: Claim, verdicts: list[str]) -> str:
    """The verdict on a claim from those on its comparisons."""
    for_it, against_it = verdicts.count(SUPPORTED), verdicts.count(CONTRADICTED)
    if claim.any:
        if for_it or against_it == len(verdicts):
            return SUPPORTED if for_it else CONTRADICTED
        return PENDING if PENDING in verdicts else UNDECIDED
    if 2 * against_it >= len(verdicts) if claim.most else against_it:
        return CONTRADICTED
    if 2 * for_it > len(verdicts) if claim.most else for_it == len(verdicts):
        return SUPPORTED
    return PENDING if PENDING in verdicts else UNDECIDED


def constant(cell: Cell, value: float) -> Cell:
    """A number as the other side of a comparison: the same for every seed."""
    arm = replace(cell.arm, label=f"{value:g}", seeds=seeds_of(cell.arm, cell.column))
    return Cell(arm, cell.column, Value(value), dict.fromkeys(arm.seeds, value), cell.wanted)


def said(printed: Differences, left: Place, right: Place) -> Printed | None:
    """What the paper prints for a difference, whichever way round it does."""
    if (left, right) in printed:
        return printed[left, right]
    return -printed[right, left] if (right, left) in printed else None


def compare(claim: Claim, left: Cell, right: Cell) -> Comparison:
    common = [seed for seed in left.values if seed in right.values]
    alone = claim.of_models and len(left.seeds) == len(right.seeds) == 1
    reason = obstacle(left, right, common, 1 if alone else 2)
    if reason:
        return Comparison(left, right, None, PENDING if left.missing or right.missing else UNDECIDED, reason)
    ours = {seed: left.values[seed] for seed in common}
    theirs = {seed: right.values[seed] for seed in common}
    difference = difference_of_models(left, ours, theirs) if alone else paired_difference(ours, theirs)
    slack = claim.slack(sum(theirs.values()) / len(theirs))
    by = claim.by
    if slack is not None and claim.no_worse:  # an order in which the left side is given so much
        by, slack = -slack, None
    bound = -by if claim.lower else by
    verdict = equivalent(difference, slack) if slack is not None else ordered(difference, claim.lower, alone, bound)
    found = Comparison(left, right, difference, verdict, slack=slack, bound=bound)
    return replace(found, verdict=PENDING) if verdict == UNDECIDED and found.partial else found


def difference_of_models(left: Cell, ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedDifference:
    """Of one seed: exact, or give or take what a clock is trusted with."""
    (seed,) = ours
    mean = ours[seed] - theirs[seed]
    doubt = TIMED * max(abs(ours[seed]), abs(theirs[seed])) if left.column.timed else 0.0
    return PairedDifference(mean, doubt, (mean - doubt, mean + doubt), (seed,))


def obstacle(left: Cell, right: Cell, common: list[int], needed: int) -> str:
    """Why there can be no difference, or nothing."""
    for cell in (left, right):
        if not cell.values:
            return f"no runs of {cell.arm.label}" if cell.wanted else f"no text for {cell.column.header} at this size"
    if not common:
        return "no seed in common"
    if len(common) < needed:
        return "one seed in common"
    if not all(math.isfinite(cell.values[seed]) for cell in (left, right) for seed in common):
        return "a value is not finite"
    if left.realised is not None and right.realised is not None and not at_equal_depth((left, right)):
        return f"not at the same depth: {loops(left.realised)} against {loops(right.realised)}"
    return ""


def ordered(difference: PairedDifference, lower: bool, alone: bool, bound: float = 0.0) -> str:
    mean = difference.mean - bound
    low, high = mean - difference.half_width, mean + difference.half_width
    if alone and low == high == 0:
        return CONTRADICTED  # two exact numbers that are equal are not in order
    if low <= 0 <= high:
        return UNDECIDED
    return SUPPORTED if (high < 0) == lower else CONTRADICTED


def equivalent(difference: PairedDifference, slack: float) -> str:
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    if -slack <= low and high <= slack:
        return SUPPORTED
    return CONTRADICTED if high < -slack or low > slack else UNDECIDED
