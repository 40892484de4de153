"""What a suite is: one table or figure of the paper, declared. No torch here.

A suite crosses arms (a family under a protocol, one row of a table) with columns (one number of one evaluation). It
carries the paper's own values and the claims the paper makes about them. How large the runs are is not the suite's
business but a preset's: `paper` trains what the paper trained, `mini` the same comparison for two cores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from scse.config import Shape, assemble, protocol, trained_as
from scse.config.model import DEFAULT_SCALE
from scse.data import DataConfig
from scse.files import safe_name
from scse.problems import PROBLEMS
from scse.records import Record
from scse.suites.statements import Claim, Place, Printed, Value
from scse.tasks import TASKS, Column, Where
from scse.tasks.base import PROFILED_SEQUENCES, random_tokens, short_name

DEFAULT_SEEDS = (0, 1, 2)
EXPANDED_SEEDS = (0, 1, 2, 3, 4)

Settings = Mapping[str, object]

__all__ = ["Arm", "Claim", "Column", "Preset", "Printed", "Suite", "Value", "fits", "trained_as", "values_of"]


@dataclass(frozen=True)
class Arm:
    """One row: a family trained under a protocol with some seeds.

    `name` is unique in the suite, `group` the heading it stands under. `settings` change single options of the run,
    `mini` more of them under the mini preset (an unshared control must match another number of parameters there).
    A `reference` is shown, but takes no part in what is best. `beside`: the paper's table has no such row; its numbers,
    if any, stand elsewhere in the paper. `kept`: nobody is asked to run it, but records of it are shown. `sequences` is
    how many are profiled at a time.
    """

    name: str
    family: str
    protocol: str
    label: str
    group: str = ""
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    settings: Settings = field(default_factory=dict)
    mini: Settings = field(default_factory=dict)
    reference: bool = False
    beside: bool = False
    kept: bool = False
    sequences: int = PROFILED_SEQUENCES


@dataclass(frozen=True)
class Suite:
    """`paper` holds the paper's values by (arm, column header); what it does not report is absent.

    `printed` holds the differences that the paper prints, by the two cells. `label` is the paper's own for the table.
    """

    name: str
    title: str
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...]
    paper: Mapping[Place, Value] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    figure: str = ""
    printed: Mapping[tuple[Place, Place], Printed] = field(default_factory=dict)
    label: str = ""

    table: ClassVar[str] = "scse.suites:SUITES"

    @property
    def asked(self) -> list[Arm]:
        """The arms to run, without those that are only kept."""
        return [arm for arm in self.arms if not arm.kept]

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def column(self, header: str) -> Column:
        return next(column for column in self.columns if column.header == header)


@dataclass(frozen=True)
class Preset:
    """The size at which a suite is run.

    `substitute` gives the settings of a protocol at this size. `data` replaces the corpus of every run where it is
    given, `elsewhere` the other corpora that columns name: one that is not in it is not available at this size (None:
    all are, as they are). `limit` is the number of windows (or passages) an evaluation takes, None for all. `changes`
    has the last word on every run.
    """

    name: str
    substitute: Mapping[str, Settings] = field(default_factory=dict)
    data: str | None = None
    limit: int | None = None
    mini: bool = False
    elsewhere: Mapping[str, str] | None = None
    changes: Settings = field(default_factory=dict)

    def settings(self, arm: Arm) -> dict[str, object]:
        """Everything that names the run of an arm, but for its seed: the flat settings `assemble` takes."""
        chosen = dict(self.substitute.get(arm.protocol) or protocol(arm.protocol))
        chosen |= arm.settings
        if self.mini:
            chosen |= arm.mini
        if self.data is not None and chosen.get("data") not in PROBLEMS:  # a problem has no stand-in
            chosen["data"] = self.data
        return chosen | dict(self.changes)

    def folder(self, arm: Arm) -> str:
        """The folder of an arm's runs, the same for every suite that shares them: readable, and unambiguous."""
        settings = self.settings(arm)
        digest = hashlib.sha256(json.dumps([arm.family, settings], sort_keys=True).encode()).hexdigest()[:6]
        return f"{arm.family}-{settings.get('scale', DEFAULT_SCALE)}-{safe_name(short_name(self._own(arm)))}-{digest}"

    def corpus(self, arm: Arm, column: Column) -> str | None:
        """The corpus an arm's column is evaluated on, None where this preset has none for it."""
        if not column.concerns(arm.family, arm.protocol):
            return None
        if column.data is None:
            return self._own(arm)
        return column.data if self.elsewhere is None else self.elsewhere.get(column.data)

    def split(self, column: Column) -> str:
        """A corpus that stands in for another has none of its special splits."""
        return column.split if column.data is None or self.elsewhere is None else "test"

    def _own(self, arm: Arm) -> str:
        return str(self.settings(arm).get("data", DataConfig.corpus))


def seeds_of(arm: Arm, column: Column) -> tuple[int, ...]:
    """The seeds with which a cell is evaluated."""
    return tuple(seed for seed in arm.seeds if not column.seeds or seed in column.seeds)


def values_of(records: Sequence[Record], preset: Preset, arm: Arm, column: Column) -> dict[int, float]:
    """{seed: number} of one cell, in the column's unit, from the records that fit it."""
    if column.since is not None:
        after, before = (values_of(records, preset, arm, part) for part in column.parts())
        return {seed: after[seed] - before[seed] for seed in after if seed in before}
    asked, settings = evaluation(preset, arm, column), preset.settings(arm)
    return {
        record.seed: float(record.metrics[column.metric]) * column.unit
        for record in records
        if asked is not None and _is(record, asked, column.metric, arm.family, settings)
    }


def fits(record: Record, preset: Preset, arm: Arm, column: Column) -> bool:
    """Whether a record is the evaluation of an arm's run that a column asks for."""
    asked = evaluation(preset, arm, column)
    return asked is not None and _is(record, asked, column.metric, arm.family, preset.settings(arm))


def _is(record: Record, asked: Mapping[str, Any], metric: str, family: str, settings: Settings) -> bool:
    return (
        all(record.identity.get(name) == value for name, value in {"settings": None, **asked}.items())
        and metric in record.metrics
        and trained_as(record.identity, family, settings)
    )


def evaluation(preset: Preset, arm: Arm, column: Column) -> dict[str, Any] | None:
    """The part of an identity that says what was evaluated; None where the preset has no text for it."""
    corpus = preset.corpus(arm, column)
    if corpus is None:
        return None
    shape = _shape(arm.family, tuple(preset.settings(arm).items()))
    random = random_tokens(arm.sequences, shape.context)
    where = Where(short_name(corpus), preset.split(column), preset.limit, random=random)
    return TASKS.find(column.task).asked(where, column)


@lru_cache(maxsize=1024)
def _shape(family: str, settings: tuple[tuple[str, object], ...]) -> Shape:
    """The shape of a run; every column of a row asks for it."""
    return assemble(family, {"precision": "auto", **dict(settings)}).model.shape


def narrowed(suite: Suite, arms: Iterable[Arm], columns: Iterable[Column]) -> Suite:
    """A suite with only some of its arms and columns."""
    return replace(suite, arms=tuple(arms), columns=tuple(columns))
