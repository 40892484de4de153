"""The tables of a suite, as text in cells: the same tables become HTML, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scse.records.statistics import DEPTH_TOLERANCE
from scse.report.claims import TIMED, Comparison, Judgement
from scse.report.wording import (
    ABSENT,
    bootstrap,
    interval,
    loops,
    measured,
    missing_seeds,
    number,
    papers_difference,
    percent,
    printed,
)
from scse.suites.evidence import MISSING, PARTIAL, Cell, Evidence, at_equal_depth, realised_depths
from scse.suites.suite import Arm, Column

RATIO_DIGITS = 3
SIDES = ("paper", "ours")
MANY_COLUMNS = 6
SHORT = 12


@dataclass(frozen=True)
class Head:
    """A column's header; `parts` are the headers below it."""

    text: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One number as text. `note` says what is missing, `state` marks entries that are not whole."""

    text: str
    bold: bool = False
    note: str = ""
    state: str = ""


@dataclass(frozen=True)
class Row:
    label: str
    entries: tuple[Entry, ...]
    note: str = ""
    reference: bool = False


@dataclass(frozen=True)
class Section:
    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    caption: str
    stub: str
    heads: tuple[Head, ...]
    sections: tuple[Section, ...]

    @property
    def width(self) -> int:
        """Columns of entries, without the label's."""
        return sum(max(1, len(head.parts)) for head in self.heads)

    @property
    def length(self) -> int:
        """Rows, without the headings."""
        return sum(len(section.rows) for section in self.sections)

    @property
    def short_labels(self) -> bool:
        """Whether every label is a word or two."""
        return all(len(row.label) <= SHORT for section in self.sections for row in section.rows)


def turned(table: Table) -> Table:
    """The table with its columns as rows, where it has many columns, fewer rows and one section; else as it is."""
    if len(table.sections) != 1 or not table.length < len(table.heads) > MANY_COLUMNS:
        return table
    (section,) = table.sections
    parts = table.heads[0].parts
    step = max(1, len(parts))
    heads = tuple(Head(_as_head(row), parts) for row in section.rows)
    rows = tuple(
        Row(head.text, tuple(entry for row in section.rows for entry in row.entries[step * place : step * (place + 1)]))
        for place, head in enumerate(table.heads)
    )
    return Table(table.caption, "Number", heads, (Section(section.heading, rows),))


def _as_head(row: Row) -> str:
    remarks = ", ".join(filter(None, ("reference" if row.reference else "", row.note)))
    return f"{row.label} ({remarks})" if remarks else row.label


RowOf = Callable[[Arm], Row]


def results(evidence: Evidence) -> Table:
    """The paper's table with ours beside it, or ours alone; the best of each protocol in bold."""
    best = Best(evidence)
    sides = (_paper_entry, _our_entry) if evidence.suite.paper else (_our_entry,)

    def row(arm: Arm) -> Row:
        cells = [evidence.cells[arm.name, column.header] for column in evidence.suite.columns]
        entries = [entry_of(cell, best) for cell in cells for entry_of in sides]
        return _share_note(Row(arm.label, tuple(entries), reference=arm.reference), cells)

    caption = "Ours: mean ± sample standard deviation (number of seeds). Bold: best of its protocol, references apart."
    return Table(" ".join([caption, *_unranked(evidence)]), "Method", _pairs(evidence), _sections(evidence, row))


def ratios(evidence: Evidence) -> Table:
    """Every mean divided by that of the first arm of the same protocol, over the seeds that both have."""

    def row(arm: Arm) -> Row:
        base = evidence.peers(arm)[0]
        entries = []
        for column in evidence.suite.columns:
            cell, origin = (evidence.cells[name, column.header] for name in (arm.name, base.name))
            entries += [Entry(_paper_ratio(cell, origin))] if evidence.suite.paper else []
            entries.append(Entry(_our_ratio(cell, origin), state=_state(cell)))
        return Row(arm.label, tuple(entries), reference=arm.reference)

    bases = list(dict.fromkeys(evidence.peers(arm)[0].label for arm in evidence.suite.arms))
    caption = f"Means divided by those of {' or '.join(bases)}" + (", by protocol." if len(bases) > 1 else ".")
    return Table(caption, "Method", _pairs(evidence), _sections(evidence, row))


def differences(judgements: Sequence[Judgement]) -> Table:
    """The paired differences behind the claims, left minus right."""
    known = any(_papers(comparison) != ABSENT for judgement in judgements for comparison in judgement.comparisons)
    sections = []
    for position, judgement in enumerate(judgements, start=1):
        rows = tuple(_difference_row(comparison, known) for comparison in judgement.comparisons)
        sections.append(Section(f"Claim {position}: {judgement.verdict}", rows))
    caption = (
        "Differences, left minus right, over common seeds: mean ± 95 % t half-width, bootstrap interval. Between two "
        f"models, numbers are exact and times give or take {percent(TIMED)}."
    )
    if known:
        caption += " Paper: as it prints the difference; in brackets the difference of its means, where it prints none."
    heads = ("Column", *(("Paper",) if known else ()), "Ours ± 95 % t", "Bootstrap 95 %", "Seeds")
    return Table(caption, "Comparison", tuple(map(Head, heads)), tuple(sections))


class Best:
    """Which cells are printed in bold: the best mean of a protocol as it is printed, so that visible ties share it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def paper(self, cell: Cell) -> bool:
        means = {other.arm.name: other.paper.mean for other in self._rivals(cell) if other.paper is not None}
        return self._leads(cell, means)

    def ours(self, cell: Cell) -> bool:
        rivals = [other for other in self._rivals(cell) if other.ours is not None]
        if not at_equal_depth(rivals):
            return False
        return self._leads(cell, {other.arm.name: other.ours.mean for other in rivals if other.ours is not None})

    def _rivals(self, cell: Cell) -> Iterable[Cell]:
        arms = (arm for arm in self.evidence.peers(cell.arm) if not arm.reference)
        return (self.evidence.cells[arm.name, cell.column.header] for arm in arms)

    @staticmethod
    def _leads(cell: Cell, means: dict[str, float]) -> bool:
        if cell.column.lower is None or cell.arm.name not in means or len(means) < 2:
            return False
        # Not a number is never best: it compares false with everything.
        known = [mean for mean in means.values() if mean == mean]
        leader = (min if cell.column.lower else max)(known, default=None)
        digits = cell.column.digits
        return leader is not None and number(means[cell.arm.name], digits) == number(leader, digits)


def _pairs(evidence: Evidence) -> tuple[Head, ...]:
    return tuple(Head(column.header, SIDES if evidence.suite.paper else ()) for column in evidence.suite.columns)


def _sections(evidence: Evidence, row_of: RowOf) -> tuple[Section, ...]:
    return tuple(
        Section(evidence.heading(group), tuple(map(row_of, arms))) for group, arms in evidence.groups().items()
    )


def _paper_entry(cell: Cell, best: Best) -> Entry:
    return Entry(printed(cell.paper, cell.column.digits), bold=best.paper(cell))


def _our_entry(cell: Cell, best: Best) -> Entry:
    text = measured(cell.ours, cell.column.digits, len(cell.seeds))
    if cell.realised is not None:
        text = f"{text}, {loops(cell.realised)}"
    return Entry(text, bold=best.ours(cell), note=missing_seeds(cell.missing), state=_state(cell))


def _unranked(evidence: Evidence) -> list[str]:
    """Which columns have no best, because their numbers were not had at the same compute."""
    found = []
    for column in evidence.suite.columns:
        groups = {arm.protocol: evidence.peers(arm) for arm in evidence.suite.arms}
        for arms in groups.values():
            cells = [evidence.cells[arm.name, column.header] for arm in arms if not arm.reference]
            if not at_equal_depth(cells):
                depths = realised_depths(cells)
                found.append(f"{column.header} ({number(min(depths), 1)} to {loops(max(depths))})")
    if not found:
        return []
    share = f"{100 * DEPTH_TOLERANCE:.0f} %"
    return [f"Not ranked, because realised mean depths differ by more than {share}: {', '.join(found)}."]


def _state(cell: Cell) -> str:
    return cell.state if cell.state in (PARTIAL, MISSING) else ""


def _share_note(row: Row, cells: Sequence[Cell]) -> Row:
    """A row whose cells all lack the same seeds, of those they are asked for, says so once."""
    wanted = [cell for cell in cells if cell.wanted]
    lacking = sorted({seed for cell in wanted for seed in cell.missing})
    if any(cell.missing != tuple(seed for seed in cell.seeds if seed in lacking) for cell in wanted):
        return row
    quiet = tuple(replace(entry, note="") for entry in row.entries)
    return replace(row, entries=quiet, note=missing_seeds(lacking))


def _paper_ratio(cell: Cell, base: Cell) -> str:
    if cell.paper is None or base.paper is None or not base.paper.mean:
        return ABSENT
    return number(cell.paper.mean / base.paper.mean, RATIO_DIGITS)


def _our_ratio(cell: Cell, base: Cell) -> str:
    common = [seed for seed in cell.values if seed in base.values]
    below = sum(base.values[seed] for seed in common)
    if not below or not at_equal_depth((cell, base)):
        return ABSENT
    return f"{number(sum(cell.values[seed] for seed in common) / below, RATIO_DIGITS)} ({len(common)})"


def _papers(comparison: Comparison) -> str:
    return papers_difference(comparison.printed, comparison.of_means, comparison.left.column.digits)


def _difference_row(comparison: Comparison, with_paper: bool) -> Row:
    column = comparison.left.column
    digits = difference_digits(column)
    found = comparison.difference
    begin = (Entry(column.header), *((Entry(_papers(comparison)),) if with_paper else ()))
    if found is None:
        gap = Entry(ABSENT, note=comparison.reason, state=MISSING)
        return Row(comparison.sides, (*begin, gap, Entry(ABSENT), Entry(ABSENT)))
    state = PARTIAL if comparison.partial else ""
    ours = (interval(found, digits), bootstrap(found, digits), ", ".join(map(str, found.seeds)))
    return Row(comparison.sides, (*begin, *(Entry(text, state=state) for text in ours)))


def difference_digits(column: Column) -> int:
    """One digit more than values that are printed with few: differences are smaller."""
    return column.digits + (column.digits < 2)
