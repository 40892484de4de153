"""How far a long evaluation came: one that is killed or stopped goes on from there, to the same bits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from scse.errors import UserError
from scse.files import content_hash, read_sealed, write_sealed

T = TypeVar("T")
Found = dict[str, Any]  # what one batch gave, as JSON

FORMAT = 2
FOLDER = ".evaluating"
SECONDS_BETWEEN = 60.0


@dataclass
class Partial:
    """What the batches of an evaluation gave so far, in a file named after all that its numbers depend on."""

    run: Path
    about: Mapping[str, Any]
    kept: float = field(default_factory=time.perf_counter)

    @property
    def file(self) -> Path:
        return self.run / FOLDER / f"{content_hash(self.about)[:16]}.json"

    def part(self, name: str, **about: Any) -> Partial:
        """One of several passes over a text."""
        return Partial(self.run, {**self.about, "part": name, **about})

    def found(self) -> list[Found]:
        """What was kept of this evaluation; nothing of another, and nothing that is damaged."""
        try:
            stated = read_sealed(self.file, FORMAT)
        except UserError:
            return []
        return list(stated["batches"]) if content_hash(stated["about"]) == content_hash(self.about) else []

    @property
    def due(self) -> bool:
        return time.perf_counter() - self.kept >= SECONDS_BETWEEN

    def keep(self, batches: list[Found]) -> None:
        """Where it cannot be written, the evaluation goes on without."""
        self.kept = time.perf_counter()
        with contextlib.suppress(OSError):
            write_sealed(self.file, FORMAT, {"about": dict(self.about), "batches": batches})

    def forget(self) -> None:
        """The evaluation is complete."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
            self.file.parent.rmdir()  # unless another evaluation has something there


def over_batches(
    batches: Iterable[T], one: Callable[[T], Found], partial: Partial | None, passed: Callable[[Found], object]
) -> list[Found]:
    """one(batch) for every batch, in order; `passed` hears of each.

    With a `partial`, they are kept from time to time and when this ends, however it does, and the next one goes on
    there. Who needs them no longer lets it forget.
    """
    done = partial.found() if partial else []
    for found in done:
        passed(found)
    known = len(done)
    try:
        for batch in islice(batches, known, None):
            done.append(one(batch))
            passed(done[-1])
            if partial and partial.due:
                partial.keep(done)
    finally:
        if partial and len(done) > known:
            partial.keep(done)
    return done
