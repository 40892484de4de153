"""Problems that need depth, as corpora: each is a seeded generator with an oracle. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from scse.errors import UserError, checked_choice
from scse.problems.addition import Addition
from scse.problems.base import Examples, Problem, in_hops
from scse.problems.p_hop import PHop
from scse.problems.pointer_chase import PointerChase
from scse.problems.reachability import Reachability
from scse.problems.scans import S5, PrefixSum
from scse.registry import Registry

__all__ = ["PROBLEMS", "Examples", "Problem", "in_hops", "make_problem"]

PROBLEMS: Registry[type[Problem]] = Registry(
    "problem", (PointerChase, PHop, S5, Addition, PrefixSum, Reachability), hint="'scse data list' shows all"
)


def make_problem(name: str, options: Mapping[str, object] | None = None) -> Problem:
    """The problem called `name`; its options are whole numbers."""
    kind = PROBLEMS.find(name)
    known = [f.name for f in fields(kind)]
    chosen: dict[str, int] = {}
    for option, value in (options or {}).items():
        checked_choice(f"option of problem '{name}'", option, known)
        try:
            chosen[option] = int(str(value))
        except ValueError:
            raise UserError(f"option '{option}' must be a whole number, got '{value}'") from None
    return kind(**chosen)
