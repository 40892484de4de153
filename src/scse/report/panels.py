"""Figures of several panels, and how their axes look."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scse.report.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_PER_ROW = 2
NARROW, WIDE = 7.2, 10.0


def panelled(titles: Iterable[str], height: float, per_row: int = PANELS_PER_ROW) -> tuple[Figure, list[Axes]]:
    """A figure with one set of axes per title, in rows."""
    names = list(titles)
    across = min(len(names), per_row)
    rows = math.ceil(len(names) / across)
    figure = new_figure(NARROW if across == 1 else WIDE, height * rows)
    places = []
    for position, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, across, position)
        axes.set_title(plain(name), loc="left", fontsize=10, fontweight="bold")
        places.append(axes)
    return figure, places


def plain(text: str) -> str:
    """Text in which a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def plain_log_axis(axes: Axes) -> None:
    """A logarithmic axis marked 1, 2, 5, 10, …"""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def shared_legend(figure: Figure) -> None:
    """One legend for all panels, below them: a method looks the same in each."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    columns = 2 if figure.get_figwidth() < WIDE else 3
    entries = (list(handles.values()), list(handles))
    figure.legend(*entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
