"""Files written whole or not at all. No torch here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scse.errors import UserError

TEMPORARY = ".tmp"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced and takes the place of `path` at once.

    Readers see the old content or all of the new, also after a crash. A killed writer leaves a temporary file behind,
    which `sweep` removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        yield temporary
        share(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it becomes `path`, which must not exist or be empty.

    What killed writers of the same folder left behind is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left_over in path.parent.glob(f".{path.name}.*{TEMPORARY}"):
        if not _alive(left_over.name.split(".")[-2]):
            shutil.rmtree(left_over, ignore_errors=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    draft.mkdir()
    try:
        yield draft
        for written in draft.rglob("*"):
            sync(written)
        os.replace(draft, path)
        sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def share(path: Path) -> None:
    """Give a file the permissions of an ordinary new file; some writers create theirs for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def expand(text: str) -> Path:
    """A path as the user wrote it, with ~ for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"cannot tell which home folder '{text}' means; write the path out") from None


def sweep(folder: Path) -> None:
    """Remove what killed writers left behind; to be called by whoever holds the folder alone."""
    for left_over in folder.glob(f".*{TEMPORARY}"):
        left_over.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or one line that says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); restore it or write it again") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data
