"""How configurations are written down, so that they can grow. No torch here.

A class names its `FIRST` fields, those of the first stored files. Every later field has a neutral default: what was
done before it existed. A neutral field is left out of what is written, and one that is missing there is neutral, so old
runs can be continued, and old records are still records of the same runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from scse.errors import UserError, checked_choice


def neutral_fields(kind: type) -> dict[str, Any]:
    """The fields that came later, with their neutral values."""
    return {f.name: _default(f) for f in fields(kind) if f.name not in kind.FIRST}  # type: ignore[attr-defined]


def written(value: Any) -> dict[str, Any]:
    """The fields of a configuration as they are stored."""
    neutral = neutral_fields(type(value))
    stated = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: field for name, field in stated.items() if name not in neutral or field != neutral[name]}


def check_fields(kind: type, data: Mapping[str, Any], what: str, whole: str) -> None:
    """Refuse what is unknown, and what is missing of the first fields."""
    known = [f.name for f in fields(kind)]
    for name in data:
        checked_choice(what, name, known)
    for name in kind.FIRST:  # type: ignore[attr-defined]
        if name not in data:
            raise UserError(f"{whole} lacks '{name}'")


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
