"""Parameter counts. 'active' is what our model trains; 'paper' is the count as the paper reports it.

The two differ for SCSE, where the paper's counts include a d×d conditioning matrix that its recurrence never uses.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_family, add_json, add_scale, print_json, print_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_family(parser)
    add_scale(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.config import SCALES
    from scse.families import FAMILIES

    families = [FAMILIES.find(args.family)] if args.family else list(FAMILIES)
    scales = [args.scale] if args.scale else list(SCALES)
    rows = [row(family.example, scale) for scale in scales for family in families]
    if args.json and args.family and args.scale:
        print_json(rows[0])
    else:
        print_rows(rows, args.json)


def row(family: str, scale: str) -> dict[str, object]:
    from scse.accounting import count_parameters
    from scse.model import model_config

    counts = count_parameters(model_config(family, scale))
    return {"family": family, "scale": scale, "active": counts.active, "paper": counts.paper}
