"""How far a long evaluation came: one that is killed or stopped goes on from there, to the same bits.

Several processes divide its batches, each keeping what it found itself; together they find what one would.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from scse.errors import RunFailure, UserError
from scse.files import content_hash, read_sealed, write_sealed
from scse.processes import ALONE, World

T = TypeVar("T")
Found = dict[str, Any]  # what one batch gave, as JSON

FORMAT = 2
FOLDER = ".evaluating"
SECONDS_BETWEEN = 60.0


@dataclass
class Partial:
    """What the batches of an evaluation gave so far, in files named after all that its numbers depend on.

    Of N processes, `here` computes batches r, r + N, r + 2N, … and has a file of its own for them. The leader forgets
    for all: until then nothing of an evaluation is lost when one of them is stopped.
    """

    run: Path
    about: Mapping[str, Any]
    here: World = ALONE
    kept: float = field(default_factory=time.perf_counter)

    @property
    def name(self) -> str:
        return content_hash(self.about)[:16]

    @property
    def file(self) -> Path:
        whose = f"-{self.here.rank + 1}-of-{self.here.size}" if self.here.size > 1 else ""
        return self.run / FOLDER / f"{self.name}{whose}.json"

    def part(self, name: str, **about: Any) -> Partial:
        """One of several passes over a text."""
        return Partial(self.run, {**self.about, "part": name, **about}, self.here)

    def found(self) -> dict[int, Found]:
        """What was kept of this evaluation by number of batch, whichever process found it.

        Nothing of another evaluation, and nothing that is damaged.
        """
        known: dict[int, Found] = {}
        for path in self._files():
            with contextlib.suppress(UserError):
                stated = read_sealed(path, FORMAT)
                if content_hash(stated["about"]) == content_hash(self.about):
                    rank, size = stated.get("share", (0, 1))
                    known |= {rank + size * place: found for place, found in enumerate(stated["batches"])}
        return known

    @property
    def due(self) -> bool:
        return time.perf_counter() - self.kept >= SECONDS_BETWEEN

    def keep(self, batches: list[Found]) -> None:
        """The first batches of this process. Where they cannot be written, the evaluation goes on without."""
        self.kept = time.perf_counter()
        share = {"share": [self.here.rank, self.here.size]} if self.here.size > 1 else {}
        with contextlib.suppress(OSError):
            write_sealed(self.file, FORMAT, {"about": dict(self.about), "batches": batches, **share})

    def forget(self) -> None:
        """The evaluation is complete."""
        if self.here.leads:
            with contextlib.suppress(OSError):
                for path in self._files():
                    path.unlink(missing_ok=True)
                (self.run / FOLDER).rmdir()  # unless another evaluation has something there

    def _files(self) -> list[Path]:
        """Also those of another number of processes."""
        return sorted((self.run / FOLDER).glob(f"{self.name}*.json"))


def over_batches(
    batches: Iterable[T], one: Callable[[T], Found], partial: Partial | None, passed: Callable[[Found], object]
) -> list[Found]:
    """one(batch) for every batch, in order; `passed` hears of each.

    With a `partial`, they are kept from time to time and when this ends, however it does, and the next one goes on
    there. Who needs them no longer lets it forget. Where it names several processes, each computes its share, and all
    return what all have found.
    """
    try:
        done = _own_batches(batches, one, partial, passed)
    except Exception as error:
        if partial:  # the others wait for a word of this process, unless they are gone
            with contextlib.suppress(RunFailure):
                partial.here.exchange({"of": partial.name, "failed": str(error)})
        raise
    return done if partial is None else _of_all(done, partial, passed)


def _own_batches(
    batches: Iterable[T], one: Callable[[T], Found], partial: Partial | None, passed: Callable[[Found], object]
) -> list[Found]:
    """The batches of this process."""
    here = partial.here if partial else ALONE
    known = partial.found() if partial else {}
    done: list[Found] = []
    new = False
    try:
        for number, batch in enumerate(batches):
            if number % here.size != here.rank:
                continue
            new = new or number not in known
            done.append(known[number] if number in known else one(batch))
            passed(done[-1])
            if partial and new and partial.due:
                partial.keep(done)
    finally:
        if partial and new:
            partial.keep(done)
    return done


def _of_all(done: list[Found], partial: Partial, passed: Callable[[Found], object]) -> list[Found]:
    """What all processes found, in the order of the batches."""
    here = partial.here
    said = here.exchange({"of": partial.name, "batches": done})
    for rank, part in enumerate(said):
        if part["of"] != partial.name:
            raise RunFailure(f"process {rank} left this evaluation for another one; the same command begins it again")
        if "failed" in part:
            raise RunFailure(f"process {rank} failed: {part['failed']}")
        for found in part["batches"] if rank != here.rank else ():
            passed(found)
    shares = [part["batches"] for part in said]
    return [shares[number % here.size][number // here.size] for number in range(sum(map(len, shares)))]
