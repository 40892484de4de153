"""The part of the demo that needs depth: three models learn to follow pointers, one hop a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scse.data import UNCOUNTED, Sequences
from scse.evaluation.accuracy import settling
from scse.problems import in_hops
from scse.records import Record
from scse.runs import open_run
from scse.suites.depth import DEPTH_TASKS, FULL_DEPTH, HOPS, UNSHARED, answers
from scse.suites.suite import Claim, Preset, Suite, narrowed, values_of

LOOPS = (1, 2, 3, 4, 5, FULL_DEPTH, 16)
CEILING = 16

ARMS = tuple(replace(DEPTH_TASKS.arm(name), seeds=(0,), group="", mini={}) for name in ("looped", "scse", "narrow"))
_AT_THE_LIMIT = [answers(HOPS, depth) for depth in LOOPS]
CHASE = Suite(
    name="chase",
    title=f"Pointer chase, 12 nodes, {HOPS} hops, trained with 1 to {FULL_DEPTH} loops, one seed: accuracy in %",
    arms=ARMS,
    columns=tuple(answers(hops, depth) for hops in (*range(1, HOPS + 1), None) for depth in LOOPS),
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
    """{'family': …, 'hops': …, 'T=1': …, …}: the share of right answers, for every family and number of hops."""
    rows = []
    for arm in CHASE.arms:
        for hops in (*range(1, HOPS + 1), None):
            found = {depth: values_of(records, preset, arm, answers(hops, depth)) for depth in LOOPS}
            shares = {f"T={depth}": round(one[0] / 100, 3) if one else None for depth, one in found.items()}
            rows.append({"family": arm.family, "hops": "all" if hops is None else hops, **shares})
    return rows


def exits(folders: Mapping[str, Path], windows: int, device: str = "auto") -> list[dict[str, Any]]:
    """{'family': …, '1 hops': …, …}: mean loops until an answer stays as it was, and how often it is right there."""
    rows = []
    for family, folder in folders.items():
        run = open_run(folder, device)
        data = run.corpus(None, None, None).split("test").tokens
        assert isinstance(data, Sequences)
        taken, right = settling(run.model, data, CEILING, batch=32, limit=windows)
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
    every = {row["family"]: row[f"T={FULL_DEPTH}"] for row in rows if row["hops"] == "all"}
    if None in every.values():
        return []
    sentences = []
    for family, row in hardest.items():
        few, enough = row["T=1"], row[f"T={FULL_DEPTH}"]
        sentences.append(f"{family}: {HOPS} hops away, {few:.0%} right after 1 loop, {enough:.0%} after {FULL_DEPTH}")
    best = max((name for name in every if name != UNSHARED), key=lambda name: every[name])
    ahead = 100 * (every[best] - every[UNSHARED])
    sentences.append(
        f"all answers at T = {FULL_DEPTH}: {best} {every[best]:.1%}, {UNSHARED} of equal parameters "
        f"{every[UNSHARED]:.1%}, {abs(ahead):.0f} points {'behind' if ahead >= 0 else 'ahead'}"
    )
    return sentences


def draw_exits(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The same means as a picture: hops on x, loops on y."""
    from scse.report.exit_depths import draw_exit_depths
    from scse.report.figures import save_figure

    lines = {str(row["family"]): {n: row[in_hops(n)] for n in range(HOPS + 1) if in_hops(n) in row} for row in rows}
    save_figure(draw_exit_depths(lines, "hop", "mean loops until an answer stays as it was"), path)
