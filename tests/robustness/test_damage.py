"""A flipped bit, a file cut short and a file that is gone are noticed and named, in every file that is relied upon."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from runs import config_for, options, run, write_corpus
from scse.data import DataConfig, open_corpus
from scse.errors import UserError
from scse.records import append_records, identity, new_record, read_records
from scse.runs import open_run
from scse.runs.checkpoint import CheckpointStore
from scse.training.trainer import train

PLACES = int(os.environ.get("SCSE_DAMAGES", "24"))
CHECKPOINT = ("model.safetensors", "optimizer.safetensors", "state.json")
MODEL = ("config.json", "model.safetensors", "tokenizer.json")
STEPS = 6


def record(place: Path, depth: int):
    about = identity(config_for(place / "corpus", steps=STEPS), STEPS, dataset="text", split="test", depth=depth)
    return new_record(about, {"ppl": float(depth)}, "hash")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run with its cache and three records."""
    folder = tmp_path_factory.mktemp("whole")
    run(write_corpus(folder / "corpus"), folder / "run", steps=STEPS)
    append_records(folder / "run" / "records.jsonl", [record(folder, depth) for depth in (4, 8, 12)])
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole / "run", tmp_path / "run")
    shutil.copytree(whole / "cache", tmp_path / "cache")
    return tmp_path


def damages(path: Path, places: int = PLACES):
    """Damage a file in many places, one after the other, and mend it after each."""
    content = path.read_bytes()
    for place in range(places):
        at = place * (len(content) - 1) // max(1, places - 1)
        flipped = bytearray(content)
        flipped[at] ^= 1 << (place % 8)
        for what, damaged in (("flip", bytes(flipped)), ("cut", content[:at])):
            if not says_the_same(path, damaged, content):
                path.write_bytes(damaged)
                yield f"{what} at {at}"
    path.write_bytes(content)


def says_the_same(path: Path, damaged: bytes, content: bytes) -> bool:
    """Only the layout of a JSON file suffered, such as the line's end after its last brace."""
    if path.suffix != ".json":
        return False
    try:
        return json.loads(damaged) == json.loads(content)
    except ValueError:
        return False


@pytest.mark.parametrize("name", CHECKPOINT)
def test_checkpoints(copy, caplog, name):
    store = CheckpointStore(copy / "run" / "checkpoints", keep=2)
    for what in damages(copy / "run" / "checkpoints" / f"step-{STEPS}" / name):
        caplog.clear()
        assert store.newest().step == 3, what
        assert f"step-{STEPS}/{name}" in caplog.text, what


@pytest.mark.parametrize("name", ["config.json", "model/config.json", "model/model.safetensors"])
def test_runs(copy, name):
    """The weights, and what they are the weights of."""
    for what in damages(copy / "run" / name):
        with pytest.raises(UserError) as found:
            open_run(copy / "run")
        assert str(copy / "run" / name) in str(found.value), what
    assert open_run(copy / "run").step == STEPS


def test_tokenizers_of_runs(copy):
    """A run's tokenizer is compared by vocabulary and merges: what else its file says is checked or has no effect."""
    text = "the state moves from its anchor <|endoftext|> \u00e9"
    wanted = open_run(copy / "run").tokenizer.encode(text)
    noticed = 0
    for what in damages(copy / "run" / "model" / "tokenizer.json"):
        try:
            assert open_run(copy / "run").tokenizer.encode(text) == wanted, what
        except UserError as error:
            noticed += "tokenizer.json" in str(error)
    assert noticed > PLACES


@pytest.mark.parametrize("name", MODEL)
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_final_model_is_written_again_from_the_checkpoint(whole, copy, caplog, name, damage):
    path = copy / "run" / "model" / name
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(b"?" + content[1:] if damage == "flip" else content[:-9])
    again = config_for(whole / "corpus", steps=STEPS)
    with caplog.at_level(logging.WARNING):
        assert train(again, copy / "run", options(copy / "cache")).finished
    assert path.read_bytes() == content


def test_records(copy, whole, caplog):
    """A line in the middle is named with its number; a last line cut short counts as never written."""
    path = copy / "run" / "records.jsonl"
    wanted = {r.key: dict(r.metrics) for r in read_records([path])}
    for what in damages(path):
        caplog.clear()
        complaint = ""
        try:
            found = {r.key: dict(r.metrics) for r in read_records([path])}
        except UserError as error:
            found, complaint = {}, str(error)
        assert found.items() <= wanted.items(), what
        cut_between_lines = what.startswith("cut") and path.read_bytes()[-1:] in (b"\n", b"")
        assert found == wanted or cut_between_lines or f"{path}:" in complaint + caplog.text, what


def test_token_caches(copy, whole, caplog):
    """Whatever is damaged is built again; the tokens are the same, and the file is named where it mattered."""
    config = DataConfig(str(whole / "corpus"), "bpe-300", None, str(copy / "cache"))
    wanted = {split: open_corpus(config, progress=False).split(split).digest for split in ("train", "validation")}
    files = [path for path in (copy / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert len(files) >= 6
    for path in files:
        before = path.read_bytes()
        for what in damages(path, PLACES // 4):  # each is tokenised again
            caplog.clear()
            damaged = path.read_bytes()
            corpus = open_corpus(config, progress=False)
            assert {split: corpus.split(split).digest for split in wanted} == wanted, (path, what)
            assert path.read_bytes() == before or path.name == "file-hashes.json"
            assert path.parent.name in caplog.text or damaged == before, (path, what)


@pytest.mark.parametrize("name", ["config.json", *(f"model/{name}" for name in MODEL)])
def test_a_deleted_file_is_named(copy, name):
    (copy / "run" / name).unlink()
    (copy / "run" / "checkpoints").rename(copy / "gone")
    with pytest.raises(UserError) as found:
        open_run(copy / "run")
    assert str(copy / "run") in str(found.value)
