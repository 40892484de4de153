"""Parameter counts. 'active' is what our model trains; 'paper' is the count as the paper reports it.

The two differ for SCSE, where the paper's counts include a d×d conditioning matrix that its recurrence never uses.
To give a family as many parameters as another, change its width of the feed-forward layer: --set ff_width=1500.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from scse.cli.common import Arguments, add_family, add_json, add_scale, print_json, print_rows, settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_family(parser)
    add_scale(parser)
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="change one option by name")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.config import SCALES
    from scse.families import FAMILIES

    families = [FAMILIES.find(args.family)] if args.family else list(FAMILIES)
    scales = [args.scale] if args.scale else list(SCALES)
    changes = settings(args.set)
    rows = [row(family.example, scale, changes) for scale in scales for family in families]
    if args.json and args.family and args.scale:
        print_json(rows[0])
    else:
        print_rows(rows, args.json)


def row(family: str, scale: str, changes: Mapping[str, object]) -> dict[str, object]:
    from scse.accounting import count_parameters
    from scse.config import assemble

    counts = count_parameters(assemble(family, {"scale": scale, "steps": 1, **changes}).model)
    return {"family": family, "scale": scale, "active": counts.active, "paper": counts.paper}
