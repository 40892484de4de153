"""What the recurrence does at its anchor, step by step, on ordinary trajectories of a run.

'bias_ratio' is R_t, the energy of the forcing bias T_t(0; e) over that of the realised update; 'raw' is before the
mask. 'anchor_energy' is the mean square of the deviation. At the steps of --gain: 'gain' is the random-direction gain,
'expansion' the most that any direction grows, by power iteration ('expansion_residual' says how far that converged),
'stability' whether the map contracts, is neutral or expands there. docs/diagnostics.md explains every number.

With --steering, instead: rollouts that start at the anchor, the forcing rays t·b(e), and what turning the injection
gain does to them, as a two-panel figure and the numbers under it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_evaluation, print_json, print_rows, require_picture, require_positive

if TYPE_CHECKING:
    from scse.data import Corpus
    from scse.diagnostics import StepDiagnosis
    from scse.evaluation.runs import Run

ONLY_IN_JSON = ("bias_energy", "largest_anchor_energy", "expansion_residual")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--steps", type=int, default=48, metavar="T", help="steps to diagnose (default 48)")
    parser.add_argument("--gain", default="first,last", metavar="T,T", help="steps of the gain (default first,last)")
    parser.add_argument("--batches", type=int, default=2, metavar="N", help="batches to average over (default 2)")
    parser.add_argument("--steering", metavar="PICTURE", help="anchor-started rollouts instead (.png or .svg)")
    parser.add_argument("--inputs", type=int, default=6, metavar="N", help="windows of --steering (default 6)")
    add_evaluation(parser)


def run(args: Arguments) -> None:
    from scse.evaluation.runs import open_run
    from scse.machine import keep_freed_memory

    require_positive(args, "steps", "batches", "batch", "inputs")
    require_picture("--steering", args.steering)
    gains = gain_steps(args.gain, args.steps)
    keep_freed_memory()
    opened = open_run(args.run)
    corpus = opened.corpus(args.data, args.data_dir, args.cache_dir, progress=not args.quiet)
    if args.steering:
        show_steering(args, opened, corpus)
    else:
        show_steps(args, opened, corpus, gains)


def show_steps(args: Arguments, opened: Run, corpus: Corpus, gains: list[int]) -> None:
    from scse.diagnostics import diagnose
    from scse.diagnostics.stability import broken_claims, judge
    from scse.errors import RunFailure
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.progress import progress

    split = corpus.split(args.split)
    with progress("diagnosing", args.steps * args.batches, "steps", enabled=not args.quiet) as meter:
        found = diagnose(opened.model, split.tokens, args.steps, args.batch, args.batches, gains, meter)
    rows = with_verdicts(found, opened.config.max_loops)
    about = {"dataset": corpus.name, "split": split.name, "limit": args.batch * args.batches, "tag": args.tag}
    records = []
    for row in rows:
        numbers = {name: value for name, value in row.items() if isinstance(value, float)}
        who = identity(opened.config, opened.step, depth=row["step"], task="diagnose", **about)
        records.append(new_record(who, numbers, split.digest))
    append_records(Path(args.run) / FILE, records)
    if args.json:
        print_rows(rows, as_json=True)
    else:
        chosen = {0, 1, 2, 4, 8, 16, 24, 32, args.steps - 1, *gains}
        shown = [for_people(row) for row in rows if row["step"] in chosen]
        print_rows(shown, as_json=False, title=f"{args.run} on {corpus.name} {split.name}")
        print(judge(found, opened.config.max_loops))
    if broken := broken_claims(opened.model.recurrence, found):
        raise RunFailure("; ".join(broken))


def show_steering(args: Arguments, opened: Run, corpus: Corpus) -> None:
    import numpy as np

    from scse.diagnostics.steering import GAINS, per_input, plane, steer, summary
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.progress import progress
    from scse.report.diagnostics import steering_figure

    split = corpus.split(args.split)
    with progress("steering", len(GAINS) * (args.steps + 1), "steps", enabled=not args.quiet) as meter:
        found = steer(opened.model, split.tokens, args.inputs, args.steps, opened.config.max_loops, meter)
    displacements = {gain: found.displacements(gain) for gain in GAINS if gain}
    planes = plane(found.trained), plane(np.stack(list(displacements.values())))
    steering_figure(
        found.trained, found.forcing, displacements, planes, found.trained_depth, found.has_source, Path(args.steering)
    )
    rows, numbers = per_input(found), summary(found)
    about = {"dataset": corpus.name, "split": split.name, "limit": args.inputs, "tag": args.tag}
    who = identity(opened.config, opened.step, depth=args.steps, task="steering", **about)
    append_records(Path(args.run) / FILE, [new_record(who, numbers, split.digest)])
    if args.json:
        print_json({"inputs": rows, "summary": numbers, "has_source": found.has_source, "figure": args.steering})
        return
    print_rows([for_people(row) for row in rows], as_json=False, title=f"{args.run} from its anchor, T = {args.steps}")
    print(steering_sentence(numbers))
    if not found.has_source:
        print("no source channel: the input is not injected into the loop, so there is no gain to turn")
    print(f"figure: {args.steering}")


def steering_sentence(numbers: Mapping[str, float]) -> str:
    """The summary in one line; what does not exist is not mentioned."""
    if "cosine_lowest" not in numbers:
        return "nothing moves: the anchor is a fixed point"
    text = f"cosines to the forcing ray {numbers['cosine_lowest']:.2f} … {numbers['cosine_highest']:.2f}"
    if "share_rms" not in numbers:
        return text
    shares = f"{numbers['share_lowest']:.0%} … {numbers['share_highest']:.0%}"
    return (
        f"{text}; the injection's displacement is {shares} of the anchor push "
        f"(root mean square {numbers['share_rms']:.0%}), {numbers['angle_mean']:.0f}° from the drift on average"
    )


def for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table: without what only programs read, and empty where there is no number."""
    return {name: "" if value is None else value for name, value in row.items() if name not in ONLY_IN_JSON}


def with_verdicts(found: Sequence[StepDiagnosis], trained: int) -> list[dict[str, Any]]:
    """The rows of a diagnosis with two judgements each: 'stability' where measured, 'beyond_trained_range'."""
    from scse.diagnostics.stability import stability, trained_energy

    limit = trained_energy(found, trained)
    return [
        {
            **asdict(row),
            "stability": None if row.expansion is None else stability(row.expansion),
            "beyond_trained_range": row.anchor_energy > limit,
        }
        for row in found
    ]


def gain_steps(text: str, steps: int) -> list[int]:
    """'first,last' or step numbers below `steps`."""
    from scse.errors import UserError

    names = {"first": 0, "last": steps - 1}
    try:
        chosen = [names[part] if part in names else int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--gain takes step numbers, 'first' or 'last', separated by commas, got '{text}'") from None
    if not all(0 <= step < steps for step in chosen):
        raise UserError(f"--gain asks for a step outside 0 … {steps - 1}; raise --steps or choose another")
    return chosen
