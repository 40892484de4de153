"""Mistakes of the user: one line that says what to do. The command line turns them into exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 20  # names that can all be listed beside a suggestion


class UserError(ValueError):
    """Something the caller can mend; the message is one line and names the remedy, whatever names it quotes."""

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in super().__str__())


class RunFailure(RuntimeError):
    """A run that could not go on although it was asked for correctly. The command line exits with 1."""


def unknown_name(kind: str, name: object, valid: Iterable[str], hint: str = "", of: str = "") -> UserError:
    """An error for a misspelt name, with the nearest valid one, and the others where they are few or none is near.

    >>> str(unknown_name("scale", "22M", ["22m", "50m"]))
    "unknown scale '22M'; did you mean '22m'? (valid: 22m, 50m)"
    """
    names = list(valid)
    folded = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), folded, n=1, cutoff=0.6)
    nearest = f"; did you mean '{folded[close[0]]}'?" if close else ""
    tail = hint or f"valid: {', '.join(names)}"
    tail = "" if nearest and not hint and len(names) > FEW else f" ({tail})"
    return UserError(f"unknown {kind} '{name}'{f' of {of}' if of else ''}{nearest}{tail}")


def checked_choice(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return `name` if it is valid, otherwise raise the error of `unknown_name`."""
    names = list(valid)
    if name not in names:
        raise unknown_name(kind, name, names)
    return name
