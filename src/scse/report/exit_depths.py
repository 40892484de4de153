"""Required depth on x, exit depth on y: how many loops were taken where so many are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scse.report.anchor_start import INPUT_COLOURS as COLOURS
from scse.report.figures import COLUMN, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP"


def draw_exit_depths(lines: Mapping[str, Mapping[int, float]], step: str, taken: str) -> Figure:
    """Mean loops taken over the steps that an answer needs, a line for each label; `step` is the problem's word.

    The dashed line is one loop a step, the fewest that any model that takes a step a loop can do with.
    """
    figure = new_figure(width=COLUMN)
    axes = figure.subplots()
    needed = sorted({steps for line in lines.values() for steps in line})
    axes.plot(needed, needed, "--", color="0.5", linewidth=1, label=f"one loop a {step}")
    for number, (label, line) in enumerate(lines.items()):
        where, look = sorted(line), number % len(COLOURS)
        means = [line[steps] for steps in where]
        axes.plot(where, means, "-", color=COLOURS[look], marker=MARKERS[look], label=label, linewidth=1.6)
    axes.set_xlabel(f"{step}s needed")
    axes.set_ylabel(taken)
    axes.set_xticks(needed)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    return figure
