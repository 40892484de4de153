"""What depth costs: where examples stop, and perplexity against the FLOP proxy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from scse.config import Shape
from scse.families import FAMILIES
from scse.flops import token_flops
from scse.records.statistics import summarise
from scse.report.figures import style
from scse.report.panels import panelled, plain_log_axis, shared_legend, tidy
from scse.report.wording import plain
from scse.suites.evidence import Evidence
from scse.suites.suite import Arm, Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cost = list[tuple[float, float]]


def exit_depths(evidence: Evidence, room: float) -> Figure | None:
    """After how many loops examples stop, for each mean budget: shares of all examples, all seeds together."""
    columns = {c.budget: c for c in evidence.suite.columns if c.budget is not None and c.metric == "ppl"}
    panels: dict[str, list[tuple[Arm, np.ndarray]]] = {}
    for group, arms in evidence.comparisons().items():
        for budget, column in columns.items():
            shown = [(arm, shares) for arm in arms if (shares := _exit_shares(evidence, arm, column)) is not None]
            if shown:
                panels[f"{group}, mean budget {budget:g}".removeprefix(", ")] = shown
    if not panels:
        return None
    figure, places = panelled(panels, room, height=3.2, per_row=3)
    for axes, histograms in zip(places, panels.values(), strict=True):
        for arm, shares in histograms:
            colour, _ = style(arm.family)
            edges = np.arange(len(shares) + 1) + 0.5
            axes.stairs(100 * shares, edges, color=colour, lw=1.6, label=plain(arm.label))
            axes.stairs(100 * shares, edges, color=colour, fill=True, alpha=0.12)
        axes.set_xlabel("loops taken")
        axes.set_ylabel("examples (%)")
        tidy(axes)
    shared_legend(figure)
    return figure


def _exit_shares(evidence: Evidence, arm: Arm, column: Column) -> np.ndarray | None:
    latest = {r.seed: r.facts["histogram"] for r in evidence.shelf.records(arm, column) if "histogram" in r.facts}
    if not latest:
        return None
    # Runs of one suite share a ceiling; where they do not, shorter histograms end in zeros.
    total = np.zeros(max(map(len, latest.values())))
    for histogram in latest.values():
        total[: len(histogram)] += histogram
    shares: np.ndarray = total / max(total.sum(), 1)
    return shares


def pareto(evidence: Evidence, room: float) -> Figure | None:
    """Perplexity against the paper's FLOP proxy, head included: lines over depths, open markers for adaptive depth."""
    fixed = next((c for c in evidence.suite.columns if c.task == "perplexity" and c.depth is not None), None)
    adaptive = [c for c in evidence.suite.columns if c.budget is not None and c.metric == "ppl"]
    panels: dict[str, list[tuple[Arm, Cost, Cost]]] = {}
    for group, arms in evidence.comparisons().items():
        for arm in arms:
            depths = evidence.shelf.depths(arm, fixed) if fixed else []
            along = _costs(evidence, arm, [replace(fixed, depth=depth) for depth in depths if fixed])
            apart = _costs(evidence, arm, adaptive)
            if along or apart:
                panels.setdefault(group, []).append((arm, along, apart))
    if not panels:
        return None
    figure, places = panelled(panels, room, height=4.2)
    for axes, drawn in zip(places, panels.values(), strict=True):
        for arm, along, apart in drawn:
            colour, marker = style(arm.family)
            axes.plot(*_xy(along), "-", color=colour, marker=marker, markersize=6, label=plain(arm.label))
            axes.plot(*_xy(apart), ls="", color=colour, marker=marker, markersize=8, fillstyle="none")
        plain_log_axis(axes)
        axes.set_xlabel("MFLOPs per token, log scale")
        axes.set_ylabel("perplexity")
        axes.grid(alpha=0.25)
        tidy(axes)
    shared_legend(figure)
    return figure


def _costs(evidence: Evidence, arm: Arm, columns: Iterable[Column]) -> Cost:
    """(FLOPs, value) of each column, means over seeds."""
    points = []
    for column in columns:
        records = evidence.shelf.records(arm, column)
        values = evidence.shelf.values(arm, column)
        if not records or not all(map(math.isfinite, values.values())):
            continue
        shape = Shape.from_dict(records[-1].identity["model"]["shape"])
        depths = [r.metrics["mean_depth"] if r.depth is None else r.depth for r in records]
        bodies = FAMILIES.find(arm.family).body_applications(float(np.mean(depths)))
        points.append((token_flops(shape, bodies), summarise(values).mean))
    return sorted(points)


def _xy(points: Cost) -> tuple[list[float], list[float]]:
    return [1e-6 * cost for cost, _ in points], [value for _, value in points]
