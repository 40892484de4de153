"""Locks on a file system that has none: never mistaken for a busy file."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from scse.data import DataConfig, open_corpus
from scse.errors import UserError
from scse.locks import in_use
from scse.records import read_records
from scse.records.store import append_records
from scse.runs.folder import RunInUse, locked


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def without_locks(request, monkeypatch):
    """A stand-in for a file system without flock, as Lustre and NFS may be mounted."""

    def refused(handle, how):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refused)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("it was a dark and stormy night\n" * 200)
    return DataConfig(str(path), cache_dir=str(tmp_path / "cache"))


def test_it_is_told_what_is_missing_and_what_helps(without_locks, tmp_path, text):
    with pytest.raises(UserError, match=r"has no file locks .*SCSE_NO_LOCKS=1") as refusal, locked(tmp_path / "run"):
        pass
    assert not isinstance(refusal.value, RunInUse)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="has no file locks"):
        open_corpus(text, progress=False).split("train")
    with pytest.raises(UserError, match="has no file locks"):
        append_records(tmp_path / "records.jsonl", [])


def test_whoever_says_so_goes_on_without(without_locks, tmp_path, text, monkeypatch):
    monkeypatch.setenv("SCSE_NO_LOCKS", "1")
    with locked(tmp_path / "run"):
        assert not in_use(tmp_path / "run")
    assert len(open_corpus(text, progress=False).split("train").tokens) > 0
    append_records(tmp_path / "records.jsonl", [])


def test_reading_needs_no_locks(without_locks, tmp_path):
    (tmp_path / "records.jsonl").write_text("")
    assert read_records([tmp_path / "records.jsonl"]) == []


def test_a_held_lock_is_busy(tmp_path):
    with locked(tmp_path / "run"):
        assert in_use(tmp_path / "run")
        with pytest.raises(RunInUse, match="in use by another trainer"), locked(tmp_path / "run"):
            pass
