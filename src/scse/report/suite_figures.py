"""The figures of a suite, by the kinds its declaration names. Each takes the evidence and gives a figure, or none."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scse.config import Shape
from scse.errors import unknown_name
from scse.experiments.statistics import summarise
from scse.experiments.suite import Arm, Column
from scse.flops import body_applications, body_flops, head_flops
from scse.report.anchor_start import draw_anchor_start
from scse.report.evidence import Evidence
from scse.report.figures import Line, draw_depth_response, new_figure, style
from scse.report.pictures import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STROKES = ("-", "--", ":", "-.")
PANELS_PER_ROW = 2

Drawing = Callable[[Evidence], "Figure | None"]


@dataclass(frozen=True)
class Kind:
    draw: Drawing
    caption: str


def pictures(evidence: Evidence) -> list[Picture]:
    """The pictures a suite asks for; `figure` may name several kinds."""
    suite = evidence.suite
    found = []
    for name in re.findall(r"[\w-]+", suite.figure):
        if name not in KINDS:
            raise unknown_name("kind of figure", name, KINDS)
        kind = KINDS[name]
        figure = kind.draw(evidence)
        description = f"{suite.title}. {kind.caption}"
        found.append(Picture(f"{identifier(suite.name)}-{name}", kind.caption, description, figure))
    return found


def identifier(name: str) -> str:
    """A suite's name as it may stand in file names and ids."""
    return re.sub(r"[^\w-]", "-", name)


def depth_response(evidence: Evidence) -> Figure | None:
    column = next((c for c in evidence.suite.columns if c.task == "perplexity" and c.depth is not None), None)
    if column is None:
        return None
    panels = {group: lines for group, arms in evidence.comparisons().items() if (lines := _lines(evidence, arms, column))}
    if not panels:
        return None
    trained = int(str(evidence.preset.settings(evidence.suite.arms[0]).get("max_loops", 8)))
    figure, places = _panels(panels, height=4.4)
    for axes, lines in zip(places, panels.values(), strict=True):
        draw_depth_response(axes, lines, trained)
        _tidy(axes)
    return figure


def _lines(evidence: Evidence, arms: Sequence[Arm], column: Column) -> list[Line]:
    lines = []
    seen: Counter[str] = Counter()
    for arm in arms:
        points = {}
        for depth in evidence.shelf.depths(arm, column):
            values = evidence.shelf.values(arm, replace(column, depth=depth))
            if all(map(math.isfinite, values.values())):
                points[depth] = summarise(values)
        if not points:
            continue
        seeds = min(len(point.seeds) for point in points.values())
        label = _plain(arm.label) + ("" if seeds == len(arm.seeds) else f" ({seeds} of {len(arm.seeds)} seeds)")
        mean = {depth: point.mean for depth, point in points.items()}
        sd = {depth: point.sd for depth, point in points.items()}
        lines.append(Line(label, arm.family, mean, sd, STROKES[seen[arm.family] % len(STROKES)]))
        seen[arm.family] += 1
    return lines


def bias_ratio(evidence: Evidence) -> Figure | None:
    """Bars at the last step, open markers at t = 0, a dashed line where forcing and update have the same energy."""
    columns = [c for c in evidence.suite.columns if c.metric == "bias_ratio" and c.depth is not None]
    if not columns:
        return None
    late = max(columns, key=lambda column: column.depth or 0)
    first = next((column for column in columns if column.depth == 0), None)
    panels = {
        group: shown
        for group, arms in evidence.comparisons().items()
        if (shown := [arm for arm in arms if evidence.cells[arm.name, late.header].values])
    }
    if not panels:
        return None
    bars = sum(map(len, panels.values()))
    figure = new_figure(7.2, 1.3 + 0.42 * bars + 0.5 * len(panels))
    grid = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, height_ratios=[len(arms) + 0.6 for arms in panels.values()]
    )
    for axes, (group, arms) in zip(grid[:, 0], panels.items(), strict=True):
        _bias_bars(axes, evidence, arms, late, first)
        axes.set_title(_plain(group), loc="left", fontsize=10, fontweight="bold")
    grid[-1, 0].set_xlabel("forcing bias: energy of b_t / energy of the update")
    _bias_legend(grid[0, 0], late, first)
    return figure


def _bias_bars(axes: Axes, evidence: Evidence, arms: Sequence[Arm], late: Column, first: Column | None) -> None:
    for place, arm in enumerate(arms):
        cell = evidence.cells[arm.name, late.header]
        found = summarise(dict(cell.values))
        colour, _ = style(arm.family)
        axes.barh(place, found.mean, height=0.6, color=colour, alpha=0.85)
        if len(found.seeds) > 1:
            axes.errorbar(found.mean, place, xerr=found.sd, color="0.2", capsize=3, lw=1)
        end = (max(found.mean + found.sd, cell.paper.mean if cell.paper else 0.0), place)
        axes.annotate(f"{found.mean:.2f}", end, (6, 0), textcoords="offset points", va="center", fontsize=9)
        if cell.paper is not None:
            axes.plot([cell.paper.mean] * 2, [place - 0.36, place + 0.36], color="black", lw=1.6, zorder=4)
        start = evidence.cells[arm.name, first.header].values if first else {}
        if start:
            mean = summarise(dict(start)).mean
            axes.plot(mean, place, "o", markersize=8, markerfacecolor="white", markeredgecolor=colour, zorder=5)
    axes.axvline(1, color="0.3", ls="--", lw=1, zorder=0)
    axes.set_yticks(range(len(arms)), [_plain(arm.label) for arm in arms])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    _tidy(axes)


def _bias_legend(axes: Axes, late: Column, first: Column | None) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = [Patch(color="0.6", label=f"t = {late.depth}")]
    if first:
        marker = {"marker": "o", "ls": "", "markersize": 8, "markerfacecolor": "white", "markeredgecolor": "0.4"}
        handles.append(Line2D([], [], label="t = 0", **marker))  # type: ignore[arg-type]
    handles.append(Line2D([], [], color="black", marker="|", ls="", markersize=11, label=f"paper, t = {late.depth}"))
    handles.append(Line2D([], [], color="0.3", ls="--", lw=1, label="equal energies"))
    axes.figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)


def exit_depths(evidence: Evidence) -> Figure | None:
    """After how many loops examples stop, for each mean budget: shares of all examples, all seeds together."""
    columns = {c.budget: c for c in evidence.suite.columns if c.budget is not None}
    panels: dict[str, list[tuple[Arm, np.ndarray]]] = {}
    for group, arms in evidence.comparisons().items():
        for budget, column in columns.items():
            shown = [(arm, shares) for arm in arms if (shares := _exit_shares(evidence, arm, column)) is not None]
            if shown:
                panels[f"{group}, mean budget {budget:g}".removeprefix(", ")] = shown
    if not panels:
        return None
    figure, places = _panels(panels, height=3.2)
    for axes, histograms in zip(places, panels.values(), strict=True):
        for arm, shares in histograms:
            colour, _ = style(arm.family)
            edges = np.arange(len(shares) + 1) + 0.5
            axes.stairs(100 * shares, edges, color=colour, lw=1.6, label=_plain(arm.label))
            axes.stairs(100 * shares, edges, color=colour, fill=True, alpha=0.12)
        axes.set_xlabel("loops taken")
        axes.set_ylabel("examples (%)")
        axes.legend(frameon=False, fontsize=8)
        _tidy(axes)
    return figure


def _exit_shares(evidence: Evidence, arm: Arm, column: Column) -> np.ndarray | None:
    latest = {r.seed: r.facts["histogram"] for r in evidence.shelf.records(arm, column) if "histogram" in r.facts}
    if not latest:
        return None
    # Runs of one suite share a ceiling; where they do not, shorter histograms end in zeros.
    total = np.zeros(max(map(len, latest.values())))
    for histogram in latest.values():
        total[: len(histogram)] += histogram
    return total / max(total.sum(), 1)


def pareto(evidence: Evidence) -> Figure | None:
    """Perplexity against the paper's FLOP proxy, head included: lines over depths, open markers for adaptive depth."""
    fixed = next((c for c in evidence.suite.columns if c.task == "perplexity" and c.depth is not None), None)
    adaptive = [c for c in evidence.suite.columns if c.budget is not None]
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
    figure, places = _panels(panels, height=4.2)
    for axes, drawn in zip(places, panels.values(), strict=True):
        for arm, along, apart in drawn:
            colour, marker = style(arm.family)
            axes.plot(*_xy(along), "-", color=colour, marker=marker, markersize=6, label=_plain(arm.label))
            axes.plot(*_xy(apart), ls="", color=colour, marker=marker, markersize=8, fillstyle="none")
        _plain_log_axis(axes)
        axes.set_xlabel("MFLOPs per token (proxy, head included; log scale)")
        axes.set_ylabel("perplexity")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
        _tidy(axes)
    return figure


Cost = list[tuple[float, float]]


def _costs(evidence: Evidence, arm: Arm, columns: Iterable[Column]) -> Cost:
    """(FLOPs, value) of each column, means over seeds."""
    points = []
    for column in columns:
        records = evidence.shelf.records(arm, column)
        values = evidence.shelf.values(arm, column)
        if not records or not all(map(math.isfinite, values.values())):
            continue
        shape = Shape(**records[-1].identity["model"]["shape"])
        depths = [r.metrics["mean_depth"] if r.depth is None else r.depth for r in records]
        bodies = body_applications(arm.family, float(np.mean(depths)))
        points.append((bodies * body_flops(shape) + head_flops(shape), summarise(values).mean))
    return sorted(points)


def _xy(points: Cost) -> tuple[list[float], list[float]]:
    return [1e-6 * cost for cost, _ in points], [value for _, value in points]


def anchor_start(evidence: Evidence) -> Figure | None:
    """The first record of a steering diagnosis that carries its panels."""
    for column in evidence.suite.columns:
        for arm in evidence.suite.arms:
            for record in evidence.shelf.records(arm, column) if column.task == "steering" else ():
                if "panels" in record.facts:
                    return draw_anchor_start(record.facts["panels"], arm)
    return None


def _panels(titles: Iterable[str], height: float) -> tuple[Figure, list[Axes]]:
    """A figure with one set of axes per title, in rows."""
    names = list(titles)
    across = min(len(names), PANELS_PER_ROW)
    rows = math.ceil(len(names) / across)
    figure = new_figure(7.2 if across == 1 else 10.0, height * rows)
    places = []
    for position, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, across, position)
        axes.set_title(_plain(name), loc="left", fontsize=10, fontweight="bold")
        places.append(axes)
    return figure, places


def _plain(text: str) -> str:
    """Text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def _plain_log_axis(axes: Axes) -> None:
    """A logarithmic axis marked 1, 2, 5, 10, …"""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


KINDS: Mapping[str, Kind] = {
    "depth-response": Kind(
        depth_response,
        "Test perplexity over evaluation depth, one set of weights per run; bands are one standard deviation over "
        "seeds, stars mark minima, the shaded depths are beyond those trained.",
    ),
    "bias-ratio": Kind(
        bias_ratio,
        "Forcing-bias energy ratio R_t. Bars: last step; open circles: first step; black ticks: the paper's value. At "
        "the dashed line the forcing at the anchor has as much energy as the update that was made.",
    ),
    "anchor-start": Kind(
        anchor_start,
        "Rollouts that start at the anchor: drift along the forcing, and the response to the injection gain.",
    ),
    "exit-depths": Kind(
        exit_depths, "After how many loops examples stop, at thresholds calibrated for a mean budget; seeds together."
    ),
    "pareto": Kind(
        pareto, "Quality against cost. Lines join fixed depths, open markers are adaptive; costs are the FLOP proxy."
    ),
}
