"""Every recurrence family: its name, its equation, what it claims at its anchor, and its options.

'zero' says whether the anchor is a fixed point of the one-step map, exactly: 'raw' before the mask, 'masked' by the
mask alone, '-' not.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_json, print_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: Arguments) -> None:
    print_rows(rows(structured=args.json), args.json)


def rows(structured: bool) -> list[dict[str, object]]:
    from scse.accounting import skeleton
    from scse.families import FAMILIES
    from scse.model import model_config

    table: list[dict[str, object]] = []
    for family in FAMILIES:
        name = family.name.replace("-N", "-8")
        recurrence = skeleton(model_config(name, "mini")).recurrence
        zero = "raw" if recurrence.zero_preserving else "masked" if recurrence.anchor_preserving else "-"
        options = family.options
        table.append(
            {
                "family": family.name,
                "step": family.equation,
                "zero": zero,
                "bodies": recurrence.bodies_per_step,
                "uses t": recurrence.step_dependent,
                "options": options if structured else " ".join(f"{k}={v}" for k, v in options.items()),
                "paper": family.label,
            }
        )
    return table
