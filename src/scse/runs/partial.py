"""How far a long evaluation came: one that is killed or stopped goes on from there, to the same bits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scse.errors import UserError
from scse.files import content_hash, read_sealed, write_sealed

FORMAT = 1
FOLDER = ".evaluating"
SECONDS_BETWEEN = 60.0


@dataclass
class Partial:
    """What an evaluation of a run has summed up so far, in a file named after all that its numbers depend on."""

    run: Path
    about: Mapping[str, Any]
    kept: float = field(default_factory=time.perf_counter)

    @property
    def file(self) -> Path:
        return self.run / FOLDER / f"{content_hash(self.about)[:16]}.json"

    def found(self) -> dict[str, Any]:
        """What was kept of this evaluation; nothing of another, and nothing that is damaged."""
        try:
            stated = read_sealed(self.file, FORMAT)
        except UserError:
            return {}
        return dict(stated["sums"]) if stated.get("about") == self.about else {}

    @property
    def due(self) -> bool:
        return time.perf_counter() - self.kept >= SECONDS_BETWEEN

    def keep(self, sums: Mapping[str, Any]) -> None:
        """Where it cannot be written, the evaluation goes on without."""
        self.kept = time.perf_counter()
        with contextlib.suppress(OSError):
            write_sealed(self.file, FORMAT, {"about": dict(self.about), "sums": dict(sums)})

    def forget(self) -> None:
        """The evaluation is complete."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
            self.file.parent.rmdir()  # unless another evaluation has something there
