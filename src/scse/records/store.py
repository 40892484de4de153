"""One line per evaluation: what exactly was evaluated (its identity), the numbers, and where they come from.

The identity decides what counts as the same evaluation: model, training protocol, data set, split, depth, seed, task,
tag, adaptive settings. A repeat replaces the older record; it never adds a seed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scse.config import Shape
from scse.errors import RunFailure, UserError
from scse.files import content_hash
from scse.locks import ALONE, SHARED, take_lock
from scse.precision import EXACT
from scse.provenance import provenance

if TYPE_CHECKING:
    from scse.config import TrainConfig

FORMAT = 1
FILE = "records.jsonl"
TEXTS = frozenset(f.name for f in fields(Shape) if f.type == "str")  # what of a shape is no number
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what a damaged line raises
log = logging.getLogger("scse")


@dataclass(frozen=True)
class Record:
    """`identity` and `metrics` are JSON objects; `facts` holds data hash, revision, versions and time."""

    identity: Mapping[str, Any]
    metrics: Mapping[str, float]
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A hash of the identity."""
        return content_hash(self.identity)

    @property
    def group(self) -> str:
        """A hash of the identity without its seed: records of one group differ in the seed alone."""
        return content_hash({name: value for name, value in self.identity.items() if name != "seed"})

    @property
    def seed(self) -> int:
        return int(self.identity["seed"])

    @property
    def precision(self) -> str:
        """In which the run was trained; old records, which do not say, are of float32."""
        return str(self.identity["protocol"].get("precision", EXACT))

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
    return {
        "model": config.model.to_dict(),
        "protocol": config.protocol(),
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
    """Add lines to a record file under a lock: all of them or none, and never mixed with those of another writer.

    A line that a killed writer left unfinished is removed first; its evaluation then counts as not made.
    """
    lines = "".join(_line(record) + "\n" for record in records).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream:
            take_lock(stream.fileno(), path, ALONE)
            end = _end_whole(stream, path)
            try:
                _write_all(stream, lines)
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(end)
                raise
    except OSError as error:
        reason = f"cannot write records to {path}: {error.strerror}"
        raise RunFailure(f"{reason}; mend this and run the same command again") from None


def read_records(paths: Iterable[Path]) -> list[Record]:
    """All records of some files, one per identity and text, later lines and files taking precedence.

    Two texts may go by one name: the hash of the data tells them apart.
    A damaged line is an error that names file and line. A last line that a killed writer left unfinished is passed
    over with a warning.
    """
    latest: dict[tuple[str, str], Record] = {}
    for path in paths:
        for record in _read_file(path):
            place = record.key, str(record.facts.get("data"))
            latest.pop(place, None)
            latest[place] = record
    return list(latest.values())


def records_of(run: Path) -> list[Record]:
    """The records that a run's folder has, if any."""
    path = run / FILE
    return read_records([path]) if path.is_file() else []


def _read_file(path: Path) -> Iterable[Record]:
    try:
        with path.open("rb") as stream:
            with contextlib.suppress(UserError):  # without locks an unfinished line may be met, and is passed over
                take_lock(stream.fileno(), path, SHARED)  # not while a line is being written
            lines = stream.read().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read records in {path}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _parse(line)
        except UNREADABLE:
            if number == len(lines):
                log.warning("%s:%d is unfinished and does not count", path, number)
                return
            raise UserError(f"{path}:{number} is damaged; restore the file or delete that line") from None


def _line(record: Record) -> str:
    body = {"identity": record.identity, "metrics": record.metrics, "facts": record.facts, "format": FORMAT}
    return json.dumps({**body, "sha256": content_hash(body)}, ensure_ascii=False)


def _parse(line: bytes) -> Record:
    data = json.loads(line)
    claimed = data.pop("sha256")
    if claimed != content_hash(data) or data["format"] != FORMAT:
        raise ValueError("the line is not what was written")
    record = Record(data["identity"], data["metrics"], data["facts"])
    if not _well_formed(record):
        raise ValueError("the line says something that is not a record")
    return record


def _well_formed(record: Record) -> bool:
    """Whether a record has what every reader relies on; a line with the right hash may have been made by anybody."""
    about = record.identity
    model, adaptive = about["model"], about["adaptive"] or {"budget": None}
    return (
        isinstance(record.facts, dict)
        and isinstance(model["options"], dict)
        and isinstance(about["protocol"], dict)
        and all(isinstance(about[name], str) for name in ("dataset", "split", "task", "tag"))
        and isinstance(model["family"], str)
        and all(isinstance(about[name], int) for name in ("seed", "trained_steps"))
        and all(isinstance(value, int | None) for value in (about["depth"], about["limit"]))
        and isinstance(adaptive.get("budget"), int | float | None)
        and all(isinstance(value, str if name in TEXTS else int | float) for name, value in model["shape"].items())
        and all(isinstance(value, int | float) for value in record.metrics.values())
    )


def _end_whole(stream: IO[bytes], path: Path) -> int:
    """Make the file end with a whole line and say where; a last line that only lacks its end is given one."""
    size = stream.seek(0, os.SEEK_END)
    if size == 0 or os.pread(stream.fileno(), 1, size - 1) == b"\n":
        return size
    stream.seek(0)
    content = stream.read()
    begin = content.rfind(b"\n") + 1
    try:
        _parse(content[begin:])
    except UNREADABLE:
        log.warning("%s: removing the unfinished last line", path)
        return stream.truncate(begin)
    _write_all(stream, b"\n")
    return size + 1


def _write_all(stream: IO[bytes], content: bytes) -> None:
    """An unbuffered write may end early, for example where the disk does."""
    while content:
        content = content[stream.write(content) :]
