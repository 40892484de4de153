"""The part of the demo that needs depth: three models learn to follow pointers, one hop a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scse.config.use import BATCH
from scse.data import UNCOUNTED, Sequences
from scse.evaluation.accuracy import settling
from scse.problems import in_hops
from scse.records import Record
from scse.runs import open_run
from scse.suites.depth import DEPTH_TASKS, FULL_DEPTH, HOPS, UNSHARED, answers, solved
from scse.suites.suite import Claim, Column, Preset, Suite, narrowed, values_of

LOOPS = (1, 2, 3, 4, 5, FULL_DEPTH, 16)
CEILING = 16

ARMS = tuple(replace(DEPTH_TASKS.arm(name), seeds=(0,), group="", mini={}) for name in ("looped", "scse", "narrow"))
# What a row of the table counts: the answers so many hops away, all of them, and examples with every answer right.
ROWS: dict[int | str, Callable[[int], Column]] = {
    **{hops: partial(answers, hops) for hops in range(1, HOPS + 1)},
    "all": partial(answers, None),
    "solved": solved,
}
_AT_THE_LIMIT = [answers(HOPS, depth) for depth in LOOPS]
CHASE = Suite(
    name="chase",
    title=f"Pointer chase, 12 nodes, {HOPS} hops, trained with 1 to {FULL_DEPTH} loops, one seed: accuracy in %",
    arms=ARMS,
    columns=tuple(column(depth) for column in ROWS.values() for depth in LOOPS),
    claims=(
        Claim(
            "Loops solve more of the longest chains than unshared layers with as many parameters",
            "scse",
            ("narrow",),
            (answers(HOPS, FULL_DEPTH).header,),
            lower=False,
        ),
    ),
)
# What the page shows of it; the terminal has every number of hops.
SHOWN = narrowed(CHASE, CHASE.arms, [*_AT_THE_LIMIT, *(answers(None, depth) for depth in LOOPS)])


def accuracies(preset: Preset, records: Sequence[Record]) -> list[dict[str, Any]]:
    """{'family': …, 'hops': …, 'T=1': …, …}: the share of right answers, for every family and number of hops.

    The rows 'all' and 'solved' are of all answers, and of examples with every answer right.
    """
    rows = []
    for arm in CHASE.arms:
        for name, column in ROWS.items():
            found = {depth: values_of(records, preset, arm, column(depth)) for depth in LOOPS}
            shares = {f"T={depth}": round(one[0] / 100, 3) if one else None for depth, one in found.items()}
            rows.append({"family": arm.family, "hops": name, **shares})
    return rows


def exits(folders: Mapping[str, Path], windows: int, device: str = "auto") -> list[dict[str, Any]]:
    """{'family': …, '1 hops': …, …}: mean loops until an answer stays as it was, and how often it is right there."""
    rows = []
    for family, folder in folders.items():
        run = open_run(folder, device)
        data = run.corpus(None, None, None).split("test").tokens
        assert isinstance(data, Sequences)
        taken, right = settling(run.model, data, CEILING, batch=BATCH, limit=windows)
        difficulty, asked = data.difficulty[: len(taken)], data.targets[: len(taken)] != UNCOUNTED
        means = {
            in_hops(hops): round(float(taken[asked & (difficulty == hops)].mean()), 2)
            for hops in range(HOPS + 1)
            if (asked & (difficulty == hops)).any()
        }
        rows.append({"family": family, **means, "right": round(float(right[asked].mean()), 3)})
    return rows


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the accuracies say."""
    hardest = {row["family"]: row for row in rows if row["hops"] == HOPS}
    deepest = f"T={FULL_DEPTH}"
    if any(row[deepest] is None for row in rows):
        return []
    sentences = []
    for family, row in hardest.items():
        few, enough = row["T=1"], row[deepest]
        sentences.append(f"{family}: {HOPS} hops away, {few:.0%} right after 1 loop, {enough:.0%} after {FULL_DEPTH}")
    for kind, what in (("all", "all answers"), ("solved", "examples with every answer right")):
        shares = {row["family"]: row[deepest] for row in rows if row["hops"] == kind}
        unshared = shares.pop(UNSHARED)
        best = max(shares, key=lambda name: shares[name])
        ahead = 100 * (shares[best] - unshared)
        sentences.append(
            f"{what} at T = {FULL_DEPTH}: {best} {shares[best]:.1%}, {UNSHARED} of equal parameters {unshared:.1%}, "
            f"{abs(ahead):.0f} points {'behind' if ahead >= 0 else 'ahead'}"
        )
    return sentences


def draw_exits(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The same means as a picture: hops on x, loops on y."""
    from scse.report.exit_depths import draw_exit_depths
    from scse.report.figures import save_figure

    lines = {str(row["family"]): {n: row[in_hops(n)] for n in range(HOPS + 1) if in_hops(n) in row} for row in rows}
    save_figure(draw_exit_depths(lines, "hop", "mean loops until an answer stays as it was"), path)
