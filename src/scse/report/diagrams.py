"""Two drawings of what the paper is about: the additive and the source-centered update, as fields and as circuits."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scse.families import LOOPED, SCSE
from scse.report.circuit import Circuit
from scse.report.figures import PAGE, PHONE, new_figure, side_by_side, style
from scse.report.pictures import Picture, Rendered, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ADDITIVE, CENTERED = style(LOOPED)[0], style(SCSE)[0]
INK, SOFT = "#222222", "#8a8a8a"
FORCING = np.array([0.42, 0.26])
STEP = 0.5


@cache
def diagrams() -> tuple[Rendered, ...]:
    """Both, drawn once: no record changes them."""
    return render(geometry()), render(circuits())


def geometry() -> Picture:
    """One toy field twice: with a constant forcing added, and without."""
    caption = (
        "The same field of updates in two dimensions, with and without a constant forcing (an illustration, not data). "
        "With an additive source, a state at the anchor (cross) moves away; without, it stays, while a state that "
        "starts elsewhere (open circle) still moves in both."
    )
    drawn = map(_geometry, (PAGE, PHONE))
    return Picture("update-geometry", caption, f"Two vector fields around the anchor. {caption}", *drawn)


def _geometry(room: float) -> Figure:
    figure, (left, right) = side_by_side(room, 4.7 if room == PAGE else 4.0)
    space = " " if room == PAGE else "\n"
    _field(left, FORCING, ADDITIVE, f"Additive source:{space}the anchor is pushed at every step")
    _field(right, np.zeros(2), CENTERED, f"Source-centered:{space}the anchor is a fixed point")
    _label(left, "b(e) = T(0; e) ≠ 0", FORCING * STEP / 2)
    _label(right, "b(e) = T(0; e) = 0", np.zeros(2))
    return figure


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
    """One step of each update, with what is computed once before the loop."""
    caption = (
        "One loop of each update. Additive: the source enters the block at every step. Source-centered: the source "
        "sets the anchor and the start once; the loop sees only the deviation, and the mask closes at zero deviation."
    )
    return Picture("update-circuits", caption, f"Two block diagrams. {caption}", *map(_circuits, (PAGE, PHONE)))


def _circuits(room: float) -> Figure:
    """Across a page the signal runs to the right, on a telephone downwards."""
    upright = room < PAGE
    figure = new_figure(room, 12 if upright else 5.4)
    upper, lower = figure.subplots(2, 1)
    _additive_circuit(Circuit(upper, "Additive source", ADDITIVE, upright))
    _centered_circuit(Circuit(lower, "Source-centered", CENTERED, upright))
    return figure


def _additive_circuit(circuit: Circuit) -> None:
    circuit.box("e", (0.7, 2.0), "$e$", SOFT)
    circuit.box("h0", (2.3, 2.9), "$h_0$", SOFT)
    circuit.box("source", (2.3, 0.9), "$\\alpha W_{in}\\,e$", ADDITIVE)
    circuit.box("state", (4.5, 2.0), "$h_t$", INK, width=0.6)
    circuit.box("inject", (5.45, 2.0), "+", ADDITIVE, width=0.5)
    circuit.box("block", (6.5, 2.0), "$B_\\theta$", INK, width=0.8)
    circuit.box("scale", (7.6, 2.0), "$\\times\\, s$", INK, width=0.7)
    circuit.wire("source", (5.45, 0.9), to="inject", colour=ADDITIVE, width=2.6)
    circuit.chain("e", "h0", "state")
    circuit.chain("e", "source")
    circuit.chain("state", "inject", "block", "scale")
    _finish(circuit, "scale", "$h_{t+1}$", "readout of $h_T$")
    circuit.aside((3.1, 0.5), "again at every step")


def _centered_circuit(circuit: Circuit) -> None:
    circuit.box("e", (0.7, 2.0), "$e$", SOFT)
    circuit.box("start", (2.3, 2.9), "$\\Delta_0 = H_0(e) - h^{*}$", SOFT, width=1.9)
    circuit.box("anchor", (2.3, 0.9), "$h^{*} = e + a_\\omega(e)$", CENTERED, width=1.9)
    circuit.box("state", (4.5, 2.0), "$\\Delta_t$", INK, width=0.6)
    circuit.box("block", (6.0, 2.0), "$G_\\theta$", INK, width=0.8)
    circuit.box("scale", (7.4, 2.0), "$\\times\\, m\\, s$", CENTERED, width=0.9)
    circuit.chain("e", "start", "state")
    circuit.chain("e", "anchor")
    circuit.chain("state", "block", "scale")
    _finish(circuit, "scale", "$\\Delta_{t+1}$", "readout of $h^{*} + \\Delta_T$")
    circuit.wire("anchor", (10.6, 0.9), to="readout", colour=CENTERED, width=1.6)
    circuit.aside((5.0, 0.5), "once, past the loop")


def _finish(circuit: Circuit, last: str, state: str, readout: str) -> None:
    """What both circuits end with: the sum, the way around the block, the way back, the readout."""
    circuit.box("sum", (8.7, 2.0), "+", INK, width=0.5)
    circuit.box("readout", (10.6, 2.0), readout, SOFT, width=1.8)
    circuit.chain(last, "sum", "readout")
    circuit.wire("state", (4.6, 2.72), (8.6, 2.72), to="sum", colour=INK)
    circuit.wire("sum", (8.8, 3.3), (4.4, 3.3), to="state", colour=INK)
    circuit.name((6.6, 3.48), state)
