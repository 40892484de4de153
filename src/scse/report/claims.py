"""Whether the records support a claim of the paper, judged from paired 95 % t intervals over common seeds.

A claim compares one arm with others, or with itself at another depth. It is supported if every interval lies on the
claimed side of zero, contradicted if one lies wholly on the other side; anything else, runs that are missing above all,
cannot tell. A claim of a tie is supported if every interval includes zero, and contradicted if one does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scse.experiments.statistics import PairedDifference, paired_difference
from scse.experiments.suite import Claim
from scse.report.evidence import Cell, Evidence, at_equal_depth
from scse.report.wording import loops

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "can't tell yet"

Cells = Mapping[tuple[str, str], Cell]


@dataclass(frozen=True)
class Comparison:
    """left − right, in one column or over two. Without a `difference` the `reason` says why there is none."""

    left: Cell
    right: Cell
    difference: PairedDifference | None
    reason: str
    verdict: str

    @property
    def paper(self) -> float | None:
        """The paper's own difference of means."""
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
        return (max if self.verdict == CONTRADICTED else min)(sharing, key=_clearance)


def judge_all(evidence: Evidence) -> list[Judgement]:
    return [judge(claim, evidence.cells) for claim in evidence.suite.claims]


def judge(claim: Claim, cells: Cells) -> Judgement:
    comparisons = tuple(compare(claim, cells[left], cells[right]) for left, right in claim.comparisons())
    verdicts = {comparison.verdict for comparison in comparisons}
    if CONTRADICTED in verdicts:
        return Judgement(claim, CONTRADICTED, comparisons)
    return Judgement(claim, SUPPORTED if verdicts == {SUPPORTED} else UNDECIDED, comparisons)


def compare(claim: Claim, left: Cell, right: Cell) -> Comparison:
    common = [seed for seed in left.values if seed in right.values]
    ours = {seed: left.values[seed] for seed in common}
    theirs = {seed: right.values[seed] for seed in common}
    reason = obstacle(left, right, common)
    if reason:
        return Comparison(left, right, None, reason, UNDECIDED)
    difference = paired_difference(ours, theirs)
    return Comparison(left, right, difference, "", verdict_on(claim, difference))


def obstacle(left: Cell, right: Cell, common: list[int]) -> str:
    """Why there can be no interval, or nothing."""
    for cell in (left, right):
        if not cell.values:
            return f"no runs of {cell.arm.label}"
    if not common:
        return "no seed in common"
    if len(common) == 1:
        return "one seed in common"
    if not all(math.isfinite(cell.values[seed]) for cell in (left, right) for seed in common):
        return "a value is not finite"
    if left.realised is not None and right.realised is not None and not at_equal_depth((left, right)):
        return f"not at the same depth: {loops(left.realised)} against {loops(right.realised)}"
    return ""


def verdict_on(claim: Claim, difference: PairedDifference) -> str:
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    includes_zero = low <= 0 <= high
    if claim.tied:
        return SUPPORTED if includes_zero else CONTRADICTED
    if includes_zero:
        return UNDECIDED
    return SUPPORTED if (high < 0) == claim.lower else CONTRADICTED


def _clearance(comparison: Comparison) -> float:
    found = comparison.difference
    return -1.0 if found is None else abs(abs(found.mean) - found.half_width)
