"""Every recurrence family: its name, its equation, what it claims at its anchor, and its options; with NAME, all about
one, and its parameter counts at a scale.

'zero' says whether the anchor is a fixed point of the one-step map, exactly: 'raw' before the mask, 'masked' by the
mask alone, '-' not. 'bodies' are the applications of the block in a step, 'uses t' whether a step looks at its number.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from scse.cli.common import Arguments, add_json, add_scale, print_json, print_rows
from scse.cli.tables import print_table
from scse.cli.text import print_text

if TYPE_CHECKING:
    from scse.catalogue import Family
    from scse.recurrence.base import Unit

SHOWN_ALONE = "'scse families NAME' shows one whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="one family, such as scse or unshared-8")
    add_scale(parser, default="22m")
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.families import FAMILIES

    if args.name is not None:
        show_one(args.name, args.scale, args.json)
        return
    rows = [about(family) for family in FAMILIES]
    if not args.json:
        rows = [row | {"options": " ".join(f"{k}={v}" for k, v in row["options"].items())} for row in rows]
    print_rows(rows, args.json, spare=("paper", "options", "bodies", "uses t"), elsewhere=SHOWN_ALONE)


def about(family: Family) -> dict[str, Any]:
    """A row of the table."""
    return {
        "family": family.name,
        "step": family.equation,
        "zero": family.fixed_point or "-",
        "bodies": family.bodies,
        "uses t": family.uses_t,
        "options": dict(family.options),
        "paper": family.label,
    }


def show_one(name: str, scale: str, as_json: bool) -> None:
    from scse.accounting import count_parameters, skeleton
    from scse.families import FAMILIES
    from scse.model import model_config

    family = FAMILIES.find(name)
    config = model_config(family.example, scale)
    recurrence = skeleton(config).recurrence
    counts = count_parameters(config)
    row = about(family)
    options = row.pop("options")
    row |= {"start": equation(recurrence.start), "anchor": equation(recurrence.anchor)}
    row |= {"scale": scale, "parameters": counts.active, "paper_parameters": counts.paper}
    if as_json:
        print_json({**row, "options": options})
        return
    title = row.pop("family")
    print_table([{"family": key.replace("_", " "), title: value} for key, value in row.items()])
    if options:
        print_text("Options, changed by name: scse train --set NAME=VALUE")
        print_table([{"option": key, "default": str(value)} for key, value in options.items()])


def equation(unit: Unit) -> str:
    """The first sentence of a unit's docstring, which is its equation."""
    from scse.recurrence.anchors import NoAnchor

    return "none" if isinstance(unit, NoAnchor) else (unit.__doc__ or "").split("\n")[0].strip()
