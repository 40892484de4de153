"""Anchor-start panels, from the arrays a steering record carries under `facts["panels"]`.

drift.paths     [input][t][2]        rollouts from Δ = 0, projected on two principal components
drift.rays      [input][2]           the forcing b(e) of each input in the same projection
drift.radius    number               mean distance from the anchor at the largest trained depth, same projection
drift.trained   number               that depth
dose.gains      [gain]               factors on the injection gain, ascending, with 1 among them
dose.paths      [gain][input][t][2]  displacement from the rollout without injection, its own projection
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from scse.experiments.suite import Arm
from scse.report.figures import new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCSE_GREEN = style("scse")[0]


def draw_anchor_start(panels: Mapping[str, Any], arm: Arm) -> Figure | None:
    """Both panels; nothing if the arrays are not all there, or nothing ever left the anchor."""
    if not {"drift", "dose"} <= panels.keys() or not np.any(panels["drift"]["paths"]):
        return None
    colour, _ = style(arm.family)
    figure = new_figure(10, 4.6)
    left, right = figure.subplots(1, 2)
    _drift(left, panels["drift"], colour)
    _dose(right, panels["dose"], colour)
    for axes, title in ((left, "(a) motion from the anchor"), (right, "(b) response to the injection gain")):
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_aspect("equal", adjustable="datalim")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("principal component 1")
        axes.set_ylabel("principal component 2")
        axes.plot(0, 0, marker="X", markersize=11, color="black", markeredgecolor="white", zorder=6)
    return figure


def _drift(axes: Axes, drift: Mapping[str, Any], colour: str) -> None:
    from matplotlib.patches import Circle

    paths, rays = np.asarray(drift["paths"], dtype=float), np.asarray(drift["rays"], dtype=float)
    reach = float(np.linalg.norm(paths, axis=-1).max())
    for path, ray in zip(paths, rays, strict=True):
        end = ray / max(float(np.linalg.norm(ray)), 1e-12) * reach
        axes.plot([0, end[0]], [0, end[1]], ls="--", lw=0.9, color="0.55", zorder=1)
        axes.plot(path[:, 0], path[:, 1], "-o", color=colour, markersize=2.5, lw=1.3)
        axes.plot(*path[-1], "o", color=colour, markeredgecolor="black", markersize=6)
    axes.add_patch(Circle((0, 0), float(drift["radius"]), fill=False, ls=":", color="0.3"))
    axes.plot([], [], ls="--", color="0.55", lw=0.9, label="forcing rays t·b(e)")
    axes.plot([], [], "-o", color=colour, markersize=2.5, label="rollouts from Δ = 0")
    axes.plot([], [], ls=":", color="0.3", label=f"mean distance at t = {drift['trained']}")
    note = "SCSE stays at the cross: b_t(e) = 0"
    axes.text(0.02, 0.02, note, transform=axes.transAxes, fontsize=9, color=SCSE_GREEN, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)


def _dose(axes: Axes, dose: Mapping[str, Any], colour: str) -> None:
    gains, paths = list(dose["gains"]), np.asarray(dose["paths"], dtype=float)
    for gain, inputs in zip(gains, paths, strict=True):
        shade: dict[str, Any] = {"color": colour, "alpha": 1.0 if gain == 1 else 0.45}
        marker = "v" if gain < 1 else "^" if gain > 1 else "o"
        for path in inputs:
            axes.plot(path[:, 0], path[:, 1], "-", lw=1.2, **shade)
            axes.plot(*path[-1], marker, markersize=6, markeredgecolor="black", **shade)
        axes.plot([], [], "-", marker=marker, label=f"gain × {gain:g}", **shade)
    axes.legend(frameon=False, fontsize=8)
