"""Figures of several panels, and how their axes look."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from scse.report.figures import COLUMN, PAGE, PHONE, new_figure
from scse.report.wording import plain

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_PER_ROW = 2
LETTERS_PER_INCH = 10.5  # of a title
MARGIN = 0.7  # inches to the left of a panel's axes
LEGEND_LINE = 0.2


def panelled(
    titles: Iterable[str], room: float, height: float, per_row: int = PANELS_PER_ROW
) -> tuple[Figure, list[Axes]]:
    """A figure no wider than `room`, with one set of axes per title, in rows."""
    names = list(titles)
    across = 1 if room < PAGE else min(len(names), per_row)
    rows = math.ceil(len(names) / across)
    width = min(room, COLUMN if across == 1 else PAGE)
    figure = new_figure(width, height * rows)
    places = []
    for position, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, across, position)
        axes.set_title(folded(name, width / across - MARGIN), loc="left", fontsize=10, fontweight="bold")
        places.append(axes)
    return figure, places


def folded(text: str, inches: float) -> str:
    """`plain` text in lines that are not much longer than this."""
    return "\n".join(map(plain, textwrap.wrap(text, max(8, int(LETTERS_PER_INCH * inches)))))


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
    """One legend for all panels, below them: a method looks the same in each. A long one makes the figure higher."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    columns = 1 if figure.get_figwidth() <= PHONE else 2 if figure.get_figwidth() < PAGE else 3
    beyond = math.ceil(len(handles) / columns) - 2
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, beyond))
    entries = (list(handles.values()), list(handles))
    figure.legend(*entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
