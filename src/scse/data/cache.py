"""Files that are either whole and verified, or absent.

An artifact is a data file and a metadata file beside it. The data is written under a temporary name, synced and
renamed; the metadata follows last. Opening checks size, hash and every fact the metadata must state, so a build that
was cut short, a truncated or altered file, and the work of another version are all found and replaced. A large file is
hashed when it is built, and again only if its size or time is not what the metadata says; `check` hashes all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scse.errors import UserError
from scse.files import content_hash, expand, file_hash, put, replacing, sweep
from scse.locks import ALONE, AT_ONCE, take_lock

log = logging.getLogger("scse")

CACHE_FORMAT = 1
SEAL = "seal"
TRUSTED_FROM_BYTES = 1 << 20  # smaller files are hashed each time: cheaper than trusting a time stamp


def cache_root(cache_dir: str | None) -> Path:
    chosen = cache_dir or os.environ.get("SCSE_CACHE") or "~/.cache/scse"
    return expand(chosen)


@dataclass(frozen=True)
class Stored:
    """A verified data file: its place and the hash of its content."""

    path: Path
    sha256: str


class _UnfitError(Exception):
    """Why what lies in the cache cannot be used."""


@dataclass(frozen=True)
class Artifact:
    """One file of the cache. `facts` are what its metadata must say for the file to be the one asked for."""

    folder: Path
    data_name: str
    meta_name: str
    facts: Mapping[str, Any]
    item_bytes: int = 1

    def obtain(self, produce: Callable[[], Iterable[bytes]]) -> Stored:
        """The stored file; if it is absent or unfit, `produce` is asked for its content, by one process at a time."""
        with contextlib.suppress(_UnfitError, OSError):
            return self._verify()
        try:
            with _locked(self.folder):
                return self._verify_or_build(produce)
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = "make room there, or name another folder with SCSE_CACHE"
            raise UserError(f"cannot write the cache {self.folder}: {reason}; {remedy}") from None

    def _verify_or_build(self, produce: Callable[[], Iterable[bytes]]) -> Stored:
        try:
            return self._verify()
        except FileNotFoundError:
            pass
        except _UnfitError as reason:
            log.warning("cache %s: %s is %s; building it again", self.folder, self.data_name, reason)
        sweep(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._write(produce())
        except BaseException:
            with contextlib.suppress(OSError):  # leaves the folder alone unless it is empty
                self.folder.rmdir()
            raise

    def _verify(self) -> Stored:
        data, meta = self.folder / self.data_name, self.folder / self.meta_name
        if not meta.exists() and data.exists():
            raise _UnfitError("unfinished")
        try:
            stated = json.loads(meta.read_bytes())
            if not isinstance(stated, dict):
                raise _UnfitError("described by damaged metadata")
        except (ValueError, RecursionError):
            raise _UnfitError("described by damaged metadata") from None
        if any(stated.get(key) != value for key, value in self._expected().items()):
            raise _UnfitError("from other sources or another version")
        if not data.exists():
            raise _UnfitError("missing")
        if data.stat().st_size != _product(stated.get("count"), self.item_bytes):
            raise _UnfitError("truncated or grown")
        if self._is_as_built(data, stated):
            return Stored(data, str(stated["sha256"]))
        digest = file_hash(data)
        if digest != stated.get("sha256"):
            raise _UnfitError("altered (its hash differs)")
        if data.stat().st_size >= TRUSTED_FROM_BYTES:
            with contextlib.suppress(OSError):  # a cache of somebody else's is hashed each time
                self._describe(stated)
        return Stored(data, digest)

    def _is_as_built(self, data: Path, stated: Mapping[str, Any]) -> bool:
        """Whether a large file has the size and time it had when it was hashed, by metadata that is itself whole."""
        body = {name: value for name, value in stated.items() if name != SEAL}
        whole = stated.get(SEAL) == content_hash(body) and stated.get("state") == _state(data)
        return whole and data.stat().st_size >= TRUSTED_FROM_BYTES

    def _describe(self, stated: Mapping[str, Any]) -> None:
        """Write the metadata; of a large file with its size and time, under a seal."""
        body = {name: value for name, value in stated.items() if name != SEAL}
        size, changed = _state(self.folder / self.data_name)
        if size >= TRUSTED_FROM_BYTES:
            body["state"] = [size, changed]
            body[SEAL] = content_hash(body)
        put(self.folder / self.meta_name, json.dumps(body, indent=1))

    def _expected(self) -> dict[str, Any]:
        return {"format": CACHE_FORMAT, **self.facts}

    def _write(self, blocks: Iterable[bytes]) -> Stored:
        data = self.folder / self.data_name
        # Old metadata must not outlive the data it describes, even for the moment between the two renames.
        (self.folder / self.meta_name).unlink(missing_ok=True)
        digest, size = hashlib.sha256(), 0
        with replacing(data) as temporary, temporary.open("wb") as handle:
            for block in blocks:
                handle.write(block)
                digest.update(block)
                size += len(block)
        stated = {**self._expected(), "count": size // self.item_bytes, "sha256": digest.hexdigest()}
        self._describe(stated)
        return Stored(data, digest.hexdigest())


def _state(data: Path) -> list[int]:
    found = data.stat()
    return [found.st_size, found.st_mtime_ns]


def check(root: Path) -> Iterator[tuple[Path, str]]:
    """Every described file of a cache, hashed, with what is wrong with it; empty for one that is as it was built."""
    for meta in sorted(root.glob("*/*.json")):
        try:
            claimed = json.loads(meta.read_bytes())["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # no description of a file: a tokenizer, say
        described = meta.name.replace(".meta.json", ".json") if ".meta." in meta.name else f"{meta.stem}.bin"
        data = meta.with_name(described)
        if not data.is_file():
            yield data, "missing"
        else:
            yield data, "" if file_hash(data) == claimed else "altered (its hash differs)"


def _product(count: object, item_bytes: int) -> int:
    return count * item_bytes if isinstance(count, int) else -1


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time per folder; the system drops the lock of a process that dies."""
    locks = folder.parent / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    path = locks / f"{folder.name}.lock"
    with path.open("wb") as handle:
        if not take_lock(handle.fileno(), path, ALONE | AT_ONCE):
            log.info("waiting for another process that builds %s", folder)
            take_lock(handle.fileno(), path, ALONE)
        yield
