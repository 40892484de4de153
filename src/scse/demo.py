"""The main job in miniature: a problem that needs depth, then three families on the embedded corpus, as suites of
their own, and what came of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scse.config import protocol
from scse.config.adaptive import AdaptiveSettings
from scse.config.use import DEPTHS
from scse.demo_chase import CEILING, CHASE, SHOWN, accuracies, draw_exits, exits
from scse.demo_chase import findings as chase_findings
from scse.devices import resolve_device
from scse.errors import RunFailure
from scse.families import FAMILIES
from scse.generation import Depth, Generation, continue_text
from scse.records import Record
from scse.records.statistics import at_equal_compute
from scse.report.write import write_report
from scse.runs import open_run
from scse.suites.depth import chase
from scse.suites.member import Job, known_result
from scse.suites.needed import Member, members
from scse.suites.outcome import Outcome
from scse.suites.paper.main_text import BIAS, FIRST_BIAS, LATE_BIAS, LATE_ENERGY
from scse.suites.presets import PRESETS, find_preset
from scse.suites.runner import in_processes, in_this_process, run_jobs
from scse.suites.suite import Arm, Claim, Column, Preset, Suite, values_of
from scse.tasks.columns import budgeted, headers, loops

NAMES = ("looped", "tuned-adapter", "scse")
BUDGETS = [int(budget) for budget in AdaptiveSettings.budgets]
PROMPT = "def main("
WRITTEN_DEPTHS = (1, 8, 48)
WRITTEN_TOKENS = 24
LENSED = ("scse", "looped")
LENSED_LOOPS = 24
EXIT_DEPTHS = "figures/chase-exit-depths.svg"
LENSED_TEXT = "def main():\n    for name in sorted(names):\n        print(name, file=sys.stderr)\n    return 0\n"
log = logging.getLogger("scse")
_ADAPTIVE = budgeted(*BUDGETS)

DEMO = Suite(
    name="demo",
    title="Three families on the sources of Python's standard library, mini scale, one seed",
    arms=tuple(Arm(name, name, "wikitext-2", FAMILIES.find(name).label, seeds=(0,)) for name in NAMES),
    columns=(*loops(*DEPTHS), *_ADAPTIVE, FIRST_BIAS, LATE_BIAS, LATE_ENERGY),
    claims=(Claim("SCSE is lowest at every depth", "scse", NAMES[:2], headers(*DEPTHS)),),
    figure="depth-response bias-ratio exit-depths pareto",
)


@dataclass(frozen=True)
class Demo:
    """What the demo found: tables, sentences, texts by loops, and the page that shows it all."""

    chase: list[dict[str, Any]]
    exits: list[dict[str, Any]]
    chase_findings: list[str]
    depths: list[dict[str, Any]]
    adaptive: list[dict[str, Any]]
    anchor: list[dict[str, Any]]
    findings: list[str]
    texts: dict[int, str]
    page: Path

    def to_dict(self) -> dict[str, Any]:
        return {
            "accuracy": self.chase,
            "exits": self.exits,
            "chase_findings": self.chase_findings,
            "perplexity": self.depths,
            "adaptive": self.adaptive,
            "anchor": self.anchor,
            "findings": self.findings,
            "prompt": PROMPT,
            "texts": {str(depth): text for depth, text in self.texts.items()},
            "page": str(self.page),
        }


@dataclass(frozen=True)
class Size:
    """How long the demo takes: steps of the models that chase pointers and of those that write, and windows."""

    chase_steps: int
    steps: int
    windows: int

    def preset(self) -> Preset:
        chosen = find_preset("mini", PRESETS["mini"].data, self.windows)
        # Half the batch and half as many steps again: three quarters of the time, and a lower perplexity.
        text = {**protocol("mini"), "batch": 8, "steps": self.steps}
        own = {"wikitext-2": text, "pointer-chase": chase(self.chase_steps)}
        return replace(chosen, substitute=own)


def run_demo(
    folder: Path,
    report: Path,
    size: Size,
    cache_dir: str | None,
    quiet: bool,
    device: str = "auto",
    processes: int | None = None,
) -> Demo | None:
    """Train, evaluate and diagnose what is missing, then show it; None when asked to stop, and the rest is saved.

    `processes` members at a time. By default three on a CPU of several cores: models this small leave a second thread
    little to do, and with one process more than two cores none of them is idle while the last model is evaluated.
    """
    preset = size.preset()
    chasing, texts = members([CHASE], preset, folder), members([DEMO], preset, folder)
    on_cpu = resolve_device(device).type == "cpu"
    processes = processes or (3 if on_cpu and torch.get_num_threads() > 1 else 1)
    failed = _worked_off([*chasing, *texts], cache_dir, quiet, device, processes)
    if failed is None:
        return None
    records = [record for member in (*chasing, *texts) for record in member.records()]
    for member, reason in failed:
        # An evaluation may fail on its own, such as a budget that no threshold reaches: the rest is still shown.
        suite = CHASE if member in chasing else DEMO
        if not values_of(records, preset, member.arm, suite.columns[0]):
            raise RunFailure(f"{member.name} failed: {reason}")
    taken = exits({member.arm.family: member.folder for member in chasing}, size.windows, device)
    links = {**write_lenses(chasing, texts, report), EXIT_DEPTHS: "loops taken over hops needed"}
    write_report([SHOWN, DEMO], preset, records, report, links)
    draw_exits(taken, report / EXIT_DEPTHS)
    shown = Numbers(preset, records)
    adaptive = shown.adaptive(_ADAPTIVE, 2)
    depths, anchor = shown.rows(loops(*DEPTHS), 2), shown.rows([FIRST_BIAS, LATE_BIAS, LATE_ENERGY], 4)
    chase = accuracies(preset, records)
    reasons = [f"{member.arm.family}: {reason}" for member, reason in failed]
    return Demo(
        chase=chase,
        exits=taken,
        chase_findings=chase_findings(chase),
        depths=depths,
        adaptive=adaptive,
        anchor=anchor,
        findings=[*findings(depths), *anchor_findings(anchor), *budget_findings(adaptive), *reasons],
        texts=written(next(member for member in texts if member.arm.name == "scse"), device),
        page=report / "index.html",
    )


def _worked_off(
    wanted: Sequence[Member], cache_dir: str | None, quiet: bool, device: str, processes: int
) -> list[tuple[Member, str]] | None:
    """Train and evaluate what is missing of the members. Those that failed, and why; None when asked to stop."""
    alone = processes == 1
    jobs = [Job(member, cache_dir=cache_dir, quiet=quiet or not alone, device=device) for member in wanted]
    if not alone and any(known_result(job) is None for job in jobs):
        log.info("training and evaluating %d small models, %d at a time: some minutes", len(jobs), processes)
    results = run_jobs(jobs, in_this_process if alone else in_processes(processes))
    if len(results) < len(wanted) or any(result.outcome is Outcome.STOPPED for result in results.values()):
        return None
    return [(member, r.reason) for member in wanted if (r := results[member.name]).reason]


@dataclass(frozen=True)
class Numbers:
    """The demo's records as rows of tables."""

    preset: Preset
    records: Sequence[Record]

    def rows(self, columns: Iterable[Column], digits: int) -> list[dict[str, Any]]:
        """{'family': …, header: value, …} for each family; None where there is no number"""
        columns = list(columns)
        return [
            {"family": arm.family} | {column.header: self.number(arm, column, digits) for column in columns}
            for arm in DEMO.arms
        ]

    def adaptive(self, columns: Sequence[Column], digits: int) -> list[dict[str, Any]]:
        """{'family': …, header: {'ppl': …, 'mean_depth': …}, …}: what a budget gave, and the depth that took."""
        taken = [replace(column, metric="mean_depth") for column in columns]
        return [
            {"family": arm.family}
            | {
                column.header: {"ppl": self.number(arm, column, digits), "mean_depth": self.number(arm, depth, 2)}
                for column, depth in zip(columns, taken, strict=True)
            }
            for arm in DEMO.arms
        ]

    def number(self, arm: Arm, column: Column, digits: int) -> float | None:
        found = values_of(self.records, self.preset, arm, column)
        return round(found[0], digits) if found else None


def write_lenses(chasing: Sequence[Member], texts: Sequence[Member], report: Path) -> dict[str, str]:
    """A lens for the chase and one for text, each with two families side by side; {file: what it shows}."""
    from scse.lens import example, lens

    def pair(members: Sequence[Member]) -> list[Path]:
        return [next(m.folder for m in members if m.arm.name == name) for name in LENSED]

    shown = {
        "lens-chase.html": (
            example(pair(chasing), loops=CEILING),
            "how two families follow the pointers",
        ),
        "lens-text.html": (lens(pair(texts), LENSED_TEXT, loops=LENSED_LOOPS), "how they continue a line of Python"),
    }
    report.mkdir(parents=True, exist_ok=True)
    for file, (found, _) in shown.items():
        found.save(report / file)
    return {file: text for file, (_, text) in shown.items()}


def written(member: Member, device: str) -> dict[int, str]:
    """The same prompt continued at several depths, with the same random draws."""
    run = open_run(member.folder, device)
    wanted = Generation(Depth(WRITTEN_DEPTHS), WRITTEN_TOKENS, stop=run.tokenizer.eot_id)
    *_, found = continue_text(run.model, run.tokenizer, PROMPT, wanted, seeds=[0] * len(WRITTEN_DEPTHS))
    return {depth: one.text for depth, one in zip(WRITTEN_DEPTHS, found, strict=True)}


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the depths say, and whether the paper's 95.6M models on WikiText-103 said the same."""
    curves = {str(row["family"]): {int(name[2:]): row[name] for name in row if name.startswith("T=")} for row in rows}
    sentences = []
    for family, curve in curves.items():
        best = min(curve, key=lambda depth: curve[depth])
        change = curve[max(curve)] / curve[best] - 1
        same = "as in the paper" if best == 8 else "in the paper at T = 8"
        sentences.append(f"{family}: best at T = {best} ({same}), {change:+.1%} from there to T = {max(curve)}")
    depths = sorted(curves["scse"])
    ahead = [t for t in depths if curves["scse"][t] == min(curve[t] for curve in curves.values())]
    if ahead == depths:
        sentences.append("scse is lowest at every depth, as in the paper")
    else:
        where = ", ".join(str(t) for t in depths if t not in ahead)
        sentences.append(f"scse is not lowest at T = {where}; in the paper it is lowest at every depth")
    return sentences


def anchor_findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the anchor says, beside the paper's values at 22M on WikiText-103."""
    late = {str(row["family"]): row["R_47"] for row in rows}
    if None in late.values():
        return []
    paper = {family: BIAS.paper[f"{family}-22m", LATE_BIAS.header].mean for family in late}
    pairs = ", ".join(f"{family} {late[family]:.2f} (paper {value:.2f})" for family, value in paper.items())
    return [f"forcing at the anchor against the update, R_47: {pairs}"]


def budget_findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where families cannot be compared under a mean budget, because they did not keep it alike."""
    sentences = []
    for header in (name for name in rows[0] if name != "family"):
        depths = [row[header]["mean_depth"] for row in rows if row[header]["mean_depth"] is not None]
        if not at_equal_compute(depths):
            sentences.append(
                f"{header}: mean depths of {min(depths):.1f} to {max(depths):.1f} loops were realised, "
                "so the families are not ranked there"
            )
    return sentences
