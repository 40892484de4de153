"""Numbers as text. A value that rounds to zero without being zero is written with its power of ten."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from scse.experiments.statistics import PairedDifference, Summary
from scse.experiments.suite import Value

ABSENT = "—"
# A letter with an index, such as R_47 or E_Δ,47; not a name with an underscore.
INDEXED = re.compile(r"(?<!\w)([^\W\d_])_(\w+(?:,\w+)*)")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int) -> str:
    """-1234.56 -> '−1234.6'"""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and abs(value) < 0.5 * 10**-digits:
        mantissa, _, power = f"{value:.1e}".partition("e")
        return f"{mantissa}×10{str(int(power)).translate(_RAISED)}".replace("-", "−")
    rounded = f"{value:.{digits}f}"
    return rounded.replace("-", "−")


def signed(value: float, digits: int) -> str:
    text = number(value, digits)
    return text if value <= 0 or text[0] == "∞" else f"+{text}"


def printed(value: Value | None, digits: int) -> str:
    """A value of the paper, with its deviation where it has one."""
    if value is None:
        return ABSENT
    return number(value.mean, digits) + ("" if value.sd is None else f" ± {number(value.sd, digits)}")


def measured(summary: Summary | None, digits: int, wanted: int) -> str:
    """'156.4 ± 0.6 (3)': mean, sample deviation and number of seeds, '(2 of 3)' where some are missing."""
    if summary is None:
        return ABSENT
    seeds = len(summary.seeds)
    deviation = f" ± {number(summary.sd, digits)}" if seeds > 1 and math.isfinite(summary.sd) else ""
    return f"{number(summary.mean, digits)}{deviation} ({seeds if seeds >= wanted else f'{seeds} of {wanted}'})"


def interval(found: PairedDifference, digits: int) -> str:
    """'−3.9 ± 0.8': a paired difference with its t half-width."""
    return f"{signed(found.mean, digits)} ± {number(found.half_width, digits)}"


def bootstrap(found: PairedDifference, digits: int) -> str:
    low, high = found.interval
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def missing_seeds(seeds: Sequence[int]) -> str:
    """'seeds 1, 2 missing', or nothing."""
    if not seeds:
        return ""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} missing"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
