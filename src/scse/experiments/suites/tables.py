"""How a table of the paper is written down as a suite. No torch here.

A table is a text. `= suffix | group | protocol` opens a part of it; the suffix tells the names of its arms from those
of other parts. Below it stands one line per row:

    family [x5|x1] [: label] | value | value | …

`x5` is the expanded set of seeds, `x1` a single one, nothing the default three. The label is the paper's where it is
not the usual one. A value is `155.1±0.6`, `182.6` or `–` for what the paper does not report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scse.experiments.suite import DEFAULT_SEEDS, EXPANDED_SEEDS, Arm, Claim, Column, Suite, Value

LABELS = {
    "looped": "Looped Transformer baseline",
    "looped-s035": "Residual step scale s=0.35",
    "scalar-gate": "Learned scalar gate",
    "channel-gate": "Channel recurrent gate",
    "norm-reset": "Periodic normalization reset",
    "adapter": "Capacity-matched adapter",
    "tuned-adapter": "Tuned adapter, s=0.35",
    "step-adapter": "Recurrent-step-conditioned adapter",
    "film-adapter": "Step-FiLM adapter",
    "scse": "SCSE",
    "sc-cond": "SC-Cond, masked",
    "sc-cond-unmasked": "SC-Cond, no mask",
    "sc-cond-subtractive": "SC-Cond, subtractive",
    "forcing-subtraction": "Additive + forcing subtraction",
    "leak": "Leak diagnostic",
    "unshared-4": "Parameter-matched unshared Transformer-4",
    "unshared-8": "Unshared Transformer-8, fixed-depth reference",
}
SEEDS = {"": DEFAULT_SEEDS, "x5": EXPANDED_SEEDS, "x1": (0,)}
REFERENCES = ("unshared-8",)
# Four unshared layers must be narrower to have the looped model's parameters.
NARROWER: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "unshared-4": ({"scale": "4x320"}, {"scale": "mini", "width": 88, "ff_width": 352}),
}
# The paper's 95.6M runs vary every random stream but the order of the data.
FIXED_DATA_ORDER = ("wikitext-103-96m", "wikitext-103-96m-10k")


def table(
    name: str, title: str, columns: Sequence[Column], text: str, claims: Sequence[Claim] = (), figure: str = ""
) -> Suite:
    """The suite that a table's text describes."""
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
        for column, cell in zip(columns, cells, strict=True):
            if cell != "–":
                paper[arm.name, column.header] = value(cell)
    return Suite(name, title, tuple(arms), tuple(columns), paper, tuple(claims), figure)


def _arm(head: str, suffix: str, group: str, protocol: str) -> Arm:
    who, _, label = (part.strip() for part in head.partition(":"))
    family, _, seeds = who.partition(" ")
    settings, mini = NARROWER.get(family, ({}, {}))
    if protocol in FIXED_DATA_ORDER:
        settings = {**settings, "data_seed": 0}
    return Arm(
        name=f"{family}-{suffix}" if suffix else family,
        family=family,
        protocol=protocol,
        label=label or LABELS[family],
        group=group,
        seeds=SEEDS[seeds.strip()],
        settings=settings,
        mini=mini,
        reference=family in REFERENCES,
    )


def value(cell: str) -> Value:
    """'155.1±0.6' or '182.6'"""
    mean, plus_minus, sd = cell.partition("±")
    return Value(float(mean), float(sd) if plus_minus else None)


def loops(*depths: int, digits: int = 1) -> list[Column]:
    """Perplexity at these depths."""
    return [Column(f"T={depth}", depth=depth, digits=digits) for depth in depths]


def headers(*depths: int) -> tuple[str, ...]:
    return tuple(f"T={depth}" for depth in depths)


def named(families: str, suffix: str) -> tuple[str, ...]:
    """'looped scse', '50m' -> ('looped-50m', 'scse-50m')"""
    return tuple(f"{family}-{suffix}" for family in families.split())
