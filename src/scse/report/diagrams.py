"""Two drawings of what the paper is about: the additive and the source-centered update, as fields and as circuits."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scse.report.figures import new_figure, style
from scse.report.pictures import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ADDITIVE, CENTERED = style("looped")[0], style("scse")[0]
INK, SOFT = "#222222", "#8a8a8a"
FORCING = np.array([0.42, 0.26])
STEP = 0.5


def diagrams() -> list[Picture]:
    return [geometry(), circuits()]


def geometry() -> Picture:
    """One toy field twice: with a constant forcing added, and without."""
    figure = new_figure(10, 4.7)
    left, right = figure.subplots(1, 2)
    _field(left, FORCING, ADDITIVE, "Additive source: the anchor is pushed at every step")
    _field(right, np.zeros(2), CENTERED, "Source-centered: the anchor is a fixed point")
    _label(left, "b(e) = T(0; e) ≠ 0", FORCING * STEP / 2)
    _label(right, "b(e) = T(0; e) = 0", np.zeros(2))
    caption = (
        "The same field of updates in two dimensions, with and without a constant forcing (an illustration, not data). "
        "With an additive source, a state at the anchor (cross) moves away; without, it stays, while a state that "
        "starts elsewhere (open circle) still moves in both."
    )
    return Picture("update-geometry", caption, f"Two vector fields around the anchor. {caption}", figure)


def _label(axes: Axes, text: str, target: np.ndarray) -> None:
    axes.annotate(
        text,
        tuple(target),
        (-1.5, 1.3),
        fontsize=11,
        color=INK,
        bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": "#dddddd"},
        arrowprops={"arrowstyle": "-", "color": SOFT, "shrinkB": 6},
        zorder=7,
    )


def _motion(delta: np.ndarray, forcing: np.ndarray) -> np.ndarray:
    """A turn around the origin that settles on a ring of radius one, plus the forcing. Shape [..., 2]."""
    x, y = delta[..., 0], delta[..., 1]
    pull = 1 - x**2 - y**2
    turning = np.stack([pull * x - 1.1 * y, pull * y + 1.1 * x], axis=-1)
    return np.asarray(0.55 * turning + forcing)


def _rollout(start: np.ndarray, forcing: np.ndarray, steps: int) -> np.ndarray:
    states = [start]
    for _ in range(steps):
        states.append(states[-1] + STEP * _motion(states[-1], forcing))
    return np.array(states)


def _field(axes: Axes, forcing: np.ndarray, colour: str, title: str) -> None:
    grid = np.linspace(-1.6, 1.6, 40)
    points = np.stack(np.meshgrid(grid, grid), axis=-1)
    flow = _motion(points, forcing)
    axes.streamplot(grid, grid, flow[..., 0], flow[..., 1], color="#c9c9c9", linewidth=0.8, density=1.0, arrowsize=0.7)
    ordinary = _rollout(np.array([-1.35, -0.55]), forcing, 9)
    axes.plot(*ordinary.T, "-o", color=colour, markersize=4, lw=1.8)
    axes.plot(*ordinary[0], "o", color=colour, markerfacecolor="white", markersize=9, markeredgewidth=1.8)
    axes.annotate("$\\Delta_0$", ordinary[0], (-8, 11), textcoords="offset points", fontsize=12, color=INK)
    if forcing.any():
        drift = _rollout(np.zeros(2), forcing, 4)
        for start, end in pairwise(drift):
            axes.annotate(
                "", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.8, "shrinkA": 0, "shrinkB": 0}
            )
    axes.plot(0, 0, marker="X", markersize=13, color=INK, markeredgecolor="white", zorder=6)
    axes.annotate("$h^{*}$", (0, 0), (-26, -14), textcoords="offset points", fontsize=13, color=INK)
    axes.set(xlim=(-1.65, 1.65), ylim=(-1.5, 1.6), xticks=[], yticks=[])
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=colour)
    for spine in axes.spines.values():
        spine.set_color("#dddddd")


def circuits() -> Picture:
    """One step of each update, with what is computed once to the left of the loop."""
    figure = new_figure(10, 5.4)
    upper, lower = figure.subplots(2, 1)
    _additive_circuit(upper)
    _centered_circuit(lower)
    caption = (
        "One loop of each update. Additive: the source enters the block at every step. Source-centered: the source "
        "sets the anchor and the start once; the loop sees only the deviation, and the mask closes at zero deviation."
    )
    return Picture("update-circuits", caption, f"Two block diagrams. {caption}", figure)


def _additive_circuit(axes: Axes) -> None:
    _canvas(axes, "Additive source", ADDITIVE)
    _loop(axes, ADDITIVE)
    _box(axes, 0.7, 2.0, "$e$", SOFT)
    _box(axes, 2.3, 2.9, "$h_0$", SOFT)
    _box(axes, 2.3, 0.9, "$\\alpha W_{in}\\,e$", ADDITIVE)
    _box(axes, 4.5, 2.0, "$h_t$", INK, width=0.6)
    _box(axes, 5.45, 2.0, "+", ADDITIVE, width=0.5)
    _box(axes, 6.5, 2.0, "$B_\\theta$", INK, width=0.8)
    _box(axes, 7.6, 2.0, "$\\times\\, s$", INK, width=0.7)
    _arrow(axes, (1.15, 2.2), (1.85, 2.75))
    _arrow(axes, (1.15, 1.8), (1.85, 1.05))
    _arrow(axes, (2.75, 2.75), (4.2, 2.2))
    axes.plot([2.75, 5.45], [0.9, 0.9], color=ADDITIVE, lw=2.6, solid_capstyle="butt")
    _arrow(axes, (5.45, 0.87), (5.45, 1.7), ADDITIVE, width=2.6)
    _across(axes, (4.8, 5.2), (5.7, 6.1), (6.9, 7.25), (7.95, 8.45))
    _finish(axes, "$h_{t+1}$", "readout of $h_T$")
    axes.text(3.1, 0.5, "again at every step", color=ADDITIVE, fontsize=10, style="italic")


def _centered_circuit(axes: Axes) -> None:
    _canvas(axes, "Source-centered", CENTERED)
    _loop(axes, CENTERED)
    _box(axes, 0.7, 2.0, "$e$", SOFT)
    _box(axes, 2.3, 2.9, "$\\Delta_0 = H_0(e) - h^{*}$", SOFT, width=1.9)
    _box(axes, 2.3, 0.9, "$h^{*} = e + a_\\omega(e)$", CENTERED, width=1.9)
    _box(axes, 4.5, 2.0, "$\\Delta_t$", INK, width=0.6)
    _box(axes, 6.0, 2.0, "$G_\\theta$", INK, width=0.8)
    _box(axes, 7.4, 2.0, "$\\times\\, m\\, s$", CENTERED, width=0.9)
    _arrow(axes, (1.1, 2.3), (1.5, 2.6))
    _arrow(axes, (1.1, 1.7), (1.5, 1.22))
    _arrow(axes, (3.25, 2.75), (4.2, 2.2))
    _across(axes, (4.8, 5.6), (6.4, 6.95), (7.85, 8.45))
    axes.plot([3.25, 10.6], [0.9, 0.9], color=CENTERED, lw=1.6)
    _arrow(axes, (10.6, 0.88), (10.6, 1.7), CENTERED, width=1.6)
    _finish(axes, "$\\Delta_{t+1}$", "readout of $h^{*} + \\Delta_T$")
    axes.text(5.0, 0.5, "once, past the loop", color=CENTERED, fontsize=10, style="italic")


def _finish(axes: Axes, state: str, readout: str) -> None:
    """What both circuits end with: the sum, the way around the block, the way back, the readout."""
    _box(axes, 8.7, 2.0, "+", INK, width=0.5)
    _box(axes, 10.6, 2.0, readout, SOFT, width=1.8)
    _across(axes, (8.95, 9.7))
    axes.plot([4.62, 4.62, 8.6], [2.28, 2.72, 2.72], color=INK, lw=1.4)
    _arrow(axes, (8.6, 2.74), (8.6, 2.3))
    axes.plot([8.8, 8.8, 4.4], [2.28, 3.3, 3.3], color=INK, lw=1.4)
    _arrow(axes, (4.4, 3.32), (4.4, 2.3))
    axes.text(6.6, 3.48, state, ha="center", va="center", fontsize=11, color=INK)


def _across(axes: Axes, *spans: tuple[float, float]) -> None:
    for left, right in spans:
        _arrow(axes, (left, 2.0), (right, 2.0))


def _canvas(axes: Axes, title: str, colour: str) -> None:
    axes.set(xlim=(0, 11.6), ylim=(0.2, 4.3))
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=colour)


def _loop(axes: Axes, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    frame = FancyBboxPatch(
        (4.05, 1.45), 5.1, 2.3, "round,pad=0.08,rounding_size=0.2", facecolor=colour, alpha=0.08, edgecolor="none"
    )
    axes.add_patch(frame)
    axes.text(9.15, 3.92, "T times", ha="right", fontsize=10, color=colour)


def _box(axes: Axes, x: float, y: float, text: str, colour: str, width: float = 0.9) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0.02,rounding_size=0.12"
    size = (width - 0.06, 0.56)
    corner = (x - size[0] / 2, y - size[1] / 2)
    axes.add_patch(FancyBboxPatch(corner, *size, shape, facecolor="white", edgecolor=colour, lw=1.6, zorder=3))
    axes.text(x, y - 0.02, text, ha="center", va="center", fontsize=10, color=INK, zorder=4)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, width: float = 1.4
) -> None:
    style_of = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style_of)
