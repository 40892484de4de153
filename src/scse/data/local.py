"""The user's own files, and the corpus that every machine has: the sources of Python's standard library."""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from scse.data.fingerprint import Ledger, file_state
from scse.data.readers import SourceFile, kind_of, reading
from scse.data.sources import (
    SPLIT_WORDS,
    CorpusSource,
    SplitSource,
    document_split,
    documents_of,
    stream_split,
    windowed_splits,
)
from scse.errors import UserError

# Only data-like names: a folder of source code may well hold a train.py and a test.py.
SPLIT_FILE = re.compile(
    rf"({'|'.join(SPLIT_WORDS)})(-\d+-of-\d+)?\.(txt|text|md|jsonl|jsonl\.gz|json\.gz|parquet)", re.IGNORECASE
)
NEWLINE_SEARCH_BYTES = 1 << 16
UTF8_CONTINUATIONS = bytes(range(0x80, 0xC0))
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
OWN_SPLITS = "give a folder with train.txt, valid.txt and test.txt (or .jsonl)"


def open_path(path: Path, ledger: Ledger) -> CorpusSource:
    """A file or folder of the user's, in splits of its own or divided 90/5/5."""
    files = [SourceFile(path, kind_of(path), path.name)] if path.is_file() else _files_in(path)
    if not files:
        raise UserError(f"{path} holds no files; put text, .jsonl or .parquet files there")
    name = path.resolve().name or "corpus"
    own = _own_splits(files) if path.is_dir() else {}
    if own:
        splits = {split: _own_split(f"{path} {split}", own[split], ledger) for split in own}
        files = [file for members in own.values() for file in members]
        division = "own splits"
    elif len(files) == 1 and files[0].kind == "text":
        splits, division = _text_divided(files[0]), "one text"
    else:
        splits, division = _documents_divided(path, files, ledger), "documents"
    fingerprints = [ledger.fingerprint(file) for file in files]
    return CorpusSource(name, splits, fingerprints, {"found": "at a path", "division": division})


def _files_in(folder: Path) -> list[SourceFile]:
    files = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            files.append(SourceFile(path, kind_of(path), relative.as_posix()))
    return files


def _own_splits(files: Sequence[SourceFile]) -> dict[str, list[SourceFile]]:
    """Files named after splits, if a train file is among them or there are no others."""
    words: dict[str, dict[tuple[str, str], list[SourceFile]]] = defaultdict(lambda: defaultdict(list))
    matched = 0
    for file in files:
        if match := SPLIT_FILE.fullmatch(file.name):
            matched += 1
            word = match[1].lower()
            words[SPLIT_WORDS[word]][word, file.kind].append(file)
    if "train" not in words and matched < len(files):
        return {}
    for split, groups in words.items():
        if len(groups) > 1:
            first, second = (group[0].name for group in list(groups.values())[:2])
            raise UserError(f"the folder has its {split} split twice ({first}, {second}); keep one of them")
    return {split: next(iter(words[split].values())) for split in ("train", "validation", "test") if split in words}


def _own_split(label: str, files: Sequence[SourceFile], ledger: Ledger) -> SplitSource:
    return stream_split(label, files) if files[0].kind == "text" else document_split(label, files, ledger)


def _text_divided(file: SourceFile) -> dict[str, SplitSource]:
    """One text cut in three at line ends near 90 % and 95 % of its bytes."""
    size = file_state(file.path)[0]
    if not size:
        raise UserError(f"{file.path} is empty; give a file with text in it")
    marks = [size * 90 // 100, size * 95 // 100, size]
    first = _line_start(file.path, marks[0], marks[1])
    second = _line_start(file.path, marks[1], marks[2])
    bounds = {"train": (0, first), "validation": (first, second), "test": (second, size)}
    if any(start >= stop for start, stop in bounds.values()):
        raise UserError(f"{file.path} is too short to divide ({size} bytes); {OWN_SPLITS}")
    parts = {split: SourceFile(file.path, "text", file.name, start, stop) for split, (start, stop) in bounds.items()}
    return {split: stream_split(f"{file.path} {split}", [part]) for split, part in parts.items()}


def _line_start(path: Path, start: int, stop: int) -> int:
    """The first line start in (start, stop), or else the first character boundary from `start` on."""
    with reading(path), path.open("rb") as handle:
        handle.seek(start)
        block = handle.read(NEWLINE_SEARCH_BYTES)
    newline = block.find(b"\n", 0, max(stop - start - 1, 0))
    if newline >= 0:
        return start + newline + 1
    return start + len(block) - len(block.lstrip(UTF8_CONTINUATIONS))


def _documents_divided(path: Path, files: Sequence[SourceFile], ledger: Ledger) -> dict[str, SplitSource]:
    count = sum(ledger.count(file) for file in files)
    if count < 3:
        raise UserError(f"{path} holds {count} document(s), too few to divide; {OWN_SPLITS}")
    part = max(1, count * 5 // 100)
    windows = {
        "train": (0, count - 2 * part),
        "validation": (count - 2 * part, count - part),
        "test": (count - part, count),
    }
    return windowed_splits(str(path), lambda: documents_of(files), windows)


def open_stdlib(ledger: Ledger) -> CorpusSource:
    """The standard library's own modules; a file's split follows from its name, whatever else is installed."""
    root = Path(sysconfig.get_path("stdlib"))
    groups: dict[str, list[SourceFile]] = {"train": [], "validation": [], "test": []}
    for name in sorted(_stdlib_modules(root)):
        groups[_stdlib_split(name)].append(SourceFile(root / name, "text", name))
    if not all(groups.values()):
        raise UserError(f"the Python standard library at {root} has no sources; name another corpus with --data")
    splits = {split: document_split(f"stdlib {split}", files, ledger) for split, files in groups.items()}
    files = [file for members in groups.values() for file in members]
    fingerprints = [ledger.fingerprint(file) for file in files]
    return CorpusSource("stdlib", splits, fingerprints, {"found": "with Python"})


def _stdlib_modules(root: Path) -> Iterator[str]:
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED_FOLDERS and not name.startswith("config-")]
        for file in files:
            # _sysconfigdata*.py is written by the build and describes the machine it ran on.
            if file.endswith(".py") and not file.startswith("_sysconfigdata"):
                yield (Path(folder) / file).relative_to(root).as_posix()


def _stdlib_split(name: str) -> str:
    bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    if bucket < 90:
        return "train"
    return "validation" if bucket < 95 else "test"
