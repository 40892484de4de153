"""Boxes and wires: one loop of an update as a diagram that runs to the right, or downwards where there is no width."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyBboxPatch

INK = "#222222"
HEIGHT = 0.56
ALONG, ACROSS = (0.0, 11.6), (0.2, 4.3)
LOOP_ALONG, LOOP_ACROSS = (4.05, 9.15), (1.45, 3.75)

Point = tuple[float, float]


class Circuit:
    """A diagram in places (along, across): how far the signal has come, and beside which other signals.

    Everything is told in places; `upright` turns it so that along is downwards and across is to the right.
    """

    def __init__(self, axes: Axes, title: str, colour: str, upright: bool) -> None:
        self.axes, self.colour, self.upright = axes, colour, upright
        self.boxes: dict[str, tuple[Point, FancyBboxPatch]] = {}
        (left, bottom), (right, top) = self._at((ALONG[0], ACROSS[0])), self._at((ALONG[1], ACROSS[1]))
        beyond = 0.35 if upright else 0.0  # the widest boxes reach beyond their lane
        axes.set(xlim=(left - beyond, right), ylim=sorted((bottom, top)))
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=colour)
        self._loop()

    def box(self, name: str, place: Point, text: str, colour: str, width: float = 0.9) -> None:
        """A box to which wires lead by its name."""
        x, y = self._at(place)
        size = (width - 0.06, HEIGHT)
        self.boxes[name] = place, self._rounded((x - size[0] / 2, y - size[1] / 2), size, 0.02, 0.12)
        self.boxes[name][1].set(facecolor="white", edgecolor=colour, lw=1.6, zorder=3)
        self.axes.text(x, y, text, ha="center", va="center_baseline", fontsize=10, color=INK, zorder=4)

    def chain(self, *names: str) -> None:
        """Arrows from box to box."""
        for start, end in pairwise(names):
            self._arrow(self.boxes[start][0], self.boxes[end][0], end, start)

    def wire(self, start: str, *corners: Point, to: str, colour: str, width: float = 1.4) -> None:
        """A line from a box around corners, and an arrow from the last corner straight into another box."""
        (along, across), _ = self.boxes[start]
        first, last = corners[0], corners[-1]
        # It leaves and arrives at right angles: out of the middle of the box, or beside it where the corner is.
        out = (along, across) if first[1] == across else (first[0], across)
        self.axes.plot(*zip(*map(self._at, (out, *corners)), strict=True), color=colour, lw=width, zorder=1)
        self._arrow(last, (last[0], self.boxes[to][0][1]), to, colour=colour, width=width)

    def aside(self, place: Point, text: str) -> None:
        """A remark along a wire."""
        remark = self.axes.text(*self._at(place), text, color=self.colour, fontsize=10, style="italic")
        if self.upright:
            remark.set(rotation=90, va="top", ha="center")

    def name(self, place: Point, text: str) -> None:
        """What a wire carries."""
        along, across = place
        inside = 0.47 if self.upright else 0.0  # beside a wire that runs downwards there is more room inside the loop
        where = self._at((along, across - inside))
        self.axes.text(*where, text, ha="center", va="center", fontsize=11, color=INK)

    def _at(self, place: Point) -> Point:
        return (place[1], -place[0]) if self.upright else place

    def _rounded(self, corner: Point, size: Point, pad: float, rounding: float) -> FancyBboxPatch:
        from matplotlib.patches import FancyBboxPatch

        patch = FancyBboxPatch(corner, *size, f"round,pad={pad},rounding_size={rounding}")
        self.axes.add_patch(patch)
        return patch

    def _loop(self) -> None:
        (x, y), (right, top) = self._at((LOOP_ALONG[0], LOOP_ACROSS[0])), self._at((LOOP_ALONG[1], LOOP_ACROSS[1]))
        corner, size = (x, min(y, top)), (right - x, abs(top - y))
        self._rounded(corner, size, 0.08, 0.2).set(facecolor=self.colour, alpha=0.08, edgecolor="none")
        above = self._at((LOOP_ALONG[0] - 0.3, LOOP_ACROSS[1])) if self.upright else (LOOP_ALONG[1], 3.92)
        self.axes.text(*above, "T times", ha="right", fontsize=10, color=self.colour)

    def _arrow(
        self, start: Point, end: Point, into: str, out_of: str = "", colour: str = INK, width: float = 1.4
    ) -> None:
        """An arrow that begins and ends at the edges of its boxes."""
        look = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0}
        look |= {"patchA": self.boxes[out_of][1] if out_of else None, "patchB": self.boxes[into][1]}
        self.axes.annotate("", self._at(end), self._at(start), arrowprops=look)
