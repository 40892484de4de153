"""Tables that guests may add to: families, tasks, suites, corpora, problems, exit rules, depth samplers, terms of
objectives. No torch here.

A guest is a Python file or an installed package that registers things of its own. Each table remembers who brought
what, so that a run can say which guests it needs and ask for them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from scse.errors import UserError, unknown_name


class Named(Protocol):
    """What a table holds: things that carry their name. `table` of their class says where theirs is ("module:NAME"),
    for `register`.
    """

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
ENTRY_POINTS = "scse.guests"


@dataclass(frozen=True)
class Guest:
    """Who brought something: the name of a file or distribution, and the hash of the file (a package's version)."""

    name: str
    version: str
    path: str = ""


_arriving: ContextVar[Guest | None] = ContextVar("arriving", default=None)
_present: dict[str, Guest] = {}
_brought: dict[tuple[str, str], Guest] = {}


class Registry(Generic[T]):
    """Things of one kind by name, in order. `kind` is the word for one of them; an alias is another name."""

    def __init__(self, kind: str, items: Iterable[T], hint: str = "", aliases: Mapping[str, str] | None = None) -> None:
        self.kind, self.hint = kind, hint
        self.aliases = dict(aliases or {})
        self._items = {item.name: item for item in items}

    def register(self, item: T) -> T:
        """Add something from outside the package; a name that is taken is an error, never a replacement."""
        name = item.name
        if name in self._items:
            raise UserError(f"there is already a {self.kind} '{name}'; register yours under another name")
        self._items[name] = item
        if (guest := _arriving.get()) is not None:
            _brought[_table(item), name] = guest
        return item

    def find(self, name: str) -> T:
        name = self.aliases.get(name, name)
        if name not in self._items:
            raise unknown_name(self.kind, name, self._items, self.hint)
        return self._items[name]

    def origin(self, name: str) -> Guest | None:
        """Who brought the thing of this name; None for the package's own."""
        return who_brought(_table(self._items[name]), name) if name in self._items else None

    def names(self) -> list[str]:
        return list(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)


def _table(item: Named) -> str:
    """Where things of this kind are kept ("module:NAME"); empty for those that no table of the package takes."""
    return str(getattr(item, "table", ""))


def register(item: T) -> T:
    """Add a thing of your own to the table of its kind: a `Family`, `Task`, `Suite`, `DocumentCorpus`, `ExitRule`,
    `DepthSampler` or `Term`, or a subclass of `Problem`. A name that is taken is an error, never a replacement.
    """
    module, _, name = _table(item).partition(":")
    if not name:
        raise UserError(f"cannot register {item!r}: it is none of the kinds of things that scse.register takes")
    table: Registry[T] = getattr(importlib.import_module(module), name)
    return table.register(item)


def who_brought(table: str, name: str) -> Guest | None:
    """The guest behind a thing in a table ("module:NAME"), which need not be imported to ask."""
    return _brought.get((table, name))


def import_guest(path: str | Path) -> Guest:
    """Run a Python file of the user's, so that it registers what it brings. The same file twice is once."""
    place = Path(path).expanduser()
    try:
        content = place.read_bytes()
    except OSError as error:
        raise UserError(f"cannot import {place}: {error.strerror}; --import takes a Python file") from None
    guest = Guest(place.name, hashlib.sha256(content).hexdigest(), str(place.resolve()))
    known = _present.get(guest.name)
    if known is not None:
        if known.version != guest.version:
            raise UserError(f"two different files are called {guest.name}; give one of them another name")
        return known
    module_name = f"scse_guest_{guest.version[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, place)
    if spec is None or spec.loader is None:
        raise UserError(f"cannot import {place}; --import takes a Python file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with _as(guest):
            spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        del sys.modules[module_name]
        raise UserError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    _present[guest.name] = guest
    return guest


def import_installed_guests() -> None:
    """Let in the packages that announce themselves in the entry point group `scse.guests`."""
    before = set(_present)
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        package = entry.dist.name if entry.dist else entry.name
        if package in before:
            continue
        guest = Guest(package, entry.dist.version if entry.dist else "")
        try:
            with _as(guest):
                loaded = entry.load()
                if callable(loaded):
                    loaded()
        except Exception as error:
            raise UserError(f"the installed guest '{package}' fails: {type(error).__name__}: {error}") from error
        _present[package] = guest


def imported_files() -> tuple[str, ...]:
    """The files that have been imported, for processes that must do the same."""
    return tuple(guest.path for guest in _present.values() if guest.path)


def require_guests(needed: Mapping[str, str], who: str) -> list[str]:
    """Ask for the guests that `who` was made with; sentences about those that are not the same as then.

    Nothing is imported here: a folder that is merely opened must not be able to run code.
    """
    changed = []
    for name, version in needed.items():
        guest = _present.get(name)
        if guest is None:
            how = f"--import {name}" if name.endswith(".py") else f"pip install {name}"
            raise UserError(f"{who} needs '{name}', which is not imported; add: {how}")
        if guest.version != version:
            changed.append(f"{who} was made with another version of {name} than the one imported now")
    return changed


@contextlib.contextmanager
def _as(guest: Guest) -> Iterator[None]:
    token = _arriving.set(guest)
    try:
        yield
    finally:
        _arriving.reset(token)
