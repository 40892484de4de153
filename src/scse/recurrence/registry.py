"""How a row of the family table is looked up, its options resolved, and a recurrence built from it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from scse.config import ModelConfig, OptionValue, Shape
from scse.errors import UserError, unknown_name
from scse.recurrence.recurrence import Recurrence

LARGEST_INTEGER = 10**15
Composer = Callable[..., Recurrence]


@dataclass(frozen=True)
class Family:
    """One row: a composer under a name, with the defaults that differ from the composer's own.

    `label` is the row's name in the paper's tables. `paper_extra_matrices` counts d×d matrices that the paper's
    parameter counts include although its equation never uses them. A row named `…-N` stands for every number N, which
    becomes the option called `numbered`. `step` is the row's equation where it differs from the composer's.
    """

    name: str
    label: str
    compose: Composer
    defaults: Mapping[str, OptionValue] = field(default_factory=dict)
    paper_extra_matrices: int = 0
    numbered: str = ""
    step: str = ""

    @property
    def equation(self) -> str:
        if self.step:
            return self.step
        return inspect.cleandoc(self.compose.__doc__ or "").splitlines()[0]

    @property
    def options(self) -> dict[str, OptionValue]:
        """Every option of this row with its default."""
        parameters = inspect.signature(self.compose).parameters.values()
        own = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return own | dict(self.defaults)

    def resolve(self, overrides: Mapping[str, object]) -> dict[str, OptionValue]:
        """All options, the overrides checked against the names and types of the defaults."""
        options = self.options
        for name, value in overrides.items():
            if name not in options:
                raise unknown_name(f"option of family '{self.name}'", name, options)
            options[name] = typed_like(name, options[name], value)
        return options

    def build(self, shape: Shape, options: Mapping[str, OptionValue]) -> Recurrence:
        return self.compose(shape, **options)


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


class FamilyTable:
    """The rows by name, in the order of the table."""

    def __init__(self, *rows: Family) -> None:
        self.rows = {row.name: row for row in rows}

    def __iter__(self) -> Iterator[Family]:
        return iter(self.rows.values())

    def register(self, row: Family) -> None:
        """Add a row from outside the package; a name that is taken is an error, never a replacement."""
        if row.name in self.rows:
            raise UserError(f"there is already a family '{row.name}'; register yours under another name")
        self.rows[row.name] = row

    def find(self, name: str) -> Family:
        """The row called `name`; `unshared-5` finds the row `unshared-N` with N = 5."""
        if name in self.rows:
            return self.rows[name]
        stem, _, number = name.rpartition("-")
        row = self.rows.get(f"{stem}-N")
        if row is not None and number.isascii() and number.isdigit():
            return replace(row, name=name, defaults={**row.defaults, row.numbered: int(number)})
        raise unknown_name("family", name, self.rows, hint="'scse families' lists all")

    def build(self, config: ModelConfig) -> Recurrence:
        """The recurrence of a configuration."""
        family = self.find(config.family)
        missing = sorted(family.options.keys() - config.options.keys())
        if missing:
            raise UserError(f"the configuration of family '{config.family}' lacks its option '{missing[0]}'")
        return family.build(config.shape, family.resolve(config.options))
