"""What a file contains, as a hash, remembered so that large files are read for it once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scse.data.readers import SourceFile, reading
from scse.errors import UserError
from scse.files import file_hash, read_sealed, write_sealed

log = logging.getLogger("scse")

MEMO_NAME = "file-hashes.json"
MEMO_FORMAT = 2
MEMO_FROM_BYTES = 1 << 20  # smaller files are hashed each time: cheaper than trusting a time stamp


@dataclass(frozen=True)
class Fingerprint:
    """The content of one source file, and the state of the file when it was hashed."""

    name: str
    sha256: str
    path: Path
    state: tuple[int, int]

    def check_unchanged(self) -> None:
        if file_state(self.path) != self.state:
            raise UserError(f"{self.path} changed while it was being read; run again once it is complete")


def file_state(path: Path) -> tuple[int, int]:
    with reading(path):
        stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


class Ledger:
    """Hashes and document counts of files, kept in one small JSON file of the cache.

    The memo carries a checksum of itself: a damaged one is forgotten, which costs time and nothing else.
    """

    def __init__(self, cache: Path) -> None:
        self._path = cache / MEMO_NAME
        self._facts = _load_memo(self._path)
        self._dirty = False

    def fingerprint(self, file: SourceFile) -> Fingerprint:
        state = file_state(file.path)
        digest = self._fact(file, state, "sha256")
        return Fingerprint(file.name, str(digest), file.path, state)

    def count(self, file: SourceFile) -> int:
        return int(self._fact(file, file_state(file.path), f"documents:{file.kind}"))

    def save(self) -> None:
        if not self._dirty:
            return
        try:
            write_sealed(self._path, MEMO_FORMAT, {"facts": self._facts})
        except OSError as error:
            log.debug("file hashes not remembered: %s", error)

    def _fact(self, file: SourceFile, state: tuple[int, int], fact: str) -> Any:
        if state[0] < MEMO_FROM_BYTES:
            return _measure(file, fact)
        known = self._facts.get(str(file.path.resolve()))
        if known is None or known["state"] != list(state):
            known = self._facts[str(file.path.resolve())] = {"state": list(state)}
        if fact not in known:
            known[fact] = _measure(file, fact)
            self._dirty = True
        return known[fact]


def _measure(file: SourceFile, fact: str) -> str | int:
    if fact != "sha256":
        return file.count()
    with reading(file.path):
        return file_hash(file.path)


def _load_memo(path: Path) -> dict[str, dict[str, Any]]:
    try:
        facts: dict[str, dict[str, Any]] = read_sealed(path, MEMO_FORMAT)["facts"]
    except (UserError, KeyError):
        return {}
    return facts
