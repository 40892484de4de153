"""Options × values × seeds: trains and evaluates every combination, and says which one validates best.

  scse sweep --family scse --vary step_scale=0.25,0.5 --vary lr=1e-3,2e-3 --seeds 0,1,2 --out sweeps/mine

--vary takes options of training, of the shape and of the family, and 'family' itself. '--plan' shows the runs and what
they cost. The same command again continues; more values or seeds train only what is new. The runs are evaluated on
validation, which is what to select on; '--split test' gives test numbers and selects nothing. 'scse compare DIR' shows
everything that has been evaluated under a folder.

'--paper NAME' repeats a selection of the paper's: step-scale, source-gain, step-signal or film-scale, at the size of
--preset.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scse.cli.common import (
    Arguments,
    add_data_folders,
    add_family,
    add_json,
    positive_ints,
    print_json,
    require_positive,
    seed_list,
    settings,
)
from scse.cli.members import add_running, carry_out, check_running, print_plan, say_ended
from scse.cli.tables import print_table
from scse.cli.text import print_text
from scse.errors import UserError
from scse.families import DEFAULT_FAMILY

if TYPE_CHECKING:
    from scse.suites.evidence import Evidence
    from scse.suites.suite import Preset
    from scse.suites.sweep import Choice, Grid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from scse.suites.suite import DEFAULT_SEEDS
    from scse.suites.sweep import DEPTHS, SELECTING

    parser.add_argument("--paper", metavar="NAME", help="a selection of the paper's")
    parser.add_argument("--preset", metavar="P", help="with --paper: mini (default) or paper")
    add_family(parser)
    parser.add_argument("--protocol", metavar="P", help="what the runs are without changes (default: mini)")
    parser.add_argument("--vary", action="append", default=[], metavar="K=V,V", help="an option and its values")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option for all runs")
    parser.add_argument("--data", metavar="D", help="train on this corpus instead")
    add_data_folders(parser)
    parser.add_argument("--steps", type=int, metavar="N", help="train every run for N steps")
    parser.add_argument("--seeds", type=seed_list, default=DEFAULT_SEEDS, metavar="N,N", help="of each")
    parser.add_argument("--depths", type=positive_ints, default=DEPTHS, metavar="T,T", help="evaluate at these")
    parser.add_argument("--budgets", type=positive_ints, default=[], metavar="B,B", help="and at mean loop budgets")
    parser.add_argument("--split", default=SELECTING, metavar="S", help="evaluate on this")
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate on the first N windows")
    parser.add_argument("--select", type=int, metavar="T", help="select at this depth (default: the deepest)")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--plan", action="store_true", help="only show what would be done")
    add_running(parser)
    add_json(parser)


def run(args: Arguments) -> int:
    require_positive(args, "limit", "steps", "select")
    check_running(args)
    if not args.out:
        raise UserError("--out is empty; name a folder for the runs")
    vary = varied(args.vary)
    from scse.data.sources import canonical_split
    from scse.files import expand
    from scse.problems import PROBLEMS
    from scse.suites.evidence import Shelf, gather
    from scse.suites.needed import members
    from scse.suites.sweep import as_suite, columns

    args.split = canonical_split(args.split)
    select = args.select or max(args.depths)
    if select not in args.depths:
        raise UserError(f"--select {select} is not among the depths {', '.join(map(str, args.depths))}")
    grid, preset = chosen_grid(args, vary)
    suite, values = as_suite(grid, preset, columns(args.depths, args.budgets, args.split, grid.protocol), args.seeds)
    out = expand(args.out)
    chosen = members([suite], preset, out)
    if args.plan:
        print_plan(args, preset.name, chosen, out, [])
        return 0
    ended = carry_out(args, chosen, out, all_depths=False)
    if ended is None:
        return 0
    evidence = gather(suite, Shelf([record for member in chosen for record in member.records()], preset))
    if args.json:
        print_json({**vars(ended), **result(evidence, values, select, args.split, grid)})
    else:
        what = "Perplexity, and right answers in %," if grid.protocol in PROBLEMS else "Perplexity"
        title = f"{what} on {args.split}: mean ± standard deviation (seeds)"
        print_table(shown(evidence, values), title=title)
        say_ended(ended)
        say_choice(evidence, select, args.split, grid)
    return 1 if ended.failures else 0


def varied(pairs: Sequence[str]) -> dict[str, list[str]]:
    """['lr=1e-3,2e-3'] -> {'lr': ['1e-3', '2e-3']}"""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if not (name and equals and all(parts)):
            raise UserError(f"--vary takes name=value,value, got '{pair}'")
        if name in found:
            raise UserError(f"--vary names '{name}' twice; give all its values at once")
        found[name] = parts
    return found


def chosen_grid(args: Arguments, vary: Mapping[str, Sequence[object]]) -> tuple[Grid, Preset]:
    from scse.data import existing_corpus
    from scse.suites.presets import find_preset
    from scse.suites.suite import Preset
    from scse.suites.sweep import Grid, paper_grid

    data = None if args.data is None else existing_corpus(args.data)
    if args.paper is None:
        if args.preset is not None:
            raise UserError("--preset is the size of a selection of the paper's; without --paper use --protocol")
        changes = {} if args.steps is None else {"steps": args.steps}
        preset = Preset("sweep", data=data, limit=args.limit, changes=changes)
        return Grid(args.family or DEFAULT_FAMILY, args.protocol or "mini", vary, settings(args.set)), preset
    for option, given in (("--family", args.family), ("--protocol", args.protocol), ("--vary", args.vary)):
        if given:
            raise UserError(f"--paper decides on {option}; leave one of them out")
    preset = find_preset(args.preset or "mini", data, args.limit, args.steps)
    return paper_grid(args.paper, settings(args.set)), preset


def shown(evidence: Evidence, values: Mapping[str, Mapping[str, object]]) -> list[dict[str, Any]]:
    """A row per combination for people."""
    from scse.report.wording import measured

    rows = []
    for arm in evidence.suite.arms:
        cells = {column.header: evidence.cells[arm.name, column.header] for column in evidence.suite.columns}
        numbers = {name: measured(cell.ours, cell.column.digits, len(arm.seeds)) for name, cell in cells.items()}
        rows.append({**(values[arm.name] or {"family": arm.family}), **numbers})
    return rows


def result(
    evidence: Evidence, values: Mapping[str, Mapping[str, object]], select_at: int, split: str, grid: Grid
) -> dict[str, Any]:
    """The same for programs."""
    rows = []
    for arm in evidence.suite.arms:
        summaries = {c.header: evidence.cells[arm.name, c.header].ours for c in evidence.suite.columns}
        numbers = {name: None if found is None else vars(found) for name, found in summaries.items()}
        rows.append({"settings": values[arm.name], "results": numbers})
    choice = selected(evidence, select_at, split)
    best = None
    if choice is not None:
        best = {"settings": values[choice.arm], "depth": select_at, **vars(choice.mean)}
        best |= {"complete": choice.complete, "of": choice.arms, "paper": grid.chosen}
    return {"split": split, "rows": rows, "best": best}


def selected(evidence: Evidence, select_at: int, split: str) -> Choice | None:
    from scse.suites.sweep import SELECTING, select

    return select(evidence, f"T={select_at}") if split == SELECTING else None


def say_choice(evidence: Evidence, select_at: int, split: str, grid: Grid) -> None:
    from scse.report.wording import measured, signed
    from scse.suites.sweep import SELECTING

    choice = selected(evidence, select_at, split)
    if split != SELECTING:
        print_text(f"nothing is selected on {split}: a number that was used to choose no longer measures")
        return
    if choice is None:
        print_text(f"nothing can be selected yet: no row has all its seeds at T = {select_at}")
        return
    best = f"lowest at T = {select_at} on {split}: {choice.arm}, {measured(choice.mean, 2, 1)}"
    if choice.runner_up is not None:
        name, summary = choice.runner_up
        best += f"; next: {name}, {signed(summary.mean - choice.mean.mean, 2)}"
    if choice.complete < choice.arms:
        best += f"; {choice.complete} of {choice.arms} rows have all their seeds"
    print_text(best)
    if grid.chosen is not None:
        print_text(f"the paper took {grid.chosen} (22M on WikiText-103)")
