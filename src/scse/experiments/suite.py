"""What a suite is: one table or figure of the paper, declared. No torch here.

A suite crosses arms (a family under a protocol, one row of a table) with columns (one number of one evaluation). It
carries the paper's own values and the claims the paper makes about them. How large the runs are is not the suite's
business but a preset's: `paper` trains what the paper trained, `mini` the same comparison for two cores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scse.config import SCALES, Shape
from scse.experiments.records import Record
from scse.protocols import protocol

DEFAULT_SEEDS = (0, 1, 2)
EXPANDED_SEEDS = (0, 1, 2, 3, 4)

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Arm:
    """One row: a family trained under a protocol with some seeds.

    `name` is unique in the suite, `group` the heading it stands under. `settings` change single options of the run,
    `mini` more of them under the mini preset (an unshared control must match another number of parameters there).
    A `reference` is shown, but takes no part in what is best.
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


@dataclass(frozen=True)
class Column:
    """One number: a metric of a task at a depth (or a mean budget), printed in units of `unit`.

    `data` names another corpus than the run's own. `lower` says which direction is better; None: neither.
    """

    header: str
    task: str = "perplexity"
    metric: str = "ppl"
    depth: int | None = None
    budget: float | None = None
    data: str | None = None
    unit: float = 1.0
    digits: int = 1
    lower: bool | None = True


@dataclass(frozen=True)
class Value:
    """A number of the paper, in the column's unit, with its standard deviation where it is printed."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Claim:
    """The paper's statement `text`: `left` is below each arm of `right` (above, if not `lower`) in these columns.

    Arms and columns by name and header. With `tied` the claim is instead that no difference is seen.
    """

    text: str
    left: str
    right: tuple[str, ...]
    columns: tuple[str, ...]
    lower: bool = True
    tied: bool = False


@dataclass(frozen=True)
class Suite:
    """`paper` holds the paper's values by (arm, column header); what it does not report is absent."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...]
    paper: Mapping[tuple[str, str], Value] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    figure: str = ""

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def column(self, header: str) -> Column:
        return next(column for column in self.columns if column.header == header)


@dataclass(frozen=True)
class Preset:
    """The size at which a suite is run.

    `substitute` gives the settings of a protocol at this size. `data` replaces every corpus where it is given,
    `limit` is the number of windows (or passages) an evaluation takes, None for all.
    """

    name: str
    substitute: Mapping[str, Settings] = field(default_factory=dict)
    data: str | None = None
    limit: int | None = None
    mini: bool = False

    def settings(self, arm: Arm) -> dict[str, object]:
        """Everything that names the run of an arm, but for its seed: the flat settings `assemble` takes."""
        chosen = dict(self.substitute.get(arm.protocol) or protocol(arm.protocol))
        chosen |= arm.settings
        if self.mini:
            chosen |= arm.mini
        if self.data is not None:
            chosen["data"] = self.data
        return chosen

    def folder(self, arm: Arm) -> str:
        """The folder of an arm's runs, the same for every suite that shares them: readable, and unambiguous."""
        settings = self.settings(arm)
        digest = hashlib.sha256(json.dumps([arm.family, settings], sort_keys=True).encode()).hexdigest()[:6]
        corpus = str(settings.get("data", "stdlib")).rstrip("/").rpartition("/")[2]
        return f"{arm.family}-{settings.get('scale', 'mini')}-{corpus}-{digest}"

    def corpus(self, arm: Arm, column: Column) -> str:
        """The corpus an arm's column is evaluated on."""
        own = str(self.settings(arm).get("data", "stdlib"))
        return own if column.data is None or (self.data is not None and column.task == "perplexity") else column.data


def values_of(records: Iterable[Record], preset: Preset, arm: Arm, column: Column) -> dict[int, float]:
    """{seed: number} of one cell, in the column's unit, from the records that fit it."""
    found = {}
    for record in records:
        if fits(record, preset, arm, column):
            found[record.seed] = float(record.metrics[column.metric]) * column.unit
    return found


def fits(record: Record, preset: Preset, arm: Arm, column: Column) -> bool:
    """Whether a record is the evaluation of an arm's run that a column asks for."""
    who = record.identity
    adaptive = who["adaptive"] or {}
    return (
        who["task"] == column.task
        and who["dataset"] == preset.corpus(arm, column)
        and who["limit"] == preset.limit
        and who["depth"] == column.depth
        and adaptive.get("budget") == column.budget
        and column.metric in record.metrics
        and trained_as(who, arm.family, preset.settings(arm))
    )


def trained_as(who: Mapping[str, Any], family: str, settings: Settings) -> bool:
    """Whether the run behind an identity is finished and has these settings, wherever each of them is kept."""
    model, training = who["model"], who["protocol"]
    if model["family"] != family or who["trained_steps"] != training["steps"]:
        return False
    wanted = dict(settings)
    shape = SCALES[str(wanted.pop("scale", "mini"))]
    training = {**training, "data": training["corpus"]}
    kept = {**model["options"], **model["shape"], **training}
    same_shape = all(
        model["shape"][name] == wanted.get(name, getattr(shape, name)) for name in Shape.__dataclass_fields__
    )
    return same_shape and all(kept.get(name) == value for name, value in wanted.items())
