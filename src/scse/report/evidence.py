"""What the records say about a suite: every cell of its table with the paper's value and ours by seed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scse.experiments.records import Record
from scse.experiments.setting import group_heading
from scse.experiments.statistics import Summary, summarise
from scse.experiments.suite import Arm, Column, Preset, Suite, Value, fits, trained_as, values_of

COMPLETE, PARTIAL, MISSING = "complete", "partial", "missing"

Place = tuple[int | None, float | None, str]


class Shelf:
    """Records, sorted so that a cell looks only at those that may fit it."""

    def __init__(self, records: Iterable[Record], preset: Preset) -> None:
        self.preset = preset
        self._places: dict[Place, list[Record]] = defaultdict(list)
        for record in records:
            who = record.identity
            budget = (who["adaptive"] or {}).get("budget")
            self._places[record.depth, budget, who["model"]["family"]].append(record)

    def values(self, arm: Arm, column: Column) -> dict[int, float]:
        """{seed: number} of a cell, for the seeds the arm asks for and in their order."""
        found = values_of(self._near(arm, column), self.preset, arm, column)
        return {seed: found[seed] for seed in arm.seeds if seed in found}

    def records(self, arm: Arm, column: Column) -> list[Record]:
        """The records behind `values`."""
        near = self._near(arm, column)
        return [record for record in near if record.seed in arm.seeds and fits(record, self.preset, arm, column)]

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
        return self._places.get((column.depth, column.budget, arm.family), [])


@dataclass(frozen=True)
class Cell:
    """One arm in one column. `wanted` is false where the preset has no text for it."""

    arm: Arm
    column: Column
    paper: Value | None
    values: Mapping[int, float]
    wanted: bool

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
        return tuple(seed for seed in self.arm.seeds if seed not in self.values) if self.wanted else ()

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
        states = {cell.state for cell in self.cells.values() if cell.wanted}
        return states.pop() if len(states) == 1 else PARTIAL if states else MISSING

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers that are there, and numbers that are asked for: one per cell and seed."""
        wanted = [cell for cell in self.cells.values() if cell.wanted]
        return sum(len(cell.values) for cell in wanted), sum(len(cell.arm.seeds) for cell in wanted)

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


def gather(suite: Suite, shelf: Shelf) -> Evidence:
    cells = {}
    for arm in suite.arms:
        for column in suite.columns:
            place = arm.name, column.header
            values = shelf.values(arm, column)
            cells[place] = Cell(arm, column, suite.paper.get(place), values, shelf.available(arm, column))
    return Evidence(suite, shelf, cells)
