"""Files to documents, streaming. Every fault in a file is one line that names the file and the place."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scse.errors import UserError

Kind = Literal["text", "lines", "jsonl", "parquet"]
Pieces = Iterable[str]
"""One document: strings that make up its text when put together, so that a document may exceed memory."""

BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 64 << 20
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".json.gz")


@dataclass(frozen=True)
class SourceFile:
    """A file, how to read it, and the name it goes by in fingerprints (relative, so a moved corpus is the same).

    `start` and `stop` restrict a `text` file to a range of bytes.
    """

    path: Path
    kind: Kind
    name: str
    start: int = 0
    stop: int | None = None

    def documents(self) -> Iterator[Pieces]:
        if self.kind == "text":
            return iter([read_text(self.path, self.start, self.stop)])
        rows = {"lines": _line_rows, "jsonl": _jsonl_rows, "parquet": _parquet_rows}[self.kind]
        return ((row,) for row in rows(self.path))

    def count(self) -> int:
        """How many documents `documents` yields, without parsing them."""
        if self.kind == "text":
            return 1
        if self.kind == "parquet":
            with reading(self.path), _parquet(self.path) as table:
                return int(table.metadata.num_rows)
        return sum(1 for _ in _numbered_lines(self.path))


def kind_of(path: Path) -> Kind:
    if path.name.lower().endswith(JSONL_SUFFIXES):
        return "jsonl"
    return "parquet" if path.suffix.lower() == ".parquet" else "text"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Faults of the file system and of the container format, as the user's errors."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def read_text(path: Path, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The bytes [start, stop) of a UTF-8 file in pieces, newlines untouched."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    offset = start
    with reading(path), path.open("rb") as handle:
        handle.seek(start)
        while True:
            wanted = BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - offset)
            block = handle.read(wanted)
            if (nul := block.find(0)) >= 0:
                raise UserError(f"{path}: NUL byte at offset {offset + nul}; give a text file, not a binary one")
            first = offset - len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = first + error.start
                raise UserError(f"{path}: not UTF-8 at byte offset {place}; convert it to UTF-8") from None
            if text:
                yield text
            if not block:
                return
            offset += len(block)


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, without their line end, numbered from 1."""
    with reading(path), path.open("rb") as plain:
        packed = path.suffix.lower() == ".gz"
        handle: io.BufferedIOBase = gzip.GzipFile(fileobj=plain) if packed else plain
        number = 0
        while line := handle.readline(MAX_LINE_BYTES):
            number += 1
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                limit = f"{MAX_LINE_BYTES >> 20} MiB"
                raise UserError(f"{path}:{number}: line longer than {limit}; give one document per line")
            if line.strip():
                yield number, line.rstrip(b"\r\n")


def _line_rows(path: Path) -> Iterator[str]:
    for number, line in _numbered_lines(path):
        if b"\0" in line:
            raise UserError(f"{path}:{number}: NUL byte; give a text file, not a binary one")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {error.start} of the line"
            raise UserError(f"{path}:{number}: not UTF-8 at {place}; convert it to UTF-8") from None


def _jsonl_rows(path: Path) -> Iterator[str]:
    for number, line in _numbered_lines(path):
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}:{number}: not a line of JSON ({reason}); mend or remove it") from None
        yield checked_text(row, f"{path}:{number}")


def checked_text(row: Any, place: str) -> str:
    """The `text` of a row from a jsonl file, a parquet file or the hub."""
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise UserError(f'{place}: no "text" field that holds a string; each row needs one')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{place}: lone surrogate at character {error.start} of the text; remove it") from None
    return text


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            yield table
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: damaged parquet file ({reason}); fetch it again") from None


def _parquet_rows(path: Path) -> Iterator[str]:
    row = 0
    with reading(path), _parquet(path) as table:
        names = table.schema_arrow.names
        if "text" not in names:
            raise UserError(f"{path}: no column 'text' (it has: {', '.join(names)}); rename the text column")
        for batch in table.iter_batches(batch_size=256, columns=["text"]):
            try:
                texts = batch.column(0).to_pylist()
            except UnicodeDecodeError:
                near = f"within {batch.num_rows} rows after row {row}"
                raise UserError(f"{path}: not UTF-8 {near}; write the column as UTF-8") from None
            for text in texts:
                row += 1
                yield checked_text({"text": text}, f"{path}: row {row}")
