"""Any records beside each other: a row for each way of training, a column for each evaluation. No torch here.

Rows are told apart by the settings in which they differ, the seed aside. A column holds evaluations of the same
tokens only: another text, or the same text cut by another tokenizer, makes another column.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scse.config.use import RULE
from scse.files import content_hash
from scse.records import Record
from scse.records.statistics import Summary, at_equal_compute, summarise

Settings = dict[str, Any]
# In this order where they differ; all others follow by name.
_FIRST = ("family", "corpus", "tokenizer", "steps", "trained_steps")
_SHORT = 6
MEAN_DEPTH = "mean_depth"


@dataclass(frozen=True)
class Evaluation:
    """What a column is of. `data` is the hash of the tokens, `tokenizer` the name of what made them."""

    task: str
    dataset: str
    split: str
    limit: int | None
    depth: int | None
    adaptive: str
    tag: str
    settings: str
    data: str
    tokenizer: str = field(compare=False)

    @property
    def order(self) -> tuple[Any, ...]:
        depths = (self.depth is None, self.depth or 0, [_sortable(word) for word in self.adaptive.split()])
        return (self.task, self.dataset, self.split, self.data, self.limit or 0, self.tag, self.settings, *depths)


@dataclass
class Row:
    """The runs of one way of training: numbers by evaluation and seed. `seeds` are all that are known of.

    `loops` are the mean depths at which numbers of adaptive depth were had, by evaluation and seed. `metrics` are all
    that their records have.
    """

    settings: Settings
    seeds: set[int] = field(default_factory=set)
    values: dict[Evaluation, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    loops: dict[Evaluation, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    metrics: set[str] = field(default_factory=set)

    def summary(self, evaluation: Evaluation) -> Summary | None:
        found = self.values.get(evaluation)
        return summarise(dict(sorted(found.items()))) if found else None

    def missing(self, evaluation: Evaluation) -> list[int]:
        return sorted(self.seeds - self.values.get(evaluation, {}).keys())

    def realised(self, evaluation: Evaluation) -> float | None:
        """The mean depth behind an adaptive number, over its seeds."""
        found = self.loops.get(evaluation)
        return sum(found.values()) / len(found) if found else None


@dataclass(frozen=True)
class Comparison:
    """`differing` names the settings that tell rows apart, `shared` holds the others. `aside` are rows that were
    evaluated, but not by the metric: a problem's runs have an accuracy and no perplexity, say.
    """

    rows: list[Row]
    columns: list[Evaluation]
    differing: list[str]
    shared: Settings
    aside: list[Row]

    def telling(self) -> list[str]:
        """The first of the differing settings that tell all rows apart; the others follow from them."""
        names: list[str] = []
        for name in self.differing:
            if self._kinds([*names, name]) > self._kinds(names):
                names.append(name)
        return names

    def _kinds(self, names: Sequence[str]) -> int:
        return len({content_hash({name: row.settings.get(name) for name in names}) for row in self.rows})

    def at_other_depths(self) -> list[Evaluation]:
        """Adaptive columns whose numbers were not had at the same compute."""
        realised = {column: [row.realised(column) for row in self.rows] for column in self.columns}
        return [c for c, found in realised.items() if not at_equal_compute(d for d in found if d is not None)]

    def headers(self) -> dict[Evaluation, str]:
        """A short name for each column that says what it does not share with all of them."""
        several = {name: len({getattr(c, name) for c in self.columns}) > 1 for name in ("task", "split", "limit")}
        texts = len({c.dataset for c in self.columns}) > 1
        names = {}
        for column in self.columns:
            parts = [_depth(column)]
            parts += [column.task] if several["task"] else []
            parts += [column.dataset] if texts else []
            parts += [column.split] if several["split"] and column.split else []
            parts += [_windows(column.limit)] if several["limit"] else []
            parts += [part for part in (column.tag, column.settings) if part]
            if self._same_but_tokens(column):
                parts += [f"{column.tokenizer} {column.data[:_SHORT]}"]
            names[column] = " ".join(parts)
        return names

    def tokens_differ(self) -> bool:
        return any(self._same_but_tokens(column) for column in self.columns)

    def _same_but_tokens(self, column: Evaluation) -> bool:
        """Whether another column is the same evaluation by name, of other tokens."""
        same = ("task", "dataset", "split", "limit", "depth", "adaptive", "tag", "settings")
        return any(
            other.data != column.data and all(getattr(other, name) == getattr(column, name) for name in same)
            for other in self.columns
        )


def _depth(column: Evaluation) -> str:
    return column.adaptive or ("" if column.depth is None else f"T={column.depth}") or column.task


def _windows(limit: int | None) -> str:
    return "whole" if limit is None else f"first {limit}"


def compare(
    records: Iterable[Record], metric: str, task: str | None = None, others: Iterable[tuple[Settings, int]] = ()
) -> Comparison:
    """Records that have a metric, as rows and columns. `others` are runs (settings, seed) that may have none."""
    rows: dict[str, Row] = {}
    columns: dict[Evaluation, None] = {}
    for record in records:
        row = _row(rows, settings_of(record.identity))
        row.seeds.add(record.seed)
        row.metrics |= record.metrics.keys()
        if metric in record.metrics and task in (None, record.identity["task"]):
            evaluation = evaluation_of(record)
            columns[evaluation] = None
            row.values[evaluation][record.seed] = float(record.metrics[metric])
            if evaluation.adaptive and metric != MEAN_DEPTH and MEAN_DEPTH in record.metrics:
                row.loops[evaluation][record.seed] = float(record.metrics[MEAN_DEPTH])
    for settings, seed in others:
        _row(rows, settings).seeds.add(seed)
    found = [row for row in rows.values() if row.values or not row.metrics]
    aside = [row for row in rows.values() if row.metrics and not row.values]
    differing, shared = _told_apart([row.settings for row in found])
    found.sort(key=lambda row: [_sortable(row.settings.get(name)) for name in differing])
    return Comparison(found, sorted(columns, key=lambda c: c.order), differing, shared, aside)


def _row(rows: dict[str, Row], settings: Settings) -> Row:
    return rows.setdefault(content_hash(settings), Row(settings))


def settings_of(identity: Mapping[str, Any]) -> Settings:
    """How the model of an identity was trained, flat, its seed aside; what is not finished says so."""
    return flat(identity["model"], identity["protocol"], identity["trained_steps"])


def flat(model: Mapping[str, Any], protocol: Mapping[str, Any], trained_steps: int) -> Settings:
    parts = {**model["shape"], **model["options"], "family": model["family"], **protocol}
    if isinstance(parent := parts.get("parent"), Mapping):
        same = parent.get("seed") == "seed"
        own = f"{str(parent.get('config'))[:_SHORT]}@{parent.get('step')}"
        parts["parent"] = own if same else f"{own} seed {parent.get('seed')}"
    if trained_steps != protocol.get("steps"):
        parts["trained_steps"] = trained_steps
    return parts


def evaluation_of(record: Record) -> Evaluation:
    who = record.identity
    return Evaluation(
        task=who["task"],
        dataset=who["dataset"],
        split=who["split"],
        limit=who["limit"],
        depth=record.depth,
        adaptive=_adaptive(who["adaptive"]),
        tag=who["tag"],
        settings=_told(who.get("settings")),
        data=str(record.facts.get("data", "")),
        tokenizer=str(who["protocol"].get("tokenizer", "")),
    )


def _adaptive(how: Mapping[str, Any] | None) -> str:
    """'adaptive 8 offline', with whatever else is not usual."""
    if not how:
        return ""
    usual = {"rule": RULE, "calibrated_on": "validation"}
    rest = {name: value for name, value in how.items() if name not in ("budget", "mode") and usual.get(name) != value}
    words = [how.get("budget"), how.get("mode")]
    return " ".join(["adaptive", *(str(word) for word in words if word is not None), *filter(None, [_told(rest)])])


def _told(settings: object) -> str:
    """{'cache': 'exact'} -> 'cache=exact'; a record may come from anybody, so it may be anything."""
    if isinstance(settings, Mapping):
        return " ".join(f"{name}={value}" for name, value in sorted(settings.items()))
    return str(settings or "")


def _told_apart(rows: Sequence[Settings]) -> tuple[list[str], Settings]:
    """The names whose values differ (one that is absent somewhere differs too), and what all share."""
    names = dict.fromkeys(name for row in rows for name in row)
    differing = {name for name in names if len({content_hash({name: row.get(name)}) for row in rows}) > 1}
    first = [name for name in _FIRST if name in differing]
    shared = {name: rows[0][name] for name in names if name not in differing} if rows else {}
    return [*first, *sorted(differing - set(first))], shared


def _sortable(value: object) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    if isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value)):
        return 0, float(value), ""
    return 1, 0.0, str(value)
