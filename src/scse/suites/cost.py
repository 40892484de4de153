"""What a suite still costs: matrix products, and the time they take on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scse.config import Shape, TrainConfig, assemble
from scse.devices import resolve_device
from scse.errors import UserError
from scse.families import FAMILIES
from scse.flops import step_flops, token_flops
from scse.layout import CONFIG_FILE, METRICS_FILE
from scse.runs.folder import read_run_config
from scse.suites.how_far import Rows, describe
from scse.suites.needed import Member
from scse.tasks import TASKS, Column
from scse.training.objectives import steps_beyond
from scse.training.optimiser import resolve_precision
from scse.training.speed import matmul_rate

# The share of the machine's matrix-product rate that training is taken to reach where no run has shown its own: so much
# from WIDE on, and in proportion below (measured: 0.6 at a width of 384, 0.3 at 128, about 0.1 at 64).
EFFICIENCY, WIDE = 0.5, 256


def assumed_share(width: int) -> float:
    return EFFICIENCY * min(1.0, width / WIDE)


@dataclass(frozen=True)
class Cost:
    """What one member still needs."""

    training: float
    evaluation: float
    seconds: float
    measured: bool

    @property
    def flops(self) -> float:
        return self.training + self.evaluation


class Estimator:
    """Costs on this machine; speeds come from the runs under `runs` where one has the same shape."""

    def __init__(self, runs: Path, device: str = "auto") -> None:
        self.device = resolve_device(device)
        self.speeds = dict(measured_speeds(runs.glob("*/seed*")))
        self._rate: float | None = None

    def cost(self, member: Member, missing: Sequence[Column]) -> Cost:
        config = assemble(member.arm.family, member.settings)
        training = (config.steps - member.step()) * step_flops(config, extra=steps_beyond(config.objective))
        evaluation = evaluation_flops(member, missing, config)
        speed = self.speeds.get(config.model.shape)
        seconds = (training + evaluation) / (speed or self.guess(config.model.shape.width))
        return Cost(training, evaluation, seconds, speed is not None)

    def guess(self, width: int) -> float:
        if self._rate is None:
            self._rate = matmul_rate(getattr(torch, resolve_precision("auto", self.device)), self.device)
        return assumed_share(width) * self._rate


def plan(chosen: Sequence[Member], runs: Path, device: str, data_dir: str | None) -> tuple[Rows, dict[str, Any]]:
    """What is done and what is left to do: a row by member, and the sums."""
    estimator, rows, costs = Estimator(runs, device), [], []
    for member in chosen:
        cost = estimator.cost(member, member.missing(data_dir))
        costs.append(cost)
        row = {**describe(member, data_dir), "flops": cost.flops, "seconds": round(cost.seconds)}
        rows.append({**row, "speed": "measured" if cost.measured else "estimated"})
    return rows, {
        "runs": len(rows),
        "trained": sum(row["step"] == row["steps"] for row in rows),
        "flops": sum(cost.flops for cost in costs),
        "seconds": round(sum(cost.seconds for cost in costs)),
    }


def evaluation_flops(member: Member, missing: Sequence[Column], config: TrainConfig) -> float:
    """Forward passes of the evaluations that are missing, one per task and text."""
    shape, row, limit = config.model.shape, FAMILIES.find(config.model.family), member.preset.limit
    deepest: dict[tuple[str, str | None], int] = {}
    for column in missing:
        text = column.task, column.data
        deepest[text] = max(deepest.get(text, 1), TASKS.find(column.task).loops(column))
    return sum(
        TASKS.find(task).tokens(limit, shape, member.arm.sequences) * token_flops(shape, row.body_applications(depth))
        for (task, _), depth in deepest.items()
    )


def measured_speeds(runs: Iterable[Path]) -> Iterable[tuple[Shape, float]]:
    """The rate in FLOP/s at which each shape has been trained here, from the metrics of its runs."""
    totals: dict[Shape, tuple[float, float]] = {}
    for folder in runs:
        if not all((folder / name).is_file() for name in (CONFIG_FILE, METRICS_FILE)):
            continue
        try:
            config, _ = read_run_config(folder)
            FAMILIES.find(config.model.family)
            extra = steps_beyond(config.objective)
        except UserError:
            continue  # whoever runs that run will be told; a guest's family or term may not be here
        flops, seconds = totals.get(config.model.shape, (0.0, 0.0))
        for line in (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a torn last line
            if "seconds" in row:
                flops += step_flops(config, row["loops"], extra)
                seconds += row["seconds"]
        totals[config.model.shape] = flops, seconds
    return [(shape, flops / seconds) for shape, (flops, seconds) in totals.items() if seconds > 0]
