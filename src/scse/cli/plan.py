"""What a run or a suite would cost on other hardware: hours, GPUs, memory by strategy, checkpoints.

  scse plan --protocol wikitext-103-96m --gpus 8
  scse plan --scale 7b --gpus 64 --accelerator h100
  scse plan ablations transfer --preset paper
  scse plan --protocol mini --against runs/mine

One run is described as for 'scse train'; 1b, 3b and 7b are shapes for planning alone, on twenty tokens per parameter
unless told. Of suites the training is counted. Times are the matrix products over the stated peak times an assumed
utilisation, which --utilisation changes; memory is counted and not measured. --against holds the count of products
against the speed of a run that was trained on this machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.cli.common import (
    DEPTH_TRAINING,
    Arguments,
    add_depth_training,
    add_family,
    add_json,
    print_json,
    require_positive,
    said_once,
    settings,
)
from scse.cli.tables import print_table
from scse.cli.text import duration, print_text
from scse.errors import UserError, checked_choice
from scse.families import DEFAULT_FAMILY
from scse.files import expand
from scse.progress import amount

if TYPE_CHECKING:
    from scse.config import TrainConfig
    from scse.planning import Accelerator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="SUITE", help="suites, or all; without any, one run is planned")
    add_family(parser)
    parser.add_argument("--scale", metavar="S", help="a scale of 'scse train', or 1b, 3b or 7b")
    parser.add_argument("--protocol", metavar="P", help="a protocol of the paper, such as wikitext-103-50m")
    parser.add_argument("--steps", type=int, metavar="N", help="optimiser steps")
    parser.add_argument("--tokens", type=float, metavar="N", help="as many steps as these tokens make, such as 20e9")
    add_depth_training(parser)
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option by name")
    parser.add_argument("--preset", default="paper", metavar="P", help="the size of suites: paper (default) or mini")
    parser.add_argument("--accelerator", metavar="A", help="only this one (default: all that are known)")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="how many of them")
    parser.add_argument("--utilisation", type=float, metavar="U", help="the share of the peak that training reaches")
    parser.add_argument("--against", metavar="RUN", help="compare with the speed of a run trained here")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.flops import step_flops
    from scse.planning import ACCELERATORS, pace

    require_positive(args, "steps", "gpus")
    if args.utilisation is not None and not 0 < args.utilisation <= 1:
        raise UserError(f"--utilisation must be between 0 and 1, got {args.utilisation}")
    if args.tokens is not None and not 1 <= args.tokens < 1e18:
        raise UserError(f"--tokens must be a sensible number of at least 1, got {args.tokens}")
    if args.accelerator is not None:
        checked_choice("accelerator", args.accelerator, ACCELERATORS)
    if args.names:
        for name in ("family", "scale", "protocol", "tokens", *DEPTH_TRAINING, "set"):
            if getattr(args, name):
                raise UserError(f"--{name} describes one run, and {args.names[0]} is a suite; leave one of them out")
    chosen = [a for name, a in ACCELERATORS.items() if args.accelerator in (None, name)]
    configs = [config for _, config in suite_runs(args)] if args.names else [one_run(args)]
    flops = sum(config.steps * step_flops(config, extra=extra_steps(config)) for config in configs)
    tokens = sum(config.steps * config.tokens_per_step for config in configs)
    answer: dict[str, Any] = {"runs": len(configs), "tokens": tokens, "flops": flops}
    answer["narrowest"] = min(config.model.shape.width for config in configs)
    answer["times"] = [asdict(pace(flops, tokens, a, args.gpus, args.utilisation)) for a in chosen]
    if not args.names:
        answer |= about_run(configs[0], chosen, args.gpus)
    if args.against is not None:
        answer["here"] = here(expand(args.against), flops)
    if args.json:
        print_json(answer)
    else:
        show(answer, args)


def extra_steps(config: TrainConfig) -> int:
    from scse.config.objective import LAST

    if config.objective == LAST:
        return 0
    from scse.training.objectives import check_run, steps_beyond  # loads torch

    check_run(config)
    return steps_beyond(config.objective)


def one_run(args: Arguments) -> TrainConfig:
    """The run that the options describe; a planned shape is trained on twenty tokens per parameter unless told."""
    from scse.config import SCALES, assemble, protocol
    from scse.planning import PLANNED, TOKENS_PER_PARAMETER, parameters

    wanted: dict[str, object] = dict(protocol(args.protocol)) if args.protocol else {}
    if args.scale in PLANNED:
        wanted = {name: value for name, value in wanted.items() if name != "scale"} | PLANNED[args.scale]
    elif args.scale is not None:
        wanted["scale"] = checked_choice("scale", args.scale, (*SCALES, *PLANNED))
    named, by_name = {name: getattr(args, name) for name in ("steps", *DEPTH_TRAINING)}, settings(args.set)
    said_once({**named, "scale": args.scale}, by_name)
    wanted |= {name: value for name, value in named.items() if value is not None} | by_name
    family = args.family or DEFAULT_FAMILY
    if args.tokens is None and (args.scale not in PLANNED or args.steps is not None):
        return assemble(family, wanted)
    shaped = assemble(family, {**wanted, "steps": 1})
    tokens = args.tokens if args.tokens is not None else TOKENS_PER_PARAMETER * parameters(shaped)
    return assemble(family, {**wanted, "steps": max(1, round(tokens / shaped.tokens_per_step))})


def suite_runs(args: Arguments) -> list[tuple[str, TrainConfig]]:
    from scse.config import assemble
    from scse.suites import SUITES
    from scse.suites.needed import members
    from scse.suites.presets import find_preset

    names = SUITES.names() if args.names == ["all"] else dict.fromkeys(args.names)
    suites = [SUITES.find(name) for name in names]
    found = members(suites, find_preset(args.preset, steps=args.steps), Path("runs"), None)
    return [(member.name, assemble(member.arm.family, member.settings)) for member in found]


def about_run(config: TrainConfig, chosen: Sequence[Accelerator], gpus: int) -> dict[str, Any]:
    from scse.planning import GIB, checkpoint_bytes, memory, parameters, strategies

    rows = []
    for accelerator in chosen:
        for strategy in strategies(gpus, accelerator.per_node):
            for recompute in (False, True):
                found = memory(config, strategy, gpus, accelerator.per_node, accelerator.memory * GIB, recompute)
                row: dict[str, Any] = {"accelerator": accelerator.name, "strategy": strategy, "recompute": recompute}
                row |= {"micro_batches": found.micro_batches, "gib": found.total / GIB}
                rows.append({**row, "of": accelerator.memory, "fits": found.total <= accelerator.memory * GIB})
    stored = {"checkpoint_bytes": checkpoint_bytes(config), "parameters": parameters(config)}
    return {**stored, "steps": config.steps, "memory": rows}


def here(folder: Path, flops: float) -> dict[str, float]:
    """What a run reached on this machine, as a share of the rate at which it multiplies matrices now."""
    from scse.errors import RunFailure
    from scse.registry import require_guests
    from scse.runs.folder import read_run_config
    from scse.suites.cost import assumed_share, measured_speeds

    config, _ = read_run_config(folder)
    require_guests(config.guests, str(folder))
    speeds = dict(measured_speeds([folder]))
    if config.model.shape not in speeds:
        raise RunFailure(f"{folder} has no measured steps; train it a little")
    import torch

    from scse.training.speed import matmul_rate

    peak = matmul_rate(getattr(torch, config.precision), torch.device("cpu"))
    speed = speeds[config.model.shape]
    found = {"flops_per_second": speed, "matmul_flops_per_second": peak, "share": speed / peak}
    return {**found, "assumed_share": assumed_share(config.model.shape.width), "hours": flops / speed / 3600}


def show(answer: dict[str, Any], args: Arguments) -> None:
    from scse.planning import ACCELERATORS, GIB, NARROW
    from scse.report.wording import plural

    size = f"{amount(answer['parameters'])} parameters, {answer['steps']:,} steps, " if "parameters" in answer else ""
    work = f"{amount(answer['tokens'])} tokens, {answer['flops']:.1e} FLOP of training"
    print_text(f"{plural(answer['runs'], 'run')}: {size}{work}")
    rows = [
        {
            "accelerator": row["accelerator"],
            "GPUs": row["gpus"],
            "nodes": row["nodes"],
            "tokens/s": amount(row["tokens_per_second"]),
            "time": duration(3600 * row["hours"]),
            "GPU hours": f"{row['gpu_hours']:,.2f}",
            "utilisation": f"{args.utilisation or ACCELERATORS[row['accelerator']].utilisation:.0%}",
        }
        for row in answer["times"]
    ]
    print_table(rows, title="Time, at an assumed share of the stated peak")
    if "memory" in answer:
        print_table([_memory_row(row) for row in answer["memory"]], title="Memory per GPU, counted")
        print(f"a checkpoint: {answer['checkpoint_bytes'] / GIB:.3g} GiB")
    if "here" in answer:
        found = answer["here"]
        print_text(
            f"this machine: {found['flops_per_second']:.3g} FLOP/s in training, {found['share']:.0%} of the "
            f"{found['matmul_flops_per_second']:.3g} at which it multiplies matrices (plans here assume "
            f"{found['assumed_share']:.0%}); all of the above would take it {duration(3600 * found['hours'])}"
        )
    if answer["narrowest"] < NARROW:
        idle = f"a width of {answer['narrowest']:,} keeps no large GPU busy"
        print_text(f"{idle}: expect fewer tokens per second and more hours")


def _memory_row(row: dict[str, Any]) -> dict[str, Any]:
    how = row["strategy"] + (", recompute" if row["recompute"] else "")
    fits = "yes" if row["fits"] else "no"
    gib = f"{row['gib']:.3g} of {row['of']:g}"
    return {"accelerator": row["accelerator"], "strategy": how, "parts": row["micro_batches"], "GiB": gib, "fits": fits}
