"""Where a number comes from is looked up without leaving a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError

import pytest

from scse import provenance as module
from scse.provenance import git_revision, provenance


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_revision_is_found_without_writing_into_the_repository(tmp_path):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    (tmp_path / "file").write_text("text")
    git("init")
    git("add", "file")
    git("commit", "-m", "Add a file")
    os.utime(tmp_path / "file", (1, 1))  # git would like to note this in its index, under a lock
    index = (tmp_path / ".git" / "index").read_bytes()
    assert len(git_revision(tmp_path)) == 40
    assert (tmp_path / ".git" / "index").read_bytes() == index
    (tmp_path / "file").write_text("other")
    assert git_revision(tmp_path).endswith("+")
    assert git_revision(tmp_path.parent / "nowhere") == "unknown"


def test_a_package_that_only_lies_on_the_path_is_said_not_to_be_installed(monkeypatch):
    def version(package):
        if package == "scse":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(module, "version", version)
    found = provenance.__wrapped__()
    assert (found["scse"], found["torch"]) == ("not installed", "1.0")
