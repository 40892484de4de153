"""How a table of the paper is written down as a suite. No torch here.

A table is a text. `= suffix | group | protocol` opens a part of it; the suffix tells the names of its arms from those
of other parts. Below it stands one line per row:

    [+] family [x5|x1] [: label] | value | value | …

`x5` is the expanded set of seeds, `x1` a single one, nothing the default three. The label is the paper's where it is
not the usual one. A value is `155.1±0.6`, `182.6` or `–` for what the paper does not report. A row with a plus stands
beside the paper's table: its values, if any, are from another table or from the text. So does a column that says so;
they come last, and a row that has no value in them may end before.

The differences that the paper prints are another text, `left − right` by arm or by column:

    scse − tuned-adapter | T=8: -3.32±1.28 [-3.97, -2.40] | T=24: …
    scse | T=48 − T=8: 29.0
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scse.families import FAMILIES
from scse.suites.statements import Place
from scse.suites.suite import DEFAULT_SEEDS, EXPANDED_SEEDS, Arm, Claim, Column, Printed, Suite, Value
from scse.tasks.base import PROFILED_SEQUENCES

# What the paper's tables call unshared layers, by what each count was chosen for.
LABELS = {
    "unshared-4": "Parameter-matched unshared Transformer-4",
    "unshared-6": "Parameter-matched unshared Transformer-6",
    "unshared-8": "Unshared Transformer-8, fixed-depth reference",
}
SEEDS = {"": DEFAULT_SEEDS, "x5": EXPANDED_SEEDS, "x1": (0,)}
REFERENCES = ("unshared-8",)
# Unshared layers must be narrower to have the looped model's parameters.
NARROWER: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "unshared-4": ({"scale": "4x320"}, {"scale": "mini", "width": 88, "ff_width": 352}),
    "unshared-6": ({"scale": "6x288"}, {"scale": "mini", "width": 72, "ff_width": 288}),
}
# The paper's 95.6M runs vary every random stream but the order of the data.
FIXED_DATA_ORDER = ("wikitext-103-96m", "wikitext-103-96m-10k")
# Latency times throughput in the paper's profile: 2,048 tokens at 50M, 1,024 at 95.6M.
PROFILED = {"wikitext-103-96m": 8}
# The paper's margin of a tie is not given. It calls 0.2 % "essentially tied" and 0.7 % trailing.
TIE = 0.005


def table(
    label: str,
    name: str,
    title: str,
    columns: Sequence[Column],
    text: str,
    claims: Sequence[Claim] = (),
    figure: str = "",
    printed: str = "",
) -> Suite:
    """The suite that a table's text describes: the paper's label for it, and the name it goes by here."""
    arms: list[Arm] = []
    paper: dict[tuple[str, str], Value] = {}
    part = ("", "", "")
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("="):
            suffix, group, protocol = (cell.strip() for cell in line[1:].split("|"))
            part = suffix, group, protocol
            continue
        head, *cells = (cell.strip() for cell in line.split("|"))
        arm = _arm(head, *part)
        arms.append(arm)
        if len(cells) == sum(not column.beside for column in columns):
            cells += ["–"] * (len(columns) - len(cells))
        for column, cell in zip(columns, cells, strict=True):
            if cell != "–":
                paper[arm.name, column.header] = value(cell)
    told = paper, tuple(claims), figure, differences(printed), label
    return Suite(name, title, tuple(arms), tuple(columns), *told)


def _arm(head: str, suffix: str, group: str, protocol: str) -> Arm:
    who, _, label = (part.strip() for part in head.removeprefix("+").partition(":"))
    family, _, seeds = who.partition(" ")
    settings, mini = NARROWER.get(family, ({}, {}))
    if protocol in FIXED_DATA_ORDER:
        settings = {**settings, "data_seed": 0}
    return Arm(
        name=f"{family}-{suffix}" if suffix else family,
        family=family,
        protocol=protocol,
        label=label or LABELS.get(family) or FAMILIES.find(family).label,
        group=group,
        seeds=SEEDS[seeds.strip()],
        settings=settings,
        mini=mini,
        reference=family in REFERENCES,
        beside=head.startswith("+"),
        sequences=PROFILED.get(protocol, PROFILED_SEQUENCES),
    )


def value(cell: str) -> Value:
    """'155.1±0.6' or '182.6'"""
    mean, plus_minus, sd = cell.partition("±")
    return Value(float(mean), float(sd) if plus_minus else None)


def differences(text: str) -> dict[tuple[Place, Place], Printed]:
    """Each line: who is compared, and then the columns with what the paper prints."""
    found: dict[tuple[Place, Place], Printed] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        arms, *cells = (cell.strip() for cell in line.split("|"))
        for cell in cells:
            header, _, number = cell.rpartition(": ")
            (left, right), (after, before) = (_two_sides(side) for side in (arms, header))
            found[(left, after), (right, before)] = difference(number)
    return found


def _two_sides(text: str) -> tuple[str, str]:
    """'scse − leak' -> ('scse', 'leak'); 'scse' -> ('scse', 'scse')"""
    left, minus, right = text.partition(" − ")
    return left, right if minus else left


def difference(text: str) -> Printed:
    """'-3.32±1.28 [-3.97, -2.40]', either part after the number optional"""
    numbers = re.fullmatch(r"(-?\d+\.(\d+))(?:±([\d.]+))?(?: \[(-?[\d.]+), (-?[\d.]+)\])?", text)
    assert numbers, text
    mean, decimals, half, low, high = numbers.groups()
    limits = None if low is None else (float(low), float(high))
    return Printed(float(mean), None if half is None else float(half), limits, len(decimals))


def change(since: int, depth: int) -> Column:
    """How perplexity changes between two depths; the paper's tables have no such column."""
    return Column(f"T={since} → {depth}", depth=depth, since=since, lower=None, beside=True)


def named(families: str, suffix: str) -> tuple[str, ...]:
    """'looped scse', '50m' -> ('looped-50m', 'scse-50m')"""
    return tuple(f"{family}-{suffix}" for family in families.split())
