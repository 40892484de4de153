"""What exit rules save: the fewest loops that each needs to stay near the best fixed depth, in loops and in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scse.config.use import RULE, ExitTraining
from scse.tasks.adaptive import calibration_windows
from scse.tasks.base import WHOLE_SPLIT, Column, Evaluated, Selection, Task, Where, record_of, title_of

if TYPE_CHECKING:
    from scse.config.model import Shape
    from scse.runs import Run

QUALITY = 0.5  # percent of perplexity that an exit may cost
DEEPEST = 16  # of the fixed depths that a rule may replace
GATE = "gate"


class Exits(Task):
    """Loops saved by an exit rule at a given loss of quality. A gate is trained first where a run has none."""

    name = "exits"

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return where.asks(self.name, settings=_settings(column.rule or RULE))

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        from scse.evaluation.rules import RULES, Stopping
        from scse.evaluation.savings import saving

        rules = [RULES.find(name) for name in dict.fromkeys(column.rule or RULE for column in columns)]
        corpus, split = selection.open(run)
        where = Where.of(corpus, split, selection)
        if any(rule.name == GATE for rule in rules) and run.model.recurrence.exit is None:
            _train_gate(run, selection)
        validation = corpus.split("validation").tokens
        rows, records = [], []
        for rule in rules:
            stopping = Stopping(rule, DEEPEST, selection.batch, selection.limit)
            found = saving(run.model, validation, split.tokens, stopping, QUALITY, calibration_windows(selection.limit))
            row = asdict(found)
            numbers = {name: float(value) for name, value in row.items() if name != "rule"}
            asked = where.asks(self.name, settings=_settings(rule.name))
            rows.append(row)
            records.append(record_of(run, asked, numbers, split.digest))
        return Evaluated(rows, records, f"{title_of(run, where)}, at most {QUALITY:g} % of perplexity")

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return 2.0 * (WHOLE_SPLIT if limit is None else limit * shape.context)

    def loops(self, column: Column) -> int:
        return DEEPEST


def _train_gate(run: Run, selection: Selection) -> None:
    """A gate with the settings that 'scse train-exit' has by default, kept beside the run as that does."""
    from scse.runs.exits import attach_gate, save_gate
    from scse.training.exits import train_gate

    wanted = ExitTraining()
    gate, _ = train_gate(run.model, selection.open(run)[0], run.config, wanted)
    save_gate(run.folder, gate, run.weights, {f"gate_{name}": value for name, value in asdict(wanted).items()})
    attach_gate(run.model, gate)


def _settings(rule: str) -> dict[str, Any]:
    return {"rule": rule, "quality": QUALITY, "deepest": DEEPEST}
