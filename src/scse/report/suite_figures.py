"""The figures of a suite, by the kinds its declaration names. Each takes the evidence and gives a figure, or none."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scse.config import assemble
from scse.errors import checked_choice
from scse.records.statistics import summarise
from scse.report.anchor_start import draw_anchor_start
from scse.report.bias_ratio import bias_ratio
from scse.report.costs import exit_depths, pareto
from scse.report.figures import PAGE, PHONE, Line, draw_accuracy_response, draw_depth_response, style
from scse.report.panels import panelled, shared_legend, tidy
from scse.report.pictures import Picture
from scse.report.wording import plain
from scse.suites.evidence import Evidence
from scse.suites.suite import Arm, Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 12  # of a picture; more cannot be told apart
STROKES = ("-", "--", ":", "-.")

# The evidence, and the width there is for the figure, in inches.
Drawing = Callable[[Evidence, float], "Figure | None"]


@dataclass(frozen=True)
class Kind:
    """How a figure is drawn, what is said about it, and what more where the paper has values of its own."""

    draw: Drawing
    caption: str
    paper: str = ""


def pictures(evidence: Evidence) -> list[Picture]:
    """The pictures a suite asks for; `figure` may name several kinds."""
    suite = evidence.suite
    found = []
    for name in re.findall(r"[\w-]+", suite.figure):
        kind = KINDS[checked_choice("kind of figure", name, KINDS)]
        caption = kind.caption + (kind.paper if suite.paper else "")
        drawn = (kind.draw(evidence, room) for room in (PAGE, PHONE))
        found.append(Picture(f"{identifier(suite.name)}-{name}", caption, f"{suite.title}. {caption}", *drawn))
    return found


def identifier(name: str) -> str:
    """A suite's name as it may stand in file names and ids."""
    return re.sub(r"[^\w-]", "-", name)


def depth_response(evidence: Evidence, room: float) -> Figure | None:
    column = next((c for c in evidence.suite.columns if c.task == "perplexity" and c.depth is not None), None)
    if column is None:
        return None
    panels = {title: lines for title, arms in _pictured(evidence) if (lines := _lines(evidence, arms, column))}
    return _over_depth(evidence, panels, draw_depth_response, room)


def _pictured(evidence: Evidence) -> Iterator[tuple[str, list[Arm]]]:
    """The arms of each picture under its title: those that are compared, by their groups where they are too many."""
    for title, arms in evidence.comparisons().items():
        if len(arms) <= MOST_LINES:
            yield title, arms
            continue
        for group in dict.fromkeys(arm.group for arm in arms):
            yield evidence.heading(group), [arm for arm in arms if arm.group == group]


def accuracy_response(evidence: Evidence, room: float) -> Figure | None:
    """A panel for each difficulty, easiest first, all answers before them."""
    columns = [column for column in evidence.suite.columns if column.task == "accuracy"]
    asked = sorted({column.difficulty for column in columns}, key=lambda hops: -1 if hops is None else hops)
    panels = {}
    for difficulty in asked:
        column = next(column for column in columns if column.difficulty == difficulty)
        if lines := _lines(evidence, evidence.suite.arms, column):
            panels["all answers" if difficulty is None else f"difficulty {difficulty}"] = lines
    return _over_depth(evidence, panels, draw_accuracy_response, room)


def _over_depth(
    evidence: Evidence,
    panels: Mapping[str, list[Line]],
    draw: Callable[[Axes, Sequence[Line], int], None],
    room: float,
) -> Figure | None:
    """A panel for each group of lines; None where there is none."""
    if not panels:
        return None
    arm = evidence.suite.arms[0]
    trained = assemble(arm.family, {"precision": "auto", **evidence.preset.settings(arm)}).max_loops
    figure, places = panelled(panels, room, height=4.4)
    for axes, lines in zip(places, panels.values(), strict=True):
        draw(axes, lines, trained)
        tidy(axes)
    shared_legend(figure)
    return figure


def _lines(evidence: Evidence, arms: Sequence[Arm], column: Column) -> list[Line]:
    lines = []
    seen: Counter[str] = Counter()
    for arm in arms:
        points = {}
        for depth in evidence.shelf.depths(arm, column):
            values = evidence.shelf.values(arm, replace(column, depth=depth))
            if all(map(math.isfinite, values.values())):
                points[depth] = summarise(values)
        if not points:
            continue
        seeds = min(len(point.seeds) for point in points.values())
        label = plain(arm.label) + ("" if seeds == len(arm.seeds) else f" ({seeds} of {len(arm.seeds)} seeds)")
        mean = {depth: point.mean for depth, point in points.items()}
        sd = {depth: point.sd for depth, point in points.items()}
        colour, _ = style(arm.family)
        lines.append(Line(label, arm.family, mean, sd, STROKES[seen[colour] % len(STROKES)]))
        seen[colour] += 1
    return lines


def anchor_start(evidence: Evidence, room: float) -> Figure | None:
    """The first steering diagnosis of the suite's runs."""
    for arm in evidence.suite.arms:
        for record in evidence.shelf.of_task(arm, "steering"):
            if "panels" in record.facts:
                return draw_anchor_start(record.facts["panels"], room)
    return None


KINDS: Mapping[str, Kind] = {
    "depth-response": Kind(
        depth_response,
        "Test perplexity over evaluation depth, one set of weights per run; bands are one standard deviation over "
        "seeds, stars mark minima, the shaded depths are beyond those trained.",
    ),
    "accuracy-response": Kind(
        accuracy_response,
        "Right answers over evaluation depth, by how many steps away the answer is; bands are one standard deviation "
        "over seeds, the shaded depths are beyond those trained.",
    ),
    "bias-ratio": Kind(
        bias_ratio,
        "Forcing-bias energy ratio R_t. Bars: last step; open circles: first step. At the dashed line the forcing at "
        "the anchor has as much energy as the update that was made.",
        " Ticks across the bars: the paper's value.",
    ),
    "anchor-start": Kind(
        anchor_start,
        "Rollouts that start at the anchor: drift along the forcing, and the response to the injection gain.",
    ),
    "exit-depths": Kind(
        exit_depths, "After how many loops examples stop, at thresholds calibrated for a mean budget; seeds together."
    ),
    "pareto": Kind(
        pareto,
        "Quality against cost. Lines join fixed depths, open markers are adaptive; costs are the FLOP proxy, head "
        "included.",
    ),
}
