"""Runs that earlier versions wrote are read, continued and evaluated as if they were of today."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from interrupting import assert_same_run

from runs import run
from scse.config import Shape, TrainConfig
from scse.config.stored import neutral_fields
from scse.errors import UserError
from scse.files import SEAL
from scse.runs import open_run

# Configurations as they stood in files of earlier versions, one for each step in which fields were added.
EARLIER = sorted((Path(__file__).parent / "formats").glob("*.json"))


def as_format_1(folder: Path) -> None:
    """What the first version wrote: no hash in any file, another name for those of a checkpoint, no weights."""
    for path in (folder / "config.json", folder / "model" / "config.json", *folder.glob("checkpoints/*/state.json")):
        if not path.is_file():
            continue
        data = json.loads(path.read_text())
        if data["format"] == 1:
            continue
        data.pop(SEAL)
        data["format"] = 1
        data.pop("weights", None)
        data.pop("validation_loops", None)
        if "files" in data:
            data["sha256"] = data.pop("files")
        path.write_text(json.dumps(data))


def test_a_run_of_the_first_format_is_read_and_continued(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "old")
    shutil.rmtree(tmp_path / "old" / "checkpoints" / "step-9")
    shutil.rmtree(tmp_path / "old" / "model")
    shutil.copytree(tmp_path / "whole" / "model", tmp_path / "old" / "model")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "old" / "model" / name).unlink()
    as_format_1(tmp_path / "old")
    assert open_run(tmp_path / "old").step == 6
    assert run(corpus, tmp_path / "old").finished
    assert_same_run(tmp_path / "whole", tmp_path / "old")
    as_format_1(tmp_path / "old")
    assert open_run(tmp_path / "old").step == 9, "a finished one, with its model"


def test_a_hash_that_is_gone_is_damage_and_not_an_old_format(corpus, tmp_path):
    run(corpus, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "format": 1}))
    with pytest.raises(UserError, match="format 1"):
        open_run(tmp_path / "run")
    data.pop(SEAL)
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="is damaged"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.stem)
def test_a_configuration_of_an_earlier_version_says_the_same_today(path):
    stored = json.loads(path.read_text())
    config = TrainConfig.from_dict(stored)
    assert config.to_dict() == stored, "and is written as it was"
    for name, value in neutral_fields(TrainConfig).items():
        assert name in stored or getattr(config, name) == value


def test_there_are_files_of_every_earlier_version():
    """A field that is added comes with a file that states it, which from then on is one of an earlier version."""
    stored = [json.loads(path.read_text()) for path in EARLIER]
    assert {name for train in stored for name in train} == {field.name for field in fields(TrainConfig)}
    stated = {name for train in stored for name in train["model"]["shape"]}
    assert stated == {field.name for field in fields(Shape)}
