"""Which runs some suites need, and how far each of them is. Nothing is trained here, and torch is not loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scse.data import at_hand
from scse.errors import UserError, checked_choice
from scse.layout import CHECKPOINTS, checkpoint_steps, is_trained
from scse.records import Record, records_of
from scse.suites.suite import Arm, Preset, Suite, evaluation, fits, narrowed, seeds_of
from scse.tasks import TASKS, Column

# The fixed depths of the paper. Where a run is unrolled anyway, all of them on the way are read.
STANDARD_DEPTHS = (4, 8, 12, 16, 24, 32, 48)


@dataclass(frozen=True)
class Member:
    """One run: an arm with one seed. `columns` are what the suites that share it want to know of it."""

    folder: Path
    preset: Preset
    arm: Arm
    seed: int
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def settings(self) -> dict[str, object]:
        """What `assemble` takes. The precision is the machine's choice, as for `scse train`."""
        return {"precision": "auto", **self.preset.settings(self.arm), "seed": self.seed}

    @property
    def steps(self) -> int:
        return int(str(self.settings["steps"]))

    def trained(self) -> bool:
        """Whether the run has been trained to its end."""
        return is_trained(self.folder)

    def step(self) -> int:
        """The step of the newest checkpoint, or the last one."""
        if self.trained():
            return self.steps
        return max(checkpoint_steps(self.folder / CHECKPOINTS), default=0)

    def records(self) -> list[Record]:
        return records_of(self.folder)

    def missing(self, data_dir: str | None = None) -> list[Column]:
        """The columns that can be evaluated and have no record yet."""
        records = self.records()
        return [c for c in self.columns if self.available(c, data_dir) and not self._recorded(c, records)]

    def available(self, column: Column, data_dir: str | None = None) -> bool:
        return available(self.preset, self.arm, column, data_dir)

    def _recorded(self, column: Column, records: Iterable[Record]) -> bool:
        return any(r.seed == self.seed and fits(r, self.preset, self.arm, column) for r in records)


def available(preset: Preset, arm: Arm, column: Column, data_dir: str | None = None) -> bool:
    """Whether there is text for a column at this size. `mini` makes do with what lies at hand."""
    corpus = preset.corpus(arm, column)
    if corpus is None or preset.elsewhere is None or column.data is None:
        return corpus is not None
    return at_hand(corpus, data_dir)


def unavailable_columns(suites: Iterable[Suite], preset: Preset, data_dir: str | None = None) -> list[str]:
    """'suite: header' of the columns that stay empty at this size, though the chosen rows have such a number."""
    found = []
    for suite in suites:
        for column in suite.columns:
            concerned = [arm for arm in suite.asked if column.concerns(arm.family, arm.protocol)]
            if concerned and not any(available(preset, arm, column, data_dir) for arm in concerned):
                found.append(f"{suite.name}: {column.header}")
    return found


def members(suites: Sequence[Suite], preset: Preset, runs: Path, seeds: Sequence[int] | None = None) -> list[Member]:
    """Every run that some suites need, each once, the first seeds of all arms before the second."""
    found: dict[Path, Member] = {}
    for suite in suites:
        for arm in suite.asked:
            for seed in arm.seeds:
                if seeds is not None and seed not in seeds:
                    continue
                folder = runs / preset.folder(arm) / f"seed{seed}"
                known = found.get(folder) or Member(folder, preset, arm, seed, ())
                found[folder] = replace(known, columns=_united(known.columns, _wanted(suite, arm, seed), preset, arm))
    return sorted(found.values(), key=lambda member: member.seed)


def _wanted(suite: Suite, arm: Arm, seed: int) -> list[Column]:
    """The numbers of single depths that a suite asks of an arm. Whom they concern is settled here: another suite may
    have the same run under another protocol."""
    asked = [c for c in suite.columns if c.concerns(arm.family, arm.protocol) and seed in seeds_of(arm, c)]
    return [replace(part, only=(), protocols=()) for column in asked for part in column.parts()]


def _united(known: tuple[Column, ...], more: Iterable[Column], preset: Preset, arm: Arm) -> tuple[Column, ...]:
    """Columns of several suites that are the same number of the same evaluation count once."""
    by_meaning: dict[tuple[str, str], Column] = {}
    for column in (*known, *more):
        asked = evaluation(preset, arm, column)
        meaning = column.header if asked is None else str([sorted(asked.items(), key=str), column.metric])
        by_meaning.setdefault((meaning, column.task), column)
    return tuple(by_meaning.values())


def _at(column: Column, depths: Sequence[int]) -> bool:
    """Whether all a column needs is at some of these depths."""
    return all(part.depth in depths for part in column.parts())


def narrow(suites: Sequence[Suite], only: Sequence[str] | None, depths: Sequence[int] | None) -> list[Suite]:
    """Only some arms, by name, and only some depths; a name or depth that no suite has is an error."""
    names = [arm.name for suite in suites for arm in suite.asked]
    for name in only or ():
        checked_choice("arm", name, dict.fromkeys(names))
    known = {c.depth for suite in suites for c in suite.columns if TASKS.find(c.task).counts_loops and c.depth}
    for depth in depths or ():
        if depth not in known:
            raise UserError(f"no column has depth {depth} (depths: {', '.join(map(str, sorted(known)))})")
    kept = []
    for suite in suites:
        arms = [arm for arm in suite.asked if not only or arm.name in only]
        columns = [c for c in suite.columns if not depths or not TASKS.find(c.task).counts_loops or _at(c, depths)]
        if arms and columns:
            kept.append(narrowed(suite, arms, columns))
    if not kept:
        raise UserError("no suite has both these rows and these depths; ask for fewer of one or more of the other")
    return kept
