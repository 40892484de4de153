"""What the records say about a suite: every cell of its table with the paper's value and ours by seed."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scse.precision import EXACT
from scse.records import Record
from scse.records.statistics import Summary, at_equal_compute, summarise
from scse.suites.setting import group_heading
from scse.suites.suite import Arm, Column, Preset, Suite, Value, fits, seeds_of, trained_as, values_of

COMPLETE, PARTIAL, MISSING = "complete", "partial", "missing"

log = logging.getLogger("scse")

Place = tuple[int | None, float | None, str]


class Shelf:
    """Records, sorted so that a cell looks only at those that may fit it.

    Of two records of one number the later counts. A run that was trained in float32 counts before one that was not,
    whichever comes later.
    """

    def __init__(self, records: Iterable[Record], preset: Preset) -> None:
        self.preset = preset
        self._places: dict[Place, list[Record]] = defaultdict(list)
        for record in sorted(records, key=lambda record: record.precision == EXACT):
            who = record.identity
            budget = (who["adaptive"] or {}).get("budget")
            self._places[record.depth, budget, who["model"]["family"]].append(record)

    def values(self, arm: Arm, column: Column) -> dict[int, float]:
        """{seed: number} of a cell, for the seeds the arm asks for and in their order."""
        found = values_of(self._near(arm, column), self.preset, arm, column)
        return {seed: found[seed] for seed in seeds_of(arm, column) if seed in found}

    def realised(self, arm: Arm, column: Column) -> dict[int, float]:
        """{seed: mean depth} at which the numbers of an adaptive cell were had; nothing for other cells."""
        if column.task != "adaptive" or column.metric == "mean_depth":
            return {}
        return self.values(arm, replace(column, metric="mean_depth", unit=1.0))

    def records(self, arm: Arm, column: Column) -> list[Record]:
        """The records behind `values`."""
        near = self._near(arm, column)
        return [record for record in near if record.seed in arm.seeds and fits(record, self.preset, arm, column)]

    def texts(self, arm: Arm, column: Column) -> set[str]:
        """The hashes of the data that the numbers of a cell were had on."""
        latest = {record.seed: str(record.facts.get("data")) for record in self.records(arm, column)}
        return set(latest.values())

    def precisions(self, arm: Arm, column: Column) -> dict[int, str]:
        """{seed: the precision that the run was trained in} of a cell."""
        return {record.seed: record.precision for part in column.parts() for record in self.records(arm, part)}

    def depths(self, arm: Arm, column: Column) -> list[int]:
        """At which depths there is a number like this column's."""
        places = {
            depth
            for depth, budget, family in self._places
            if (budget, family) == (column.budget, arm.family) and depth is not None
        }
        return [depth for depth in sorted(places) if self.values(arm, replace(column, depth=depth))]

    def of_task(self, arm: Arm, task: str) -> list[Record]:
        """All records of a task on an arm's runs, whatever a column would ask for."""
        settings = self.preset.settings(arm)
        return [
            record
            for (_, _, family), near in self._places.items()
            if family == arm.family
            for record in near
            if record.identity["task"] == task and trained_as(record.identity, family, settings)
        ]

    def available(self, arm: Arm, column: Column) -> bool:
        """Whether the preset has the text for a cell."""
        return self.preset.corpus(arm, column) is not None

    def _near(self, arm: Arm, column: Column) -> list[Record]:
        places = ((part.depth, part.budget, arm.family) for part in column.parts())
        return [record for place in places for record in self._places.get(place, [])]


@dataclass(frozen=True)
class Cell:
    """One arm in one column. `wanted` is false where the preset has no text for it.

    `loops` are the mean depths that were realised, by seed, where depth is adaptive.
    """

    arm: Arm
    column: Column
    paper: Value | None
    values: Mapping[int, float]
    wanted: bool
    loops: Mapping[int, float] = field(default_factory=dict)

    @property
    def realised(self) -> float | None:
        """The realised mean depth, over the seeds there are."""
        return sum(self.loops.values()) / len(self.loops) if self.loops else None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are asked for."""
        return seeds_of(self.arm, self.column)

    @property
    def ours(self) -> Summary | None:
        return summarise(dict(self.values)) if self.values else None

    @property
    def drawable(self) -> bool:
        """Whether there is a number that a picture can show."""
        return bool(self.values) and all(map(math.isfinite, self.values.values()))

    @property
    def missing(self) -> tuple[int, ...]:
        """The seeds that are asked for and not there."""
        asked = self.wanted and not self.arm.kept
        return tuple(seed for seed in self.seeds if seed not in self.values) if asked else ()

    @property
    def state(self) -> str:
        if not self.missing:
            return COMPLETE
        return PARTIAL if self.values else MISSING


@dataclass(frozen=True)
class Evidence:
    """A suite, and its cells by (arm, column header)."""

    suite: Suite
    shelf: Shelf
    cells: Mapping[tuple[str, str], Cell]

    @property
    def preset(self) -> Preset:
        return self.shelf.preset

    @property
    def state(self) -> str:
        states = {cell.state for cell in self.cells.values() if cell.wanted and not cell.arm.kept}
        return states.pop() if len(states) == 1 else PARTIAL if states else MISSING

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers that are there, and numbers that are asked for: one per cell and seed."""
        wanted = [cell for cell in self.cells.values() if cell.wanted and not cell.arm.kept]
        return sum(len(cell.values) for cell in wanted), sum(len(cell.seeds) for cell in wanted)

    @property
    def unavailable(self) -> list[str]:
        """Columns for which the preset has no text."""
        suite = self.suite
        return [c.header for c in suite.columns if not any(self.shelf.available(arm, c) for arm in suite.arms)]

    def groups(self) -> dict[str, list[Arm]]:
        """Arms under their headings, in the order of the suite."""
        found: dict[str, list[Arm]] = {}
        for arm in self.suite.arms:
            found.setdefault(arm.group, []).append(arm)
        return found

    def heading(self, group: str) -> str:
        """A heading of the paper's table; where it names a size that these runs do not have, with theirs."""
        return group_heading(self.suite, self.preset, group)

    def comparisons(self) -> dict[str, list[Arm]]:
        """Arms that belong in one picture, those of one protocol, under a title that tells the pictures apart."""
        protocols = {arm.protocol: self.peers(arm) for arm in self.suite.arms}
        if len(protocols) == 1:
            return {"": list(self.suite.arms)}
        groups = {name: {arm.group for arm in arms} for name, arms in protocols.items()}
        shared = [group for found in groups.values() for group in found]
        titled = all(len(found) == 1 for found in groups.values()) and len(shared) == len(set(shared))
        return {(self.heading(arms[0].group) if titled else name): arms for name, arms in protocols.items()}

    def peers(self, arm: Arm) -> list[Arm]:
        """The arms a number of this arm can be held against: those of its protocol."""
        return [other for other in self.suite.arms if other.protocol == arm.protocol]


def realised_depths(cells: Iterable[Cell]) -> list[float]:
    """The realised mean depths of those that are adaptive."""
    return [cell.realised for cell in cells if cell.realised is not None]


def at_equal_depth(cells: Iterable[Cell]) -> bool:
    """Whether cells can be ranked: adaptive ones were had at about the same compute."""
    return at_equal_compute(realised_depths(cells))


def gather(suite: Suite, shelf: Shelf) -> Evidence:
    """The evidence for a suite; arms that are only kept are left out where there is nothing of them."""
    shown = [arm for arm in suite.arms if not arm.kept or any(shelf.values(arm, column) for column in suite.columns)]
    suite = replace(suite, arms=tuple(shown))
    cells = {}
    for arm in suite.arms:
        for column in suite.columns:
            values = shelf.values(arm, column)
            if len(values) > 1 and column.since is None and len(shelf.texts(arm, column)) > 1:
                log.warning("%s, %s: the seeds were evaluated on different texts of one name", arm.label, column.header)
            paper, loops = _printed(suite, arm, column), shelf.realised(arm, column)
            cells[arm.name, column.header] = Cell(arm, column, paper, values, shelf.available(arm, column), loops)
    return Evidence(suite, shelf, cells)


def _printed(suite: Suite, arm: Arm, column: Column) -> Value | None:
    """The paper's value; a change that it does not print is the difference of the two means that it does."""
    value = suite.paper.get((arm.name, column.header))
    if value is not None or column.since is None:
        return value
    about = (column.task, column.metric, column.data)
    known = {c.depth: c.header for c in suite.columns if c.since is None and (c.task, c.metric, c.data) == about}
    after, before = (suite.paper.get((arm.name, known.get(part.depth, ""))) for part in column.parts())
    return None if after is None or before is None else Value(after.mean - before.mean)
