"""Files and folders written whole or not at all, beside other writers of the same."""

from __future__ import annotations

import os
import shutil

import pytest

from scse.files import find_below, replacing, replacing_folder

HERE = os.uname().nodename
NO_PROCESS = 2**22 + 1  # beyond the largest number that Linux gives to a process


def test_what_a_dead_writer_left_is_removed(tmp_path):
    left_over = tmp_path / f".out.json.{NO_PROCESS}@{HERE}.tmp"
    left_over.write_text("half")
    with replacing(tmp_path / "out.json") as temporary:
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_what_a_living_writer_of_another_user_is_at_is_left_alone(tmp_path, monkeypatch):
    def forbidden(process, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    theirs = tmp_path / f".out.json.1@{HERE}.tmp"
    theirs.write_text("half")
    with replacing(tmp_path / "out.json") as temporary:
        temporary.write_text("ours")
    assert theirs.read_text() == "half"


def test_files_are_found_while_others_work_there(tmp_path, monkeypatch):
    for place in ("b/seed0", "a", ".jobs", "a/.evaluating", "a/gone"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "records.jsonl").touch()
    plainly = os.scandir

    def scandir(path):
        if str(path).endswith("gone"):
            shutil.rmtree(path)
        return plainly(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = [str(path.relative_to(tmp_path)) for path in find_below(tmp_path, "records.jsonl")]
    assert found == ["a/records.jsonl", "b/seed0/records.jsonl"]


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(NotADirectoryError), replacing_folder(tmp_path / "out") as draft:
        (draft / "part").write_text("text")
    assert (tmp_path / "out").read_text() == "in the way"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
