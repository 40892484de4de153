"""Figures. A method keeps its colour and marker everywhere; the palette is Okabe and Ito's, for all kinds of sight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scse.families import FAMILIES
from scse.report.wording import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Widths in inches: a figure of several panels across a page, one of a single panel, one on a telephone.
PAGE, COLUMN, PHONE = 10.0, 7.2, 3.7
HEADROOM = 0.16  # of a depth response's height, above the highest point


def style(family: str) -> tuple[str, str]:
    """Colour and marker of a family, the same in every figure."""
    row = FAMILIES.find(family)
    return row.colour, row.marker


@dataclass(frozen=True)
class Line:
    """A curve over depths: the mean and, over several seeds, the deviation around it."""

    label: str
    family: str
    mean: Mapping[int, float]
    sd: Mapping[int, float] = field(default_factory=dict)
    stroke: str = "-"


def draw_depth_response(axes: Axes, lines: Sequence[Line], trained: int) -> None:
    """Perplexity against loop depth, on the paper's axes: log2 depth, shifted-log perplexity, minima starred."""
    reach = _draw_lines(axes, lines, trained)
    for line in lines:
        best, colour = min(line.mean, key=lambda t: (line.mean[t], t)), style(line.family)[0]
        axes.plot(best, line.mean[best], marker="*", markersize=15, color=colour, markeredgecolor="white", zorder=5)
    _shifted_log_axis(axes, reach)


def draw_accuracy_response(axes: Axes, lines: Sequence[Line], trained: int) -> None:
    """Right answers in percent against loop depth."""
    _draw_lines(axes, lines, trained)
    axes.set_ylim(-3, 108)
    axes.set_ylabel("right answers, %")


def _draw_lines(axes: Axes, lines: Sequence[Line], trained: int) -> list[float]:
    """Every line with its band over depth; all ends of the bands."""
    reach: list[float] = []
    for line in lines:
        colour, marker = style(line.family)
        depths = sorted(line.mean)
        means = [line.mean[t] for t in depths]
        axes.plot(depths, means, line.stroke, color=colour, marker=marker, label=line.label, linewidth=1.6)
        low, high = ([line.mean[t] + side * line.sd.get(t, 0.0) for t in depths] for side in (-1, 1))
        axes.fill_between(depths, low, high, color=colour, alpha=0.15, lw=0)
        reach += [*low, *high]
    _depth_axis(axes, sorted({t for line in lines for t in line.mean}), trained)
    axes.grid(axis="y", alpha=0.25)
    return reach


def _depth_axis(axes: Axes, depths: list[int], trained: int) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(t) for t in depths])
    axes.set_xlabel("loop depth T at evaluation (log scale)")
    if depths[-1] > trained:
        axes.axvspan(trained, depths[-1] * 1.1, color="0.5", alpha=0.12, lw=0)
        axes.text(
            trained * 1.06, 0.98, "deeper than trained", transform=axes.get_xaxis_transform(), va="top", fontsize=8
        )
    axes.set_xlim(depths[0] / 1.1, depths[-1] * 1.1)


def _shifted_log_axis(axes: Axes, values: list[float]) -> None:
    """log(PPL − c) with c a little below the smallest value: differences near the best stay visible.

    Above the curves there is room for words.
    """
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    low, high = min(values), max(values)
    span = max(high - low, 0.01 * low)
    shift = low - 0.25 * span
    axes.set_yscale(
        "function",
        functions=(lambda y: np.log(np.maximum(y - shift, 1e-12)), lambda u: np.exp(u) + shift),
    )
    bottom, top = np.log(0.25 * span), np.log(high - shift)
    reach = (top - bottom) / (1 - HEADROOM - 0.05)
    axes.set_ylim(*(np.exp([bottom - 0.05 * reach, top + HEADROOM * reach]) + shift))
    axes.yaxis.set_major_locator(MaxNLocator(8))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylabel(f"perplexity (scale: log(PPL {'−' if shift > 0 else '+'} {abs(shift):.1f}))")


def pareto_figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Perplexity against FLOPs per token and against time: lines join fixed depths, open markers are adaptive."""
    figure = new_figure(width=10)
    costs = (("flops", 1e-6, "MFLOPs per token"), ("ms_per_ktoken", 1.0, "ms per 1,000 tokens"))
    for position, (cost, unit, label) in enumerate(costs, start=1):
        axes = figure.add_subplot(1, 2, position)
        for run in dict.fromkeys(row["run"] for row in rows):
            colour, marker = style(next(row["family"] for row in rows if row["run"] == run))
            for kind, line, fill in (("fixed", "-", "full"), ("adaptive", "", "none")):
                chosen = [row for row in rows if row["run"] == run and row["kind"] == kind]
                x, y = [unit * row[cost] for row in chosen], [row["ppl"] for row in chosen]
                name = f"{plain(run)} ({kind})" if chosen else None
                axes.plot(x, y, line, color=colour, marker=marker, fillstyle=fill, markersize=7, label=name)
        axes.set_xscale("log")
        axes.set_xlabel(f"{label} (log scale)")
        axes.set_ylabel("perplexity")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def new_figure(width: float, height: float = 4.2) -> Figure:
    """A figure that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def side_by_side(room: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure of two panels, one above the other where the room is not that of a page."""
    stacked = room < PAGE
    figure = new_figure(min(room, PAGE), height * (2 if stacked else 1))
    return figure, figure.subplots(*((2, 1) if stacked else (1, 2)))


def say(axes: Axes, text: str) -> None:
    """A panel that has nothing to draw says why."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=11, color="#009E73")
    axes.set_xticks([])
    axes.set_yticks([])


def lay_out(figure: Figure) -> None:
    """Give everything its place, once: matplotlib would do so again, and draw a second time, for every file."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure; the same numbers give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lay_out(figure)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
