"""What the recurrence does at its anchor: step by step, started from it, and what its forcing did to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scse.config.use import INJECTION_GAINS, VECTOR_ORDER
from scse.errors import UserError
from scse.precision import EXACT
from scse.records import records_of
from scse.tasks.base import Column, Evaluated, Selection, Task, Where, depths_of, record_of, title_of

if TYPE_CHECKING:
    from scse.config.model import Shape
    from scse.runs import Run

STEPS, BATCHES, BATCH = 48, 2, 32
GAINS = ("gain", "expansion", "expansion_residual")
STEERED_INPUTS = 6
# A step of the diagnosis evaluates the map three times, twice of it the anchor.
MAPS = 3


def _exact(run: Run) -> Run:
    """What is measured at the anchor is exact zeros and derivatives: a rounded map has neither."""
    from scse.devices import resolve_device

    if run.precision != EXACT:
        raise UserError(f"diagnostics are not made in {run.precision}; open the run in float32")
    resolve_device(run.device, float64=True)
    return run


def diagnosed_batches(limit: int | None) -> tuple[int, int]:
    """(windows of a batch, batches) of a diagnosis: two batches of 32, or what a smaller limit leaves of them."""
    if limit is None or limit >= BATCHES * BATCH:
        return BATCH, BATCHES
    return min(limit, BATCH), 1


def measured_before(run: Run) -> dict[tuple[str, str], dict[str, float]]:
    """The gains and expansions that the run's records have, by evaluation and text."""
    found = {}
    for record in records_of(run.folder):
        slow = {name: record.metrics[name] for name in GAINS if name in record.metrics}
        found[record.key, str(record.facts.get("data"))] = slow
    return found


class Diagnose(Task):
    """Forcing bias, energies, gain and expansion of each step; the depth of its columns is the step t, from 0."""

    name = "diagnose"

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        batch, batches = diagnosed_batches(where.limit)
        return replace(where, limit=batch * batches).asks(self.name, column.depth)

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        batch, batches = diagnosed_batches(selection.limit)
        gains = depths_of([column for column in columns if column.metric in GAINS])
        return self.at(run, replace(selection, batch=batch), max(depths_of(columns)) + 1, batches, gains)

    def at(self, run: Run, selection: Selection, steps: int, batches: int, gains: Sequence[int]) -> Evaluated:
        """`steps` steps on `batches` batches; gain and expansion, which take most of the time, at the steps named."""
        from scse.diagnostics import diagnose
        from scse.diagnostics.stability import broken_claims, judge, with_verdicts
        from scse.progress import progress

        corpus, split = selection.open(_exact(run))
        before = measured_before(run)  # a quicker diagnosis replaces a record, and must not lose these
        with progress("diagnosing", steps * batches, "steps", enabled=selection.show) as meter:
            found = diagnose(run.model, split.tokens, steps, selection.batch, batches, gains, meter)
        where = Where.of(corpus, split, replace(selection, limit=selection.batch * batches))
        trained = run.config.max_loops
        rows = with_verdicts(found, trained)
        # Other batches of as many windows have other means of ratios.
        usual = (selection.batch, batches) == diagnosed_batches(where.limit)
        told = {} if usual else {"settings": {"batches": batches}}
        records = []
        for row in rows:
            numbers = {name: value for name, value in row.items() if isinstance(value, float)}
            records.append(record_of(run, where.asks(self.name, row["step"], **told), numbers, split.digest))
            slow = before.get((records[-1].key, split.digest), {})
            records[-1] = replace(records[-1], metrics={**slow, **numbers})
        faults = broken_claims(run.model.recurrence, found)
        notes = [str(judge(found, trained))] if any(row.expansion is not None for row in found) else []
        if found[0].anchor_energy is None:
            notes.append("this family has no anchor, so forcing, deviations and gains do not exist")
        return Evaluated(rows, records, title_of(run, where), notes, faults)

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        batch, batches = diagnosed_batches(limit)
        return batch * batches * shape.context * MAPS


class Steering(Task):
    """Rollouts started at the anchor, and what turning the injection gain does to them."""

    name = "steering"

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return replace(where, limit=STEERED_INPUTS).asks(self.name, column.depth)

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, selection, max(depths_of(columns)), STEERED_INPUTS)

    def at(self, run: Run, selection: Selection, steps: int, inputs: int) -> Evaluated:
        from scse.diagnostics.steering import panels, per_input, sentence, steer, summary
        from scse.progress import progress

        corpus, split = selection.open(_exact(run))
        with progress("steering", len(INJECTION_GAINS) * (steps + 1), "steps", enabled=selection.show) as meter:
            found = steer(run.model, split.tokens, inputs, steps, run.config.max_loops, meter)
        where = Where.of(corpus, split, replace(selection, limit=inputs))
        record = record_of(run, where.asks(self.name, steps), summary(found), split.digest, panels=panels(found))
        notes = [sentence(found)]
        if not found.has_source:
            notes.append("this recurrence has no injection with a gain of its own, so there is nothing to turn")
        return Evaluated(per_input(found), [record], f"{run.folder} from its anchor, T = {steps}", notes)

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return STEERED_INPUTS * shape.context * len(INJECTION_GAINS)


class Theory(Task):
    """What the forcing of steps `first` … `last` − 1 did to the state and the loss, by the counterfactual theory."""

    name = "theory"
    first, last, order, inputs = 8, 48, VECTOR_ORDER, 2

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return self._asks(where, column.depth, self.first, self.order, self.inputs)

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, selection, self.first, max(depths_of(columns)), self.inputs, self.order)

    def at(self, run: Run, selection: Selection, first: int, last: int, inputs: int, order: int) -> Evaluated:
        from scse.diagnostics.theory import PASSES, theory
        from scse.diagnostics.theory_summary import average_verdict, input_row, per_step, summary
        from scse.progress import progress

        corpus, split = selection.open(_exact(run))
        with progress("theory", PASSES * (last - first) * inputs, "steps", enabled=selection.show) as meter:
            found = theory(run.model, split.tokens, first, last, inputs, meter, order)
        where = Where.of(corpus, split, selection)
        steps, verdict = per_step(found, first), average_verdict(found)
        asked = self._asks(where, last, first, order, inputs)
        record = record_of(run, asked, summary(found), split.digest, steps=steps, verdict=verdict)
        rows = [input_row(number, x) for number, x in enumerate(found)]
        return Evaluated(
            rows, [record], f"{run.folder}: forcing of steps {first} … {last - 1}", [f"verdict: {verdict}"]
        )

    def _asks(self, where: Where, last: int | None, first: int, order: int, inputs: int) -> dict[str, Any]:
        span = {"from": first, "order": order}
        return replace(where, limit=inputs).asks(self.name, last, settings=span)

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return self.inputs * shape.context
