"""What the paper says about a suite: its numbers, its differences, its claims. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

# A number of a suite, by (arm, column header).
Place = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """A number of the paper, in the column's unit, with its standard deviation where it is printed."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Printed:
    """A difference that the paper prints, left − right, in the column's unit and with this many digits.

    `half_width` is that of its 95 % t interval, `interval` the paired-bootstrap one; either where the paper has it.
    """

    mean: float
    half_width: float | None = None
    interval: tuple[float, float] | None = None
    digits: int = 1

    def __neg__(self) -> Printed:
        turned = None if self.interval is None else (-self.interval[1], -self.interval[0])
        return replace(self, mean=-self.mean, interval=turned)


@dataclass(frozen=True)
class Claim:
    """The paper's statement `text`: each arm of `left` is below each of `right` (above, if not `lower`) in `columns`.

    Arms and columns by name and header. With `against` the right side is read in that column, whatever the left side's:
    one for all columns or one for each. With `values` the right side are these numbers, again one for all or one each.
    With `by` it is below (above) by more than this much in the column's unit.

    With `margin` the claim is instead that the two sides are equivalent: they differ by at most this share of the right
    side; with `within`, by at most this much in the column's unit. With `no_worse` too, only a difference to the wrong
    side counts against it. `most` asks for more than half of the comparisons rather than for all, `any` for one of
    them. `of_models`: it is a statement about the one model that each arm has, not about methods, and
    one seed decides. `by_construction` says why the statement cannot fail, where it cannot.
    """

    text: str
    left: str | tuple[str, ...]
    right: tuple[str, ...]
    columns: tuple[str, ...]
    lower: bool = True
    against: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    by: float = 0.0
    margin: float | None = None
    within: float | None = None
    no_worse: bool = False
    most: bool = False
    any: bool = False
    of_models: bool = False
    by_construction: str = ""

    @property
    def lefts(self) -> tuple[str, ...]:
        return (self.left,) if isinstance(self.left, str) else self.left

    @property
    def statement(self) -> str:
        """The text with the margin it is judged by, and whether it could have failed."""
        remarks = [] if self.margin is None else [f"within {100 * self.margin:g} %"]
        remarks += [f"by construction: {self.by_construction}"] if self.by_construction else []
        return f"{self.text} ({'; '.join(remarks)})" if remarks else self.text

    def comparisons(self) -> list[tuple[Place, Place | float]]:
        """The cells to compare: each left one with its right one, or with a number."""
        pairs: list[tuple[Place, Place | float]] = []
        for left in self.lefts:
            if self.values:
                pairs += zip(((left, c) for c in self.columns), self._for_each(self.values), strict=True)
            for arm in self.right:
                headers = self._for_each(self.against) if self.against else self.columns
                pairs += [((left, c), (arm, header)) for c, header in zip(self.columns, headers, strict=True)]
        return pairs

    def slack(self, right: float) -> float | None:
        """How much the sides may differ for a claim of equivalence; None for one of order."""
        return self.within if self.margin is None else self.margin * abs(right)

    def _for_each(self, given: tuple[T, ...]) -> tuple[T, ...]:
        return given * len(self.columns) if len(given) == 1 else given
