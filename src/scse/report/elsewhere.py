"""Records that a report has no place for: which runs they are of, and which options of the command would show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from scse.records import Record
from scse.suites.evidence import Shelf, gather
from scse.suites.presets import PRESETS, find_preset, options
from scse.suites.suite import Preset, Suite

SHOWN = 4


@dataclass(frozen=True)
class Size:
    """What decides whether an evaluation is one of a report: training text and steps, and the windows read."""

    corpus: str
    steps: int
    limit: int | None

    def __str__(self) -> str:
        windows = "the whole split" if self.limit is None else f"{self.limit} windows"
        return f"{PurePath(self.corpus).name}, {self.steps} steps, on {windows}"


def sizes(records: Sequence[Record]) -> Counter[Size]:
    """The sizes of the perplexities among some records, most frequent first; other tasks count windows otherwise."""
    found: Counter[Size] = Counter()
    for record in records:
        who, steps = record.identity, record.identity["protocol"].get("steps")
        if who["task"] == "perplexity" and isinstance(steps, int):
            found[Size(str(who["protocol"].get("corpus")), steps, who["limit"])] += 1
    return Counter(dict(found.most_common()))


def unused(suites: Sequence[Suite], preset: Preset, records: Sequence[Record]) -> Counter[Size]:
    """Sizes of which no number is shown."""
    shelf = Shelf(records, preset)
    used = [
        record
        for suite in suites
        for arm in suite.arms
        for column in suite.columns
        for record in shelf.records(arm, column)
    ]
    shown = sizes(used)
    return Counter({size: count for size, count in sizes(records).items() if size not in shown})


def listed(found: Counter[Size]) -> str:
    """'stdlib, 40 steps, on 8 windows (27 records); …'"""
    shown = [f"{size} ({count} records)" for size, count in list(found.items())[:SHOWN]]
    return "; ".join([*shown, *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])])


def remedy(suites: Sequence[Suite], asked: str, records: Sequence[Record]) -> str:
    """Options with which the suites have numbers of these records, or nothing."""
    for size in list(sizes(records))[:SHOWN]:
        for name in sorted(PRESETS, key=lambda name: name != asked):
            plain = PRESETS[name]
            data = None if size.corpus == plain.data else size.corpus
            limit = None if size.limit == plain.limit else size.limit
            if size.limit is None and plain.limit is not None:
                continue  # the whole split is no choice at this preset
            for steps in (None, size.steps):
                preset = find_preset(name, data, limit, steps)
                shelf = Shelf(records, preset)
                if any(gather(suite, shelf).counts[0] for suite in suites):
                    return " ".join([*([] if name == asked else [f"--preset {name}"]), *options(preset)])
    return ""
