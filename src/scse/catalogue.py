"""Facts about families that are needed without torch, by the name of the row. No torch here.

The family table in `recurrence` is built from composers and cannot be read without loading torch; a test holds what is
said here to it. A family that is not named has the usual facts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """`bodies` is how often a step applies the core; `numbered` rows end in a number at which their depth saturates."""

    bodies: int = 1
    numbered: bool = False


# Two bodies: one at the state and one at the anchor.
FACTS = {
    "sc-cond-subtractive": Facts(bodies=2),
    "forcing-subtraction": Facts(bodies=2),
    "centred-huginn": Facts(bodies=2),
    "centred-parcae": Facts(bodies=2),
    "centred-orthogonal-injection": Facts(bodies=2),
    "unshared-N": Facts(numbered=True),
}


def body_applications(family: str, loops: float) -> float:
    """N_body(T): how often a family applies its core; a mean number of loops gives the mean number."""
    stem, _, number = family.rpartition("-")
    if number.isdigit() and FACTS.get(f"{stem}-N", Facts()).numbered:
        return min(loops, int(number))
    return FACTS.get(family, Facts()).bodies * loops
