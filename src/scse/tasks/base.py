"""What a task is: a way to evaluate a run, and what tells one evaluation from another. No torch here.

A task is one object. It runs an evaluation and makes records of it; it says what identifies the record behind a column,
so that a suite finds it; and it says how many tokens it reads and how deep, for planning. What needs torch is imported
where it is used, so that suites and reports can ask without loading it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from scse.config.use import BATCH, CEILING
from scse.errors import UserError
from scse.precision import EXACT
from scse.records import FILE, Record, append_records, identity, new_record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from scse.config.model import Shape
    from scse.data import Corpus, TokenSplit
    from scse.runs import Run

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
Rows = list[dict[str, Any]]
PROFILED_SEQUENCES = 16
# About the test split of WikiText in GPT-2's tokens; how long another corpus is, nobody knows before reading it.
WHOLE_SPLIT = 285_000


@dataclass(frozen=True)
class Column:
    """One number: a metric of a task at a depth (or a mean budget), printed in units of `unit`.

    `data` names another corpus than the run's own, `split` the part of it. `lower` says which direction is better;
    None: neither. `only` names the families that have such a number; empty: all. The depth of the task "diagnose" is
    the step t, counted from 0. With `since` the number is the change from that depth to `depth`. `seeds` are the only
    ones of an arm that are evaluated; empty: all. `beside`: the paper's table has no such column. `difficulty` is that
    of a problem's answers; None: all of them. `rule` is the exit rule of the task "exits". `protocols` are those whose
    runs have such a number; empty: all.
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
    only: tuple[str, ...] = ()
    split: str = "test"
    since: int | None = None
    seeds: tuple[int, ...] = ()
    beside: bool = False
    difficulty: int | None = None
    rule: str = ""
    protocols: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether another measurement of the same model gives another number."""
        return self.metric in ("latency_ms", "tokens_per_second", "time")

    def concerns(self, family: str, protocol: str) -> bool:
        """Whether the runs of a family by a protocol have such a number."""
        return (not self.only or family in self.only) and (not self.protocols or protocol in self.protocols)

    def parts(self) -> tuple[Column, ...]:
        """The columns of single depths behind this one: itself, or the two that a change is between."""
        plain = replace(self, since=None)
        return (plain,) if self.since is None else (plain, replace(plain, depth=self.since))


@dataclass(frozen=True)
class Selection:
    """What is read: a corpus (None: the run's own), a split, how many windows or passages of it, how many at a time.

    `sequences` is for the profile, which reads no text: how many sequences of random tokens.
    """

    data: str | None = None
    split: str = "test"
    limit: int | None = None
    batch: int = BATCH
    tag: str = ""
    data_dir: str | None = None
    cache_dir: str | None = None
    show: bool = True
    sequences: int = PROFILED_SEQUENCES

    def open(self, run: Run) -> tuple[Corpus, TokenSplit]:
        """The corpus in the run's tokens, and the split of it."""
        corpus = run.corpus(self.data, self.data_dir, self.cache_dir, progress=self.show)
        return corpus, corpus.split(self.split)


@dataclass(frozen=True)
class Where:
    """The text of an evaluation as its record states it, and the `random` tokens of a task that reads no text."""

    dataset: str
    split: str
    limit: int | None = None
    tag: str = ""
    random: str = ""

    @classmethod
    def of(cls, corpus: Corpus, split: TokenSplit, selection: Selection) -> Where:
        return cls(corpus.name, split.name, selection.limit, selection.tag)

    def asks(self, task: str, depth: int | None = None, **more: Any) -> dict[str, Any]:
        """The part of a record's identity that says what was evaluated."""
        stated = {"dataset": self.dataset, "split": self.split, "limit": self.limit, "tag": self.tag}
        return {**stated, "depth": depth, "task": task, "adaptive": None, **more}


def short_name(corpus: str) -> str:
    """A corpus by its name, as records call it; one at a path goes by the path's last part."""
    return corpus.rstrip("/").rpartition("/")[2]


def random_tokens(sequences: int, length: int) -> str:
    """What a record calls random tokens that were read in the place of a text."""
    return f"random {sequences} × {length}"


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found: rows for people, the records of them, and what they are of.

    `notes` are sentences to print below the rows, `faults` what must not be: a claim of the model that is broken, or a
    number that was asked for and cannot be had.
    """

    rows: Rows
    records: list[Record]
    title: str
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def keep(self, run: Run) -> Evaluated:
        """Append the records to the run's own file; of several processes the leader does."""
        if run.here.leads:
            append_records(run.folder / FILE, self.records)
        return self


class Task(ABC):
    """A way to evaluate a run. `counts_loops`: the depth of its columns is a number of loops, which can be narrowed.

    `spreads`: several processes may evaluate together. Such a task goes through its batches with `over_batches` and a
    partial of the run, and does nothing long by itself. Others are left to the process that leads.
    """

    name: ClassVar[str]
    table: ClassVar[str] = "scse.tasks:TASKS"
    counts_loops: ClassVar[bool] = False
    spreads: ClassVar[bool] = False

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        """What identifies the record behind a column: text and depth, unless a task is told more than these."""
        return where.asks(self.name, column.depth)

    @abstractmethod
    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        """Everything that some columns on one text ask for, from one evaluation."""

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        """How many tokens go through the model, for planning."""
        return WHOLE_SPLIT if limit is None else limit * shape.context

    def loops(self, column: Column) -> int:
        """How many loops each of them takes, for planning."""
        return CEILING if column.depth is None else column.depth


def depths_of(columns: Sequence[Column]) -> list[int]:
    return list(dict.fromkeys(column.depth for column in columns if column.depth is not None))


def infers(at: Callable[Concatenate[_T, Run, _P], _R]) -> Callable[Concatenate[_T, Run, _P], _R]:
    """Lets an evaluation compute in the precision that its run was opened with."""

    @wraps(at)
    def within(task: _T, run: Run, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with run.inference():
            return at(task, run, *args, **kwargs)

    return within


def record_of(run: Run, asked: Mapping[str, Any], numbers: Mapping[str, float], digest: str, **facts: Any) -> Record:
    """The record of an evaluation that `asked` identifies, together with a precision other than float32."""
    told = dict(asked)
    if run.precision != EXACT:
        told["settings"] = {**(told.get("settings") or {}), "precision": run.precision}
    return new_record(identity(run.config, run.step, **told), numbers, digest, **run.facts(), **facts)


def by_depth(
    run: Run, where: Where, task: str, results: Iterable[DataclassInstance], digest: str, **told: Any
) -> Evaluated:
    """What was found at each depth, as rows and as records; `told` is what else identifies these."""
    rows = [asdict(result) for result in results]
    asked = [where.asks(task, row["depth"], **told) for row in rows]
    records = [record_of(run, a, without(r, "depth"), digest) for a, r in zip(asked, rows, strict=True)]
    return Evaluated(rows, records, title_of(run, where))


def without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def title_of(run: Run, where: Where) -> str:
    return f"{run.folder} on {where.dataset} {where.split}"


def distinct(depths: Sequence[int]) -> list[int]:
    """Depths in order, each once."""
    found = list(dict.fromkeys(depths))
    if not found:
        raise UserError("no depth is asked for; give --depths at least one")
    return found
