"""Numbers as text. A value that rounds to zero without being zero is written with its power of ten."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from scse.records.statistics import PairedDifference, Summary
from scse.suites.statements import Printed, Value

ABSENT = "—"
# A letter with an index, such as R_47 or E_Δ,47; not a name with an underscore.
INDEXED = re.compile(r"(?<!\w)([^\W\d_])_(\w+(?:,\w+)*)")
LONG = 1e7
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(text: str) -> str:
    """Text in which a dollar sign starts no formula, and a letter with an index, such as R_47, is one."""
    return INDEXED.sub(r"$\1_{\2}$", text.replace("$", r"\$"))


def number(value: float, digits: int) -> str:
    """-1234.56 -> '−1234.6'; what would be nothing but zeros, or is very large, with a power of 10"""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and (abs(value) < 0.5 * 10**-digits or abs(value) >= LONG):
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


def loops(depth: float) -> str:
    """'8.2 loops': a mean depth that was realised."""
    return f"{number(depth, 1)} loops"


def interval(found: PairedDifference, digits: int) -> str:
    """'−3.9 ± 0.8': a paired difference with its t half-width; an exact one of two models has none."""
    exact = len(found.seeds) == 1 and not found.half_width
    return signed(found.mean, digits) + ("" if exact else f" ± {number(found.half_width, digits)}")


def bootstrap(found: PairedDifference, digits: int) -> str:
    """'[−4.4, −3.5]', of several seeds."""
    return between(found.interval, digits) if len(found.seeds) > 1 else ABSENT


def between(limits: tuple[float, float], digits: int) -> str:
    return f"[{signed(limits[0], digits)}, {signed(limits[1], digits)}]"


def papers_difference(found: Printed | None, of_means: float | None, digits: int) -> str:
    """'−3.32 ± 1.28 [−3.97, −2.40]' as the paper prints it, or '(−3.3)', the difference of its means."""
    if found is None:
        return ABSENT if of_means is None else f"({signed(of_means, digits)})"
    text = signed(found.mean, found.digits)
    if found.half_width is not None:
        text += f" ± {number(found.half_width, found.digits)}"
    return text if found.interval is None else f"{text} {between(found.interval, found.digits)}"


def missing_seeds(seeds: Sequence[int]) -> str:
    """'seeds 1, 2 missing', or nothing."""
    if not seeds:
        return ""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} missing"


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
