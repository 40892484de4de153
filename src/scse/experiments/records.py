"""One line per evaluation: what exactly was evaluated (its identity), the numbers, and where they come from.

The identity decides what counts as the same evaluation: model, training protocol, data set, split, depth, seed, task,
tag, adaptive settings. A repeat replaces the older record; it never adds a seed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.errors import UserError
from scse.provenance import provenance

if TYPE_CHECKING:
    from scse.training.config import TrainConfig

FORMAT = 1
FILE = "records.jsonl"


@dataclass(frozen=True)
class Record:
    """`identity` and `metrics` are JSON objects; `facts` holds data hash, revision, versions and time."""

    identity: Mapping[str, Any]
    metrics: Mapping[str, float]
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A hash of the identity."""
        return _hash(self.identity)

    @property
    def group(self) -> str:
        """A hash of the identity without its seed: records of one group differ in the seed alone."""
        return _hash({name: value for name, value in self.identity.items() if name != "seed"})

    @property
    def seed(self) -> int:
        return int(self.identity["seed"])

    @property
    def depth(self) -> int | None:
        depth = self.identity["depth"]
        return None if depth is None else int(depth)


def identity(
    config: TrainConfig,
    step: int,
    *,
    dataset: str,
    split: str,
    depth: int | None,
    limit: int | None = None,
    tag: str = "",
    task: str = "perplexity",
    adaptive: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What an evaluation is of. `limit` is the number of windows, if not the whole split.

    `settings` are what else a task was told; a task without any has no such key.
    """
    protocol = {name: value for name, value in config.to_dict().items() if name not in ("model", "seed")}
    # A data order that follows the seed is one protocol for all seeds; one that is held fixed is another.
    protocol["data_seed"] = "seed" if config.data_seed == config.seed else config.data_seed
    return {
        "model": config.model.to_dict(),
        "protocol": protocol,
        "trained_steps": step,
        "seed": config.seed,
        "dataset": dataset,
        "split": split,
        "limit": limit,
        "depth": depth,
        "tag": tag,
        "task": task,
        "adaptive": dict(adaptive) if adaptive else None,
        **({"settings": dict(settings)} if settings else {}),
    }


def new_record(identity: Mapping[str, Any], metrics: Mapping[str, float], data_hash: str, **facts: Any) -> Record:
    """A record of now; `facts` may add details that are neither identity nor metric, such as a histogram."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Record(identity, metrics, {"data": data_hash, "time": now, **provenance(), **facts})


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add lines to a record file in one write under a lock, so that parallel writers never mix or lose lines."""
    lines = "".join(_line(record) + "\n" for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _ends_torn(stream.fileno()):
                lines = "\n" + lines
            stream.write(lines.encode())
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise UserError(f"cannot write records to {path}: {error.strerror}") from None


def read_records(paths: Iterable[Path]) -> list[Record]:
    """All records of some files, one per identity, later lines and files taking precedence.

    A damaged line is an error that names file and line, except a last line that a killed writer left unfinished.
    """
    latest: dict[str, Record] = {}
    for path in paths:
        for record in _read_file(path):
            latest.pop(record.key, None)
            latest[record.key] = record
    return list(latest.values())


def _read_file(path: Path) -> Iterable[Record]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read records in {path}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _parse(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(lines):
                return
            raise UserError(f"{path}:{number} is damaged; restore the file or delete that line") from None


def _line(record: Record) -> str:
    body = {"identity": record.identity, "metrics": record.metrics, "facts": record.facts, "format": FORMAT}
    return json.dumps({**body, "sha256": _hash(body)}, ensure_ascii=False)


def _parse(line: bytes) -> Record:
    data = json.loads(line)
    claimed = data.pop("sha256")
    if claimed != _hash(data) or data["format"] != FORMAT:
        raise ValueError("the line is not what was written")
    return Record(data["identity"], data["metrics"], data["facts"])


def _ends_torn(descriptor: int) -> bool:
    """Whether the file ends without a newline, as after a writer that was killed in mid-line."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _hash(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
