"""A sweep: options × values × seeds as a suite of its own, and which combination validates best.

Everything else (plan, resume, failures, processes, records) is what suites have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scse.config import TrainConfig, assemble
from scse.config.objective import LAST
from scse.data import existing_corpus
from scse.errors import UserError, checked_choice
from scse.problems import PROBLEMS
from scse.records.statistics import Summary
from scse.suites.evidence import COMPLETE, Evidence
from scse.suites.suite import DEFAULT_SEEDS, Arm, Column, Preset, Settings, Suite
from scse.tasks.adaptive import in_suites
from scse.tasks.columns import budgeted, loops, right

DEPTHS = (8, 24, 48)
SELECTING = "validation"


@dataclass(frozen=True)
class Grid:
    """Every combination of the values of `vary` is an arm; `settings` hold for all of them.

    `vary` may name the family too. `chosen` is the value the paper took, where it prints one.
    """

    family: str
    protocol: str
    vary: Mapping[str, Sequence[object]]
    settings: Settings = field(default_factory=dict)
    chosen: float | None = None


# What the paper says it selected: the step scale, the source gain and the step-modulation options of the additive
# controls, at 22M on WikiText-103, Step-FiLM's scale by the lowest validation perplexity at deep extra loops. It names
# no values that were tried; these lie around those it took. docs/reproducing.md
PAPER_GRIDS = {
    "step-scale": Grid("tuned-adapter", "wikitext-103", {"step_scale": (0.2, 0.35, 0.5, 0.7, 1.0)}, chosen=0.35),
    "source-gain": Grid("tuned-adapter", "wikitext-103", {"source_gain": (0.05, 0.1, 0.15, 0.3, 0.5)}),
    "step-signal": Grid("step-adapter", "wikitext-103", {"step_signal": (0.005, 0.015, 0.05, 0.15, 0.5)}, chosen=0.015),
    "film-scale": Grid("film-adapter", "wikitext-103", {"film_scale": (0.02, 0.05, 0.1, 0.2, 0.5)}),
}


def paper_grid(name: str, settings: Settings) -> Grid:
    grid = PAPER_GRIDS[checked_choice("selection of the paper", name, PAPER_GRIDS)]
    return Grid(grid.family, grid.protocol, grid.vary, settings, grid.chosen)


def columns(depths: Sequence[int], budgets: Sequence[int], split: str, protocol: str = "") -> tuple[Column, ...]:
    """Perplexity at fixed depths and at mean loop budgets; of a problem, also its right answers in percent."""
    in_suites(budgets, None)  # refuses what cannot be
    depths = list(dict.fromkeys(depths))
    answers = [right(f"right, T={depth}", depth, split=split) for depth in depths if protocol in PROBLEMS]
    return (*loops(*depths, split=split), *budgeted(*dict.fromkeys(budgets), split=split), *answers)


def as_suite(
    grid: Grid, preset: Preset, wanted: tuple[Column, ...], seeds: Sequence[int] = DEFAULT_SEEDS
) -> tuple[Suite, dict[str, dict[str, object]]]:
    """The suite of a grid, and by arm the values that tell it from the others. Every arm is checked."""
    _refuse_contradictions(grid, preset)
    names, arms, values = list(grid.vary), {}, {}
    for combination in itertools.product(*grid.vary.values()):
        settings = {**grid.settings, **dict(zip(names, combination, strict=True))}
        family = str(settings.pop("family", grid.family))
        if "data" in settings:
            settings["data"] = existing_corpus(str(settings["data"]))
        draft = Arm("", family, grid.protocol, "", seeds=tuple(dict.fromkeys(seeds)), settings=settings)
        config = _config(preset, draft)
        _check_terms(config)
        typed = as_configured(config, settings)
        own = {name: family if name == "family" else typed[name] for name in names}
        name = ", ".join(f"{option}={value}" for option, value in own.items()) or family
        arms[name] = replace(_plainest(preset, replace(draft, settings=typed)), name=name, label=name)
        values[name] = own
    return Suite("sweep", "sweep", tuple(arms.values()), wanted), values


def _refuse_contradictions(grid: Grid, preset: Preset) -> None:
    fixed = {*grid.settings, *preset.changes, *(["data"] if preset.data else [])}
    for name, values in grid.vary.items():
        if name == "seed":
            raise UserError("seeds are not varied but repeated: give --seeds")
        if name in fixed:
            raise UserError(f"'{name}' is both varied and set to one value; leave one of them out")
        if not values:
            raise UserError(f"'{name}' has no values to vary over")
    if "seed" in grid.settings:
        raise UserError("a sweep has several seeds; give them with --seeds")


def _config(preset: Preset, arm: Arm) -> TrainConfig:
    return assemble(arm.family, {"precision": "auto", **preset.settings(arm)})


def _check_terms(config: TrainConfig) -> None:
    if config.objective != LAST:
        from scse.training.objectives import check_run  # loads torch

        check_run(config)


def _plainest(preset: Preset, arm: Arm) -> Arm:
    """The same run without settings that change nothing, so that it is the run of whoever did not mention them."""
    config = _config(preset, arm)
    for name in arm.settings:
        less = replace(arm, settings={other: value for other, value in arm.settings.items() if other != name})
        with suppress(UserError):  # settings may need each other: few nodes, and few hops between them
            arm = less if _config(preset, less) == config else arm
    return arm


def as_configured(config: TrainConfig, settings: Settings) -> dict[str, object]:
    """Settings as the run has them: '1e-3' from a command line and 0.001 are the same one."""
    places: dict[str, Any] = {**config.model.options, **asdict(config.model.shape), **config.to_dict()}
    places["data"] = config.corpus
    # Depths are stored as a name, with their numbers elsewhere.
    return {name: value if name == "depths" else places.get(name, value) for name, value in settings.items()}


@dataclass(frozen=True)
class Choice:
    """The arm with the lowest mean, the next one, and how many of how many arms have all their seeds."""

    arm: str
    mean: Summary
    runner_up: tuple[str, Summary] | None
    complete: int
    arms: int


def select(evidence: Evidence, header: str) -> Choice | None:
    """The best arm in a column, among those with every seed and a finite mean; None while there is none."""
    found = []
    for arm in evidence.suite.arms:
        cell = evidence.cells[arm.name, header]
        if cell.state == COMPLETE and cell.ours is not None and math.isfinite(cell.ours.mean):
            found.append((cell.ours.mean, arm.name, cell.ours))
    if not found:
        return None
    (_, best, summary), *others = sorted(found, key=lambda one: one[0])
    runner_up = (others[0][1], others[0][2]) if others else None
    return Choice(best, summary, runner_up, len(found), len(evidence.suite.arms))
