"""Forcing-bias energy ratios as bars, a panel per protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scse.records.statistics import summarise
from scse.report.figures import COLUMN, PHONE, new_figure, style
from scse.report.panels import folded, tidy
from scse.suites.evidence import Evidence
from scse.suites.suite import Arm, Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = 0.38  # of the figure's width
UNDERLAY = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}


def bias_ratio(evidence: Evidence, room: float) -> Figure | None:
    """Bars at the last step, open markers at t = 0, a dashed line where forcing and update have the same energy."""
    columns = [c for c in evidence.suite.columns if c.metric == "bias_ratio" and c.depth is not None]
    if not columns:
        return None
    late = max(columns, key=lambda column: column.depth or 0)
    first = next((column for column in columns if column.depth == 0), None)
    panels = {
        group: shown
        for group, arms in evidence.comparisons().items()
        if (shown := [arm for arm in arms if evidence.cells[arm.name, late.header].drawable])
    }
    if not panels:
        return None
    bars = sum(map(len, panels.values()))
    pitch, letters = (0.42, 10) if room > PHONE else (0.52, 8)
    figure = new_figure(min(room, COLUMN), 1.3 + pitch * bars + 0.5 * len(panels))
    grid = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, height_ratios=[len(arms) + 0.6 for arms in panels.values()]
    )
    for axes, (group, arms) in zip(grid[:, 0], panels.items(), strict=True):
        _bias_bars(axes, evidence, arms, late, first)
        labels = [folded(arm.label, 10 / letters * LABELS * figure.get_figwidth()) for arm in arms]
        axes.set_yticks(range(len(arms)), labels, fontsize=letters)
        axes.set_title(folded(group, (1 - LABELS) * figure.get_figwidth()), loc="left", fontsize=10, fontweight="bold")
    drawn = [evidence.cells[arm.name, late.header] for arms in panels.values() for arm in arms]
    longest = max(max(*cell.values.values(), cell.paper.mean if cell.paper else 0.0) for cell in drawn)
    ends = 1.45 if room > PHONE else 2.4  # room for the numbers at the ends of the bars
    grid[-1, 0].set_xlim(0, ends * max(longest, 1.0))
    grid[-1, 0].set_xlabel(folded("energy of the forcing / energy of the update", (1 - LABELS) * figure.get_figwidth()))
    _bias_legend(figure, late, first, any(cell.paper for cell in drawn))
    return figure


def _bias_bars(axes: Axes, evidence: Evidence, arms: Sequence[Arm], late: Column, first: Column | None) -> None:
    for place, arm in enumerate(arms):
        cell = evidence.cells[arm.name, late.header]
        found = summarise(dict(cell.values))
        colour, _ = style(arm.family)
        axes.barh(place, found.mean, height=0.6, color=colour, alpha=0.85)
        if len(found.seeds) > 1:
            axes.errorbar(found.mean, place, xerr=found.sd, color="0.2", capsize=3, lw=1)
        text, end = f"{found.mean:.2f}", found.mean + found.sd
        if cell.paper is not None:
            axes.plot([cell.paper.mean] * 2, [place - 0.36, place + 0.36], color="black", lw=1.6, zorder=4)
            text, end = f"{text}  (paper {cell.paper.mean:.2f})", max(end, cell.paper.mean)
        start = evidence.cells[arm.name, first.header] if first else None
        if start and start.drawable:
            mean = summarise(dict(start.values)).mean
            axes.plot(mean, place, "o", markersize=8, markerfacecolor="white", markeredgecolor=colour, zorder=5)
            end = max(end, mean)  # the number stands behind the circle, not below it
        axes.annotate(text, (end, place), (8, 0), textcoords="offset points", va="center", fontsize=9, bbox=UNDERLAY)
    axes.axvline(1, color="0.3", ls="--", lw=1, zorder=0)
    axes.invert_yaxis()
    tidy(axes)


def _bias_legend(figure: Figure, late: Column, first: Column | None, paper: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = [Patch(color="0.6", label=f"t = {late.depth}")]
    if first:
        marker = {"marker": "o", "ls": "", "markersize": 8, "markerfacecolor": "white", "markeredgecolor": "0.4"}
        handles.append(Line2D([], [], label="t = 0", **marker))  # type: ignore[arg-type]
    if paper:
        tick = {"color": "black", "marker": "|", "ls": "", "markersize": 11}
        handles.append(Line2D([], [], label=f"paper, t = {late.depth}", **tick))  # type: ignore[arg-type]
    handles.append(Line2D([], [], color="0.3", ls="--", lw=1, label="equal energies"))
    columns = 2 if figure.get_figwidth() <= PHONE else 4
    figure.legend(handles=handles, loc="outside upper right", ncols=columns, frameon=False, fontsize=9)
