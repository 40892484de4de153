"""Figures of the diagnostics. No torch here: they draw plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scse.report.figures import new_figure, save_figure, say

HARM, HELP = "#D55E00", "#009E73"
ATTRIBUTION_LINES = {
    "forcing": (r"$\|b_k\|$ when it enters", "0.6"),
    "arriving": (r"$\|p_{T,k}\|$ when it arrives", "#0072B2"),
    "along": (r"$\langle p_{T,k}, \hat{E}_T\rangle$, its part of $E_T$", "#56B4E9"),
}


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
