"""What is known of a recurrence family without building it, and how families are looked up. No torch here.

The table of families itself is `families.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from scse.errors import UserError, checked_choice
from scse.registry import Guest, Registry

OptionValue = bool | int | float | str
LARGEST_INTEGER = 10**15


@dataclass(frozen=True)
class Family:
    """One row of the catalogue.

    `label` is the row's name in tables. `composer` is a function from a shape and the options to a recurrence, or the
    name of one of `scse.recurrence`. `bodies` counts the block's applications in a step, `uses_t` says whether the
    step looks at t, and `fixed_point` whether the anchor is one, exactly: "raw" before the mask, "masked" by the mask
    alone, "" not. A row named `…-N` stands for every number N, which becomes the option called `numbered` and bounds
    the depth. `paper_extra_matrices` counts d×d matrices that the paper's parameter counts include although its
    equation never uses them. `colour` and `marker` are the family's in every figure.
    """

    name: str
    label: str
    equation: str
    composer: str | Callable[..., Any]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    bodies: int = 1
    uses_t: bool = False
    fixed_point: str = ""
    numbered: str = ""
    paper_extra_matrices: int = 0
    colour: str = "#000000"
    marker: str = "_"

    table: ClassVar[str] = "scse.families:FAMILIES"

    def resolve(self, overrides: Mapping[str, object]) -> dict[str, OptionValue]:
        """All options, the overrides checked against the names and types of the defaults."""
        options = dict(self.options)
        if self.numbered and self.name.endswith("-N"):
            raise UserError(f"'{self.name}' stands for any number: write '{self.example}'")
        for name, value in overrides.items():
            checked_choice(f"option of family '{self.name}'", name, options)
            options[name] = typed_like(name, options[name], value)
            if name == self.numbered and options[name] != self.options[name]:
                stem = self.name.rpartition("-")[0]
                raise UserError(f"'{self.name}' has its {name} in its name: use '{stem}-{options[name]}' instead")
        return options

    @property
    def example(self) -> str:
        """A name that can be built: where one row stands for every number, that of its default."""
        return self.name.replace("-N", f"-{self.own_depth}")

    @property
    def own_depth(self) -> int | None:
        """How many cores it has, one for each loop; None where all loops share one."""
        return int(self.options[self.numbered]) if self.numbered else None

    def body_applications(self, loops: float) -> float:
        """N_body(T); a mean number of loops gives the mean number of applications."""
        return self.bodies * min(loops, self.own_depth or math.inf)


def typed_like(name: str, default: OptionValue, value: object) -> OptionValue:
    """`value` (also as written on a command line) as the type of `default`."""
    kind = type(default)
    text = str(value).strip().lower()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text]
        if kind is int and not isinstance(value, float) and abs(int(text)) <= LARGEST_INTEGER:
            return int(text)
        if kind is float and not isinstance(value, bool):
            number = float(text)
            if math.isfinite(number):
                return number
        if kind is str:
            return str(value)
    except (KeyError, ValueError):
        pass
    wanted = {bool: "true or false", int: "a whole number of sensible size", float: "a finite number"}[kind]
    raise UserError(f"option '{name}' must be {wanted}, got '{value}'")


class Catalogue(Registry[Family]):
    """The families by name, in order. A row `…-N` is found under every number."""

    def find(self, name: str) -> Family:
        stem, _, number = name.rpartition("-")
        numbered = f"{stem}-N"
        if name in self or numbered not in self or not (number.isascii() and number.isdigit()):
            return super().find(name)
        row = super().find(numbered)
        return replace(row, name=name, options={**row.options, row.numbered: int(number)})

    def origin(self, name: str) -> Guest | None:
        return super().origin(name) or super().origin(f"{name.rpartition('-')[0]}-N")
