"""Small suites and hand-made records of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from scse.config import TrainConfig, assemble
from scse.records import Record, identity, new_record
from scse.suites.suite import Arm, Claim, Column, Preset, Suite, Value, evaluation

PROTOCOL = "wikitext-2"
MINI = Preset("mini", {PROTOCOL: {"scale": "mini", "steps": 7}}, data="wikitext-2", limit=4, mini=True)
PAPER = Preset("paper")

LOOPED = Arm("looped", "looped", PROTOCOL, "Looped baseline", "Controls")
TUNED = Arm("tuned", "tuned-adapter", PROTOCOL, "Tuned adapter, s=0.35", "Controls")
UNSHARED = Arm("unshared", "unshared-4", PROTOCOL, "Unshared <4> & 100 %_ref", "Source-centered", reference=True)
SCSE = Arm("scse", "scse", PROTOCOL, "SCSE", "Source-centered")
T8, T48 = Column("T=8", depth=8), Column("T=48", depth=48)

ABLATIONS = Suite(
    name="toy-ablations",
    title="Stabilization & capacity <controls>",
    arms=(LOOPED, TUNED, UNSHARED, SCSE),
    columns=(T8, T48),
    paper={
        ("looped", "T=8"): Value(413.2, 3.2),
        ("looped", "T=48"): Value(451.0, 9.0),
        ("tuned", "T=8"): Value(360.0, 1.3),
        ("tuned", "T=48"): Value(397.3, 0.9),
        ("unshared", "T=8"): Value(358.1, 2.9),
        ("scse", "T=8"): Value(355.2, 2.4),
        ("scse", "T=48"): Value(393.9, 3.7),
    },
    claims=(
        Claim("SCSE is below both controls at every depth.", "scse", ("looped", "tuned"), ("T=8", "T=48")),
        Claim("The looped baseline is below the tuned adapter at T=8.", "looped", ("tuned",), ("T=8",)),
        Claim("At T=8 SCSE and the tuned adapter are tied.", "scse", ("tuned",), ("T=8",), margin=0.005),
    ),
    figure="depth-response",
)

FIRST, LAST = (Column(f"R_{t}", "diagnose", "bias_ratio", t, digits=3, lower=None) for t in (0, 47))
BIAS = Suite(
    name="toy_bias",
    title="Forcing bias at the anchor",
    arms=(LOOPED, TUNED, SCSE),
    columns=(FIRST, LAST),
    paper={("looped", "R_0"): Value(1.0), ("looped", "R_47"): Value(4.351), ("tuned", "R_0"): Value(0.38)}
    | {("tuned", "R_47"): Value(1.619), ("scse", "R_0"): Value(0.0), ("scse", "R_47"): Value(0.0)},
    claims=(Claim("SCSE has no forcing bias where the others have.", "scse", ("looped", "tuned"), ("R_47",)),),
    figure="bias-ratio",
)

ADAPTIVE = Suite(
    name="toy-adaptive",
    title="Adaptive depth",
    arms=(LOOPED, SCSE),
    columns=(T8, *(Column(f"Adaptive {b}", "adaptive", budget=float(b)) for b in (8, 16)), T48),
    paper={("looped", "Adaptive 8"): Value(182.6), ("scse", "Adaptive 8"): Value(156.0)},
    claims=(Claim("SCSE is best at both budgets.", "scse", ("looped",), ("Adaptive 8", "Adaptive 16")),),
    figure="exit-depths, pareto",
)

STEERING = Suite(
    name="toy-steering",
    title="Anchor-started rollouts",
    arms=(LOOPED,),
    columns=(Column("Cosine", "steering", "cosine", digits=2, lower=None),),
    figure="anchor-start",
)

SUITES = {suite.name: suite for suite in (ABLATIONS, BIAS, ADAPTIVE, STEERING)}


def without_figures(suite: Suite) -> Suite:
    """For tests of what stands around the pictures, whose drawing takes seconds."""
    return replace(suite, figure="")


Numbers = Callable[[Arm, Column, int], float | None]


@cache
def _config(family: str, settings: tuple[tuple[str, object], ...], seed: int) -> TrainConfig:
    return assemble(family, {**dict(settings), "seed": seed})


def record(
    preset: Preset, arm: Arm, column: Column, seed: int, metrics: Mapping[str, float], split: str = "test", **facts
) -> Record:
    """The record of one cell and seed."""
    config = _config(arm.family, tuple(preset.settings(arm).items()), seed)
    asked = evaluation(preset, arm, column)
    assert asked is not None
    about = identity(config, config.steps, **{**asked, "split": split})
    return new_record(about, metrics, "abc", **facts)


def records_of(suite: Suite, numbers: Numbers, preset: Preset = MINI) -> list[Record]:
    """Records of every cell and seed for which there is a number, in the column's unit."""
    found = []
    for arm in suite.arms:
        for column in suite.columns:
            for seed in arm.seeds:
                value = numbers(arm, column, seed)
                if value is not None:
                    found.append(record(preset, arm, column, seed, {column.metric: value / column.unit}))
    return found


LEVELS = {"looped": 240.0, "tuned": 206.0, "unshared": 204.0, "scse": 201.0}


def perplexity(arm: Arm, column: Column, seed: int) -> float:
    """A plausible perplexity: seeds shift all arms alike, depth beyond 8 costs."""
    depth = column.depth or 8
    noise = random.Random(f"{arm.name} {depth} {seed}").gauss(0, 0.15)
    return LEVELS[arm.name] * (1 + 0.0035 * max(0, depth - 8) + 0.02 / depth) + 0.7 * seed + noise


def every_record() -> list[Record]:
    """All toy suites: the first with one seed of one arm missing, the others whole."""
    found = records_of(ABLATIONS, lambda a, c, s: None if (a.name, s) == ("tuned", 2) else perplexity(a, c, s))
    for depth in (1, 2, 4, 12, 16, 24, 32):
        column = Column("", depth=depth)
        found += [
            record(MINI, arm, column, seed, {"ppl": perplexity(arm, column, seed)})
            for arm in ABLATIONS.arms
            for seed in arm.seeds
        ]
    late = {"looped": 4.1, "tuned": 1.5, "scse": 0.0}
    early = {"looped": 1.0, "tuned": 0.4, "scse": 0.0}
    found += records_of(BIAS, lambda a, c, s: (late if c.depth else early)[a.name] * (1 + 0.01 * s))
    for arm in ADAPTIVE.arms:
        for column in ADAPTIVE.columns:
            if column.budget is not None:
                found += [adaptive_record(arm, column, seed) for seed in arm.seeds]
    cosine = {"cosine": 0.9}
    return [*found, *(record(MINI, LOOPED, STEERING.columns[0], s, cosine, panels=panels()) for s in LOOPED.seeds)]


def demo_records(suite: Suite, preset: Preset) -> list[Record]:
    """One seed of each cell of the demo."""
    level = {"looped": 240.0, "tuned-adapter": 206.0, "scse": 201.0}
    found = []
    for arm in suite.arms:
        for column in suite.columns:
            ppl = level[arm.name] * (1 + 0.3 / (column.depth or 8) + 0.004 * max(0, (column.depth or 8) - 8))
            if column.budget is not None:
                found.append(adaptive_record(arm, column, 0, preset, ppl))
            elif column.task == "perplexity":
                found.append(record(preset, arm, column, 0, {"ppl": ppl}))
            else:
                found.append(record(preset, arm, column, 0, {column.metric: level[arm.name] - 201.0}))
    return found


def adaptive_record(arm: Arm, column: Column, seed: int, preset: Preset = MINI, ppl: float | None = None) -> Record:
    draw = random.Random(f"{arm.name} {column.budget} {seed}")
    histogram = [0] * 48
    for _ in range(200):
        histogram[min(47, max(0, round(draw.gauss(column.budget or 0, 3)) - 1))] += 1
    if ppl is None:
        ppl = perplexity(arm, Column("", depth=round(column.budget or 0)), seed) * 1.004
    mean = sum((depth + 1) * count for depth, count in enumerate(histogram)) / 200
    return record(preset, arm, column, seed, {"ppl": ppl, "mean_depth": mean}, histogram=histogram)


def panels() -> dict[str, Any]:
    """Anchor-start arrays of three inputs and nine steps."""
    rays = [(1.0, 0.2), (-0.6, 0.8), (0.1, -1.0)]
    bend = 0.02
    paths = [[(t * x - bend * t * t * y, t * y + bend * t * t * x) for t in range(9)] for x, y in rays]
    dose = [[[(g * t * x, g * t * y) for t in range(9)] for x, y in rays] for g in (0.5, 1.0, 2.0)]
    return {
        "has_source": True,
        "drift": {"paths": paths, "rays": rays, "radius": 8.0, "trained": 8},
        "dose": {"gains": [0.5, 1.0, 2.0], "paths": dose},
    }
