"""Run the laws on a family, yours included: scse check my-family --import my_family.py.

Every law is a sentence that must hold for any recurrence here: causality, an exact cache, a fixed anchor where the row
claims one, and so on. The exit code is 1 if one is broken, and the line says how.
"""

from __future__ import annotations

import argparse

from scse.cli.common import Arguments, add_device, add_json, print_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="FAMILY", help="a name of 'scse families', or of an imported file")
    add_device(parser)
    add_json(parser)


def run(args: Arguments) -> None:
    from scse.devices import resolve_device
    from scse.errors import RunFailure
    from scse.families import FAMILIES
    from scse.testing import check_family

    name = FAMILIES.find(args.name).example
    found = check_family(name, device=resolve_device(args.device, float64=True))
    rows = [{"law": v.law.name, "holds": not v.fault, "statement": v.law.statement, "fault": v.fault} for v in found]
    print_rows(rows, args.json, title=f"The laws on {name}", spare=("fault",))
    broken = [f"{v.law.name}: {v.fault}" for v in found if v.fault]
    if broken:
        raise RunFailure(f"{name} breaks {len(broken)} of {len(found)} laws: {'; '.join(broken)}")
