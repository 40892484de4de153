"""The one place where an opened run is evaluated and its numbers become records.

A function per task says everything that can be varied; the commands call these. `TASKS` is how a suite calls them: it
gives the columns it needs of one task on one text, and all of them come from one evaluation.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from scse.data import Corpus, DataConfig, TokenSplit, corpus_documents
from scse.diagnostics import diagnose
from scse.diagnostics.stability import broken_claims, judge, with_verdicts
from scse.diagnostics.steering import GAINS, panels, per_input, sentence, steer, summary
from scse.evaluation import perplexity_over_depths
from scse.evaluation.budgets import AdaptiveEvaluation, AdaptiveSettings
from scse.evaluation.completion import complete, last_word_completions
from scse.evaluation.profile import profile
from scse.experiments.records import FILE, Record, append_records, identity, new_record
from scse.experiments.suite import (
    CEILING,
    PROFILED_SEQUENCES,
    STEERED_INPUTS,
    Column,
    calibration_windows,
    diagnosed_batches,
)
from scse.generation.quality import cached_perplexity
from scse.model import trainable_parameters
from scse.progress import progress
from scse.runs import Run

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Text:
    """What is read: a corpus (None: the run's own), a split, how many windows or passages of it, how many at a time.

    `sequences` is for the profile, which reads no text: how many sequences of random tokens.
    """

    data: str | None = None
    split: str = "test"
    limit: int | None = None
    batch: int = 32
    tag: str = ""
    data_dir: str | None = None
    cache_dir: str | None = None
    show: bool = True
    sequences: int = PROFILED_SEQUENCES


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


def keep(run: Run, found: Evaluated) -> Evaluated:
    """Append the records to the run's own file."""
    append_records(run.folder / FILE, found.records)
    return found


def perplexity(run: Run, text: Text, depths: Sequence[int]) -> Evaluated:
    """Perplexity at each depth, all from one unroll."""
    corpus, split = _open(run, text)
    depths = list(dict.fromkeys(depths))
    results = perplexity_over_depths(
        run.model, split.tokens, depths, batch=text.batch, limit=text.limit, show=text.show
    )
    where = _where(corpus.name, split.name, text)
    records = [
        _record(run, {"nll": r.nll, "ppl": r.ppl, "tokens": r.tokens}, split.digest, depth=r.depth, **where)
        for r in results
    ]
    return Evaluated([asdict(result) for result in results], records, _title(run, where))


def cached(run: Run, text: Text, depths: Sequence[int], cache: str) -> Evaluated:
    """Perplexity at each depth as generation sees the text: token by token through a cache."""
    corpus, split = _open(run, text)
    depths = list(dict.fromkeys(depths))
    windows = -(-(len(split.tokens) - 1) // run.config.model.shape.context)
    with progress(
        "through the cache", len(depths) * min(windows, text.limit or windows), "windows", text.show
    ) as meter:
        results = [
            cached_perplexity(run.model, split.tokens, depth, cache, text.batch, text.limit, meter) for depth in depths
        ]
    where = {**_where(corpus.name, split.name, text), "task": "cached", "settings": {"cache": cache}}
    rows = [asdict(result) for result in results]
    records = [_record(run, _without(row, "depth"), split.digest, depth=row["depth"], **where) for row in rows]
    return Evaluated(rows, records, f"{_title(run, where)}, cache '{cache}'")


def adaptive(run: Run, text: Text, settings: AdaptiveSettings) -> Evaluated:
    """Thresholds calibrated on validation, evaluated on the text's split."""
    settings = replace(settings, batch=text.batch, limit=text.limit)
    evaluation = AdaptiveEvaluation(run.model, settings, show=text.show)
    corpus, split = _open(run, text)
    results, unreachable = evaluation.run(corpus.split("validation").tokens, split.tokens)
    where = _where(corpus.name, split.name, text)
    rows, records = [], []
    for result in results:
        row = asdict(result)
        histogram = row.pop("histogram")
        rows.append(row)
        numbers = _without(row, "budget", "mode")
        about = {**where, "depth": None, "adaptive": settings.identity(result.budget, result.mode)}
        records.append(_record(run, numbers, split.digest, {"histogram": histogram}, **about))
    faults = [f"adaptive on {corpus.name}: {reason}" for reason in dict.fromkeys(unreachable.values())]
    return Evaluated(rows, records, f"{_title(run, where)}, rule '{settings.rule}'", faults=faults)


def completion(run: Run, text: Text, depths: Sequence[int]) -> Evaluated:
    """Last-word completion at each depth, all from one unroll; `limit` counts passages."""
    data = text.data or "lambada"
    config = DataConfig(data, data_dir=text.data_dir, cache_dir=text.cache_dir)
    passages = list(islice(corpus_documents(config, text.split), text.limit))
    examples = list(last_word_completions(passages, run.tokenizer))
    with progress("completing", len(examples), "passages", enabled=text.show) as meter:
        results = complete(run.model, examples, list(dict.fromkeys(depths)), text.batch, meter)
    digest = hashlib.sha256("\n".join(passages).encode()).hexdigest()
    where = _where(data, text.split, text)
    rows = [asdict(result) for result in results]
    records = [
        _record(run, _without(row, "depth"), digest, depth=row["depth"], task="completion", **where) for row in rows
    ]
    return Evaluated(rows, records, _title(run, where))


def diagnosis(run: Run, text: Text, steps: int, batches: int, gains: Sequence[int]) -> Evaluated:
    """What the recurrence does at its anchor, step by step; the gain only at the steps named."""
    corpus, split = _open(run, text)
    with progress("diagnosing", steps * batches, "steps", enabled=text.show) as meter:
        found = diagnose(run.model, split.tokens, steps, text.batch, batches, gains, meter)
    where = _where(corpus.name, split.name, replace(text, limit=text.batch * batches))
    trained = run.config.max_loops
    rows = with_verdicts(found, trained)
    records = []
    for row in rows:
        numbers = {name: value for name, value in row.items() if isinstance(value, float)}
        records.append(_record(run, numbers, split.digest, depth=row["step"], task="diagnose", **where))
    faults = broken_claims(run.model.recurrence, found)
    return Evaluated(rows, records, _title(run, where), [str(judge(found, trained))], faults)


def steering(run: Run, text: Text, steps: int, inputs: int) -> Evaluated:
    """Rollouts started at the anchor, and what turning the injection gain does to them."""
    corpus, split = _open(run, text)
    with progress("steering", len(GAINS) * (steps + 1), "steps", enabled=text.show) as meter:
        found = steer(run.model, split.tokens, inputs, steps, run.config.max_loops, meter)
    where = _where(corpus.name, split.name, replace(text, limit=inputs))
    facts = {"panels": panels(found)}
    record = _record(run, summary(found), split.digest, facts, depth=steps, task="steering", **where)
    notes = [sentence(found)]
    if not found.has_source:
        notes.append("no source channel: the input is not injected into the loop, so there is no gain to turn")
    return Evaluated(per_input(found), [record], f"{run.folder} from its anchor, T = {steps}", notes)


def profiled(
    run: Run,
    depths: Sequence[int],
    batch: int,
    length: int | None = None,
    repeats: int = 7,
    tag: str = "",
    show: bool = True,
) -> Evaluated:
    """Latency, throughput and memory at each depth, on random tokens."""
    # torch's profiler, which counts the memory, announces itself on stderr unless told not to.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    length = length or run.config.model.shape.context
    rows = [asdict(row) for row in profile(run.model, list(dict.fromkeys(depths)), batch, length, repeats, show)]
    where: dict[str, Any] = {"dataset": f"random {batch} × {length}", "split": "", "tag": tag, "task": "profile"}
    records = [_record(run, _without(row, "depth"), "", depth=int(row["depth"]), **where) for row in rows]
    return Evaluated(rows, records, f"{run.folder}: {batch} sequences of {length} tokens")


def sized(run: Run) -> Evaluated:
    """How many numbers are trained, which is what the weights take to store."""
    numbers = {"parameters": trainable_parameters(run.model)}
    record = _record(run, numbers, "", depth=None, dataset="", split="", task="size")
    return Evaluated([numbers], [record], str(run.folder))


# ------------------------------------------------- as a suite asks for them


def _perplexity_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    return perplexity(run, text, _depths(columns))


def _adaptive_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    budgets = tuple(dict.fromkeys(column.budget for column in columns if column.budget is not None))
    windows = calibration_windows(text.limit)
    settings = AdaptiveSettings(budgets=budgets, ceiling=CEILING, calibration=windows, modes=("offline",))
    return adaptive(run, text, settings)


def _completion_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    return completion(run, text, _depths(columns))


def _diagnose_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    batch, batches = diagnosed_batches(text.limit)
    steps = sorted(_depths(columns))
    return diagnosis(run, replace(text, batch=batch), steps[-1] + 1, batches, [0, *steps])


def _steering_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    return steering(run, text, max(_depths(columns)), STEERED_INPUTS)


def _profile_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    return profiled(run, _depths(columns), text.sequences, show=text.show)


def _size_columns(run: Run, text: Text, columns: Sequence[Column]) -> Evaluated:
    return sized(run)


SuiteTask = Callable[[Run, Text, Sequence[Column]], Evaluated]

TASKS: Mapping[str, SuiteTask] = {
    "perplexity": _perplexity_columns,
    "adaptive": _adaptive_columns,
    "completion": _completion_columns,
    "diagnose": _diagnose_columns,
    "profile": _profile_columns,
    "size": _size_columns,
    "steering": _steering_columns,
}


def _depths(columns: Sequence[Column]) -> list[int]:
    return list(dict.fromkeys(column.depth for column in columns if column.depth is not None))


def _open(run: Run, text: Text) -> tuple[Corpus, TokenSplit]:
    corpus = run.corpus(text.data, text.data_dir, text.cache_dir, progress=text.show)
    return corpus, corpus.split(text.split)


def _where(dataset: str, split: str, text: Text) -> dict[str, Any]:
    return {"dataset": dataset, "split": split, "limit": text.limit, "tag": text.tag}


def _title(run: Run, where: Mapping[str, Any]) -> str:
    return f"{run.folder} on {where['dataset']} {where['split']}"


def _without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _record(
    run: Run, numbers: Mapping[str, float], digest: str, facts: Mapping[str, Any] | None = None, **about: Any
) -> Record:
    return new_record(identity(run.config, run.step, **about), numbers, digest, **(facts or {}))
