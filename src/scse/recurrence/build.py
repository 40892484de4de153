"""From a configuration to its recurrence, and from a function of one's own to a row of the catalogue."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scse.catalogue import Family
from scse.config.model import ModelConfig, Shape
from scse.errors import UserError
from scse.families import FAMILIES
from scse.nn.without_storage import without_storage
from scse.recurrence.composers import COMPOSERS as PAPERS
from scse.recurrence.reading import MotionGate
from scse.recurrence.recall import COMPOSERS as RECALLED
from scse.recurrence.recurrence import Recurrence
from scse.recurrence.rivals import COMPOSERS as RIVALS

Composer = Callable[..., Recurrence]
# By their names in the catalogue, which cannot hold the functions themselves.
COMPOSERS: dict[str, Composer] = {function.__name__: function for function in (*PAPERS, *RIVALS, *RECALLED)}
_SMALL = Shape(width=8, heads=2, ff_width=8, context=4, vocabulary=8)


def build(config: ModelConfig) -> Recurrence:
    """The recurrence of a configuration. An option that came after it was written has its neutral default."""
    family = FAMILIES.find(config.family)
    recurrence = composer_of(family)(config.shape, **family.resolve(config.options))
    if config.shape.gate and recurrence.exit is None:
        recurrence.exit = MotionGate(config.shape)
    return recurrence


def composer_of(family: Family) -> Composer:
    """The function that puts a family together."""
    return family.composer if callable(family.composer) else COMPOSERS[family.composer]


def family(name: str, composer: Composer, label: str = "", **facts: Any) -> Family:
    """A row for a function of one's own: its docstring's first line is the equation, its keyword arguments with their
    defaults are the options. What a step costs and what it claims at its anchor is read off the recurrence."""
    parameters = inspect.signature(composer).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for option, default in options.items():
        if default is inspect.Parameter.empty:
            raise UserError(f"option '{option}' of family '{name}' has no default; give its argument one")
    equation = inspect.cleandoc(composer.__doc__ or "").partition("\n")[0]
    with without_storage():
        found = stated(composer(_SMALL, **options))
    return Family(name, label or name, equation, composer, options, **(found | facts))


def stated(recurrence: Recurrence) -> dict[str, Any]:
    """What a row of the catalogue must say of a recurrence."""
    fixed_point = "raw" if recurrence.zero_preserving else "masked" if recurrence.anchor_preserving else ""
    return {"bodies": recurrence.bodies_per_step, "uses_t": recurrence.step_dependent, "fixed_point": fixed_point}
