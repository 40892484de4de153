"""Files written whole or not at all. No torch here."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scse.errors import UserError

TEMPORARY = ".tmp"
SEAL = "sha256"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced and takes the place of `path` at once.

    Readers see the old content or all of the new, also after a crash. What killed writers of the same file left behind
    is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _fresh_beside(path)
    try:
        yield temporary
        share(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def put(path: Path, content: str | bytes) -> None:
    """Write a file anew: readers see the old content or all of the new, also after a crash."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it becomes `path`, which must not exist or be empty.

    What killed writers of the same folder left behind is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _fresh_beside(path)
    draft.mkdir()
    try:
        yield draft
        for written in draft.rglob("*"):
            sync(written)
        try:
            os.replace(draft, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise UserError(f"{path} was written by another process in the meantime; name a new folder") from None
            raise
        sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_fresh(folder: Path) -> None:
    """What stands in the way of a new folder, told before any work for it is done."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty; name a new folder or delete it first")


def _fresh_beside(path: Path) -> Path:
    """This process's temporary name for `path`. Those of processes of this machine that died are removed."""
    here = os.uname().nodename
    for left_over in path.parent.glob(f".{glob.escape(path.name)}.*@{glob.escape(here)}{TEMPORARY}"):
        writer = left_over.name.removeprefix(f".{path.name}.").partition("@")[0]
        if not _alive(writer):
            _remove(left_over)
    return path.with_name(f".{path.name}.{os.getpid()}@{here}{TEMPORARY}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _alive(process: str) -> bool:
    """Whether another process has this number now."""
    try:
        os.kill(int(process), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()


def share(path: Path) -> None:
    """Give a file the permissions of an ordinary new file; some writers create theirs for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def expand(text: str | Path) -> Path:
    """A path as the user wrote it, with ~ for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"cannot tell which home folder '{text}' means; write the path out") from None


def find_below(folder: Path, name: str) -> list[Path]:
    """The files of a name in a folder and below it, in order, while others may work there: what goes away meanwhile is
    passed over, and hidden folders, where unfinished work lies, are not looked into."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]
        if name in files:
            found.append(Path(place) / name)
    return sorted(found)


def safe_name(text: str) -> str:
    """A name for a file or folder that reads like `text`, and is one plain part of a path whatever `text` is."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).lstrip(".")[:60] or "corpus"


def sweep(folder: Path) -> None:
    """Remove what killed writers left behind; to be called by whoever holds the folder alone."""
    for left_over in folder.glob(f".*{TEMPORARY}"):
        _remove(left_over)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UNSEALED = 1  # the format of the first files, which carried no hash of themselves


def write_json(path: Path, data: Any) -> None:
    put(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or one line that says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number or a nesting without end
        raise UserError(f"{path} is not valid JSON ({error}); restore it or write it again") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(data).__name__}")
    return data


def write_sealed(path: Path, format: int, data: Mapping[str, Any]) -> None:
    """Write a JSON object that carries its format and a hash of itself."""
    body = {"format": format, **data}
    write_json(path, {**body, SEAL: content_hash(body)})


def read_sealed(path: Path, format: int, upgrade: Upgrade | None = None) -> dict[str, Any]:
    """What `write_sealed` wrote, unaltered and of this format; otherwise one line.

    Files of format 1 had no hash. Where `upgrade` says how one reads today, it is read as that.
    """
    body = read_json(path)
    if body.get("format") == UNSEALED and not isinstance(body.get(SEAL), str) and upgrade is not None:
        try:
            return {**upgrade(body), "format": format}
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{path} does not say what a file of format {UNSEALED} must say; restore it") from None
    claimed = body.pop(SEAL, None)
    if body.get("format") != format:
        raise UserError(f"{path} has format {body.get('format')!r}; this version reads {format}")
    if claimed != content_hash(body):
        raise UserError(f"{path} is damaged: it does not have the hash written in it; restore it")
    return body


def content_hash(data: Mapping[str, Any]) -> str:
    """A hash of what a JSON object says, whatever its order and layout."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
