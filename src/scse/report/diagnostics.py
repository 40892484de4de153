"""Figures of the diagnostics. No torch here: they draw plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scse.report.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INPUT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
HARM, HELP = "#D55E00", "#009E73"
ATTRIBUTION_LINES = {
    "forcing": (r"$\|b_k\|$ when it enters", "0.6"),
    "arriving": (r"$\|p_{T,k}\|$ when it arrives", "#0072B2"),
    "along": (r"$\langle p_{T,k}, \hat{E}_T\rangle$, its part of $E_T$", "#56B4E9"),
}


def anchor_start_panel(axes: Axes, paths: np.ndarray, forcing: np.ndarray, plane: np.ndarray, trained: int) -> None:
    """Trajectories [N, T + 1, d] from the anchor, their rays t·b, and the circle of the trained depth, in a plane."""
    flat, rays = paths @ plane.T, forcing @ plane.T
    for number, (path, ray) in enumerate(zip(flat, rays, strict=True)):
        colour = INPUT_COLOURS[number % len(INPUT_COLOURS)]
        reach = np.linalg.norm(path, axis=1).max() / max(np.linalg.norm(ray), 1e-30)
        axes.plot([0, reach * ray[0]], [0, reach * ray[1]], "--", color=colour, linewidth=0.9, alpha=0.7)
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.7)
        axes.plot(*path[-1], "o", color=colour, markersize=5)
    radius = np.linalg.norm(flat[:, trained], axis=1).mean()
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(radius * np.cos(turn), radius * np.sin(turn), ":", color="0.3", linewidth=1.2)
    axes.plot(0, 0, "k+", markersize=10)
    axes.set_title(
        f"(a) from the anchor; dashed t·b(e), dotted: mean distance at T = {trained}", loc="left", fontsize=9
    )


def source_panel(axes: Axes, displacements: dict[float, np.ndarray], plane: np.ndarray) -> None:
    """What the injection adds: paths D_g [N, T + 1, d] for each gain; triangles end the halved and the doubled."""
    ends = {0.5: "v", 2.0: "^"}
    for gain, paths in displacements.items():
        for number, path in enumerate(paths @ plane.T):
            colour = INPUT_COLOURS[number % len(INPUT_COLOURS)]
            axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.7 if gain == 1 else 0.9)
            axes.plot(*path[-1], ends.get(gain, "o"), color=colour, markersize=6, label=_input(number, gain))
    axes.plot(0, 0, "k+", markersize=10)
    axes.set_title("(b) gain × ½ (▾), 1 (●), 2 (▴), relative to the rollout without injection", loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=8)


def _input(number: int, gain: float) -> str:
    return f"input {number}" if gain == 1 else "_"


def say(axes: Axes, text: str) -> None:
    """A panel that has nothing to draw says why."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=11, color="#009E73")
    axes.set_xticks([])
    axes.set_yticks([])


def steering_figure(
    paths: np.ndarray,
    forcing: np.ndarray,
    displacements: dict[float, np.ndarray],
    planes: tuple[np.ndarray, np.ndarray],
    trained: int,
    has_source: bool,
    path: Path,
) -> None:
    """Two panels: anchor-started trajectories against their forcing rays, and the injection-gain intervention."""
    figure = new_figure(width=11)
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    if paths.any():
        anchor_start_panel(left, paths, forcing, planes[0], trained)
    else:
        left.set_title("(a) from the anchor", loc="left", fontsize=9)
        say(left, "$b_t(e) = 0$: nothing moves,\nthe anchor is a fixed point")
    if not has_source:
        say(right, "no source channel:\nthe input is not injected into the loop")
    elif not paths.any():
        say(right, "the anchor is held:\nno gain of the source moves it")
    else:
        source_panel(right, displacements, planes[1])
    for axes in (left, right):
        if axes.lines:
            axes.set_aspect("equal", adjustable="datalim")
            axes.set_xlabel("first principal direction")
            axes.set_ylabel("second principal direction")
            axes.grid(alpha=0.2)
    save_figure(figure, path)


def attribution_figure(steps: Sequence[Mapping[str, float]], verdict: str, path: Path) -> None:
    """Which steps' forcing is still there at the horizon, and which of it helps or hurts the loss."""
    figure = new_figure(width=11)
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    at = [row["step"] for row in steps]
    left.set_title("what arrives at the horizon of each step's forcing", loc="left", fontsize=9)
    right.set_title(f"what it does to the loss; {verdict.split(':')[0]}", loc="left", fontsize=9)
    if any(row["forcing"] for row in steps):
        for name, (label, colour) in ATTRIBUTION_LINES.items():
            left.plot(at, [row[name] for row in steps], color=colour, label=label, linewidth=1.8)
        left.set_ylim(bottom=min(0.0, min(row["along"] for row in steps)))
        left.legend(frameon=False, fontsize=8)
        losses = [row["loss"] for row in steps]
        right.bar(at, losses, color=[HARM if value > 0 else HELP for value in losses], width=0.85)
        right.axhline(0, color="0.3", linewidth=0.8)
        right.set_ylabel("nats per token (above 0 hurts, below helps)")
        for axes in (left, right):
            axes.set_xlabel("step k whose forcing is attributed")
            axes.grid(axis="y", alpha=0.25)
    else:
        say(left, "$b_t(e) = 0$ at every step:\nno forcing to carry")
        say(right, "nothing to attribute")
    save_figure(figure, path)
