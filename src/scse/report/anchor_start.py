"""Anchor-start panels, from the arrays a steering record carries under `facts["panels"]`.

drift.paths     [input][t][2]        rollouts from Δ = 0, projected on two principal directions
drift.rays      [input][2]           the forcing b(e) of each input in the same projection
drift.radius    number               mean distance from the anchor at the largest trained depth, same projection
drift.trained   number               that depth
dose.gains      [gain]               factors on the injection gain, ascending, with 1 among them
dose.paths      [gain][input][t][2]  displacement from the rollout without injection, its own projection
has_source      bool                 whether there is an injection to turn
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scse.report.figures import PAGE, say, side_by_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Legends stand where no path can run.
BELOW: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.17), "frameon": False, "fontsize": 8}
INPUT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito


def draw_anchor_start(panels: Mapping[str, Any], room: float = PAGE) -> Figure:
    """Trajectories from the anchor against their forcing rays, and the injection-gain intervention."""
    figure, (left, right) = side_by_side(room, 4.9)
    moves = bool(np.any(panels["drift"]["paths"]))
    if moves:
        _drift(left, panels["drift"])
    else:
        say(left, "$b_t(e) = 0$: nothing moves,\nthe anchor is a fixed point")
    if not panels["has_source"]:
        say(right, "no injection with a gain of its own:\nnothing to turn")
    elif not moves:
        say(right, "the anchor is held:\nno gain of the source moves it")
    else:
        _dose(right, panels["dose"])
    for axes, title in ((left, "(a) motion from the anchor"), (right, "(b) response to the injection gain")):
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        if axes.lines:
            axes.set_aspect("equal", adjustable="datalim")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel("first principal direction")
            axes.set_ylabel("second principal direction")
            axes.plot(0, 0, marker="X", markersize=10, color="black", markeredgecolor="white", zorder=6)
    return figure


def _drift(axes: Axes, drift: Mapping[str, Any]) -> None:
    from matplotlib.patches import Circle

    paths, rays = np.asarray(drift["paths"], dtype=float), np.asarray(drift["rays"], dtype=float)
    for number, (path, ray) in enumerate(zip(paths, rays, strict=True)):
        colour = INPUT_COLOURS[number % len(INPUT_COLOURS)]
        end = ray / max(float(np.linalg.norm(ray)), 1e-30) * float(np.linalg.norm(path, axis=-1).max())
        axes.plot([0, end[0]], [0, end[1]], ls="--", lw=0.9, color=colour, alpha=0.7, zorder=1)
        axes.plot(path[:, 0], path[:, 1], "-", color=colour, lw=1.7)
        axes.plot(*path[-1], "o", color=colour, markersize=5)
    axes.add_patch(Circle((0, 0), float(drift["radius"]), fill=False, ls=":", color="0.3"))
    axes.plot([], [], ls="--", color="0.4", lw=0.9, label="forcing rays t·b(e)")
    axes.plot([], [], "-o", color="0.4", markersize=4, label="rollouts from Δ = 0, one colour per input")
    axes.plot([], [], ls=":", color="0.3", label=f"mean distance at t = {drift['trained']}")
    axes.legend(**BELOW)


def _dose(axes: Axes, dose: Mapping[str, Any]) -> None:
    gains, paths = list(dose["gains"]), np.asarray(dose["paths"], dtype=float)
    for gain, inputs in zip(gains, paths, strict=True):
        marker, width = "v" if gain < 1 else "^" if gain > 1 else "o", 1.7 if gain == 1 else 0.9
        for number, path in enumerate(inputs):
            colour = INPUT_COLOURS[number % len(INPUT_COLOURS)]
            axes.plot(path[:, 0], path[:, 1], "-", lw=width, color=colour)
            axes.plot(*path[-1], marker, markersize=6, color=colour)
        axes.plot([], [], "-", marker=marker, color="0.4", lw=width, label=f"gain × {gain:g}")
    axes.legend(**BELOW, title="against the rollout without injection", title_fontsize=8, ncols=len(gains))
