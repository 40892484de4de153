"""What training minimises, as a text: terms over depth, each with a weight. No torch here.

`last+0.05*fixed-point` is the loss after the last loop and 0.05 times the fixed-point term. A term may take a number
after a colon, as in `expected:0.1`. What the terms are stands in `scse.training.objectives`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from scse.errors import UserError

LAST = "last"
TERMS_TABLE = "scse.training.objectives:TERMS"  # what the terms are
# The term that trains the model's own exit gate; a model trained with it has one.
EXPECTED = "expected"


@dataclass(frozen=True)
class Weighted:
    """A term of an objective by name, what it is multiplied by, and its number, if one was given."""

    name: str
    weight: float = 1.0
    number: float | None = None

    def __str__(self) -> str:
        weight = "" if self.weight == 1 else f"{_written(self.weight)}*"
        return f"{weight}{self.name}" + ("" if self.number is None else f":{_written(self.number)}")


def parse_objective(text: str) -> tuple[Weighted, ...]:
    """The terms of '[WEIGHT*]NAME[:NUMBER]+…', in the order in which they are written."""
    whole = re.sub(r"(?<=\d)([eE])\+(?=\d)", r"\1", text)  # the plus of 1e+3 adds no term
    terms = tuple(_term(part.strip(), text) for part in whole.split("+"))
    names = [term.name for term in terms]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"objective '{text}' has '{name}' twice; write its weight once")
    if not any(term.weight for term in terms):
        raise UserError(f"objective '{text}' is always 0; give a term a weight above 0")
    return terms


def canonical_objective(text: str) -> str:
    """The one way in which an objective is stored."""
    return "+".join(map(str, parse_objective(text)))


def _term(part: str, whole: str) -> Weighted:
    weight, star, rest = part.partition("*")
    name, colon, number = (rest if star else part).partition(":")
    if not name.strip():
        raise UserError(f"objective '{whole}' has a term without a name; write for example last+0.05*fixed-point")
    return Weighted(
        name.strip(),
        _number(weight, whole) if star else 1.0,
        _number(number, whole) if colon else None,
    )


def _written(number: float) -> str:
    """Six digits where they say it all."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"'{text}' in objective '{whole}' is not a number of at least 0")
    return value
