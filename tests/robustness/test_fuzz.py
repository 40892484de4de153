"""Bad input at scale: whatever is in a file, the answer is a result or one clear line.

Each target runs a few dozen cases here; SCSE_FUZZ sets their number, and `make soak` runs over ten thousand in all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing import alter, json_values, many, mutate, mutations, one_line, within_bounds
from hypothesis import given
from hypothesis import strategies as st

from runs import config_for, run, write_corpus
from scse import persistence
from scse.config import ModelConfig, assemble
from scse.data import DataConfig, load_tokenizer, open_corpus
from scse.errors import UserError
from scse.files import content_hash, read_sealed, write_sealed
from scse.persistence import load_model
from scse.records import append_records, identity, new_record, read_records
from scse.report.page import chapters, origin, page
from scse.runs import open_run
from scse.runs.checkpoint import CheckpointStore
from scse.runs.folder import FORMAT, read_run_config
from scse.suites import SUITES
from scse.suites.presets import find_preset

RESULTS = Path(__file__).parents[2] / "results" / "mini-wikitext-2" / "records.jsonl"


@pytest.fixture(autouse=True)
def _bounded():
    with within_bounds():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small run with two checkpoints, a record and a token cache."""
    folder = tmp_path_factory.mktemp("fuzz")
    run(write_corpus(folder / "corpus"), folder / "run", steps=6)
    about = identity(config_for(folder / "corpus"), 6, dataset="corpus", split="test", depth=8)
    append_records(
        folder / "run" / "records.jsonl", [new_record({**about, "depth": d}, {"ppl": 2.0}, "x") for d in (4, 8)]
    )
    return folder


@many
@given(changes=mutations)
def test_records(base, tmp_path_factory, changes):
    original = (base / "run" / "records.jsonl").read_bytes()
    path = tmp_path_factory.mktemp("case") / "records.jsonl"
    path.write_bytes(mutate(original, changes))
    lines = set(original.splitlines())
    try:
        found = read_records([path])
    except UserError as error:
        one_line(error)
    else:
        assert all(record.metrics == {"ppl": 2.0} for record in found)
        assert len(found) <= len(lines)


@many
@given(changes=mutations, name=st.sampled_from(["config.json", "model/config.json", "model/model.safetensors"]))
def test_run_folders(base, tmp_path_factory, changes, name):
    folder = tmp_path_factory.mktemp("case") / "run"
    shutil.copytree(base / "run", folder, ignore=shutil.ignore_patterns("checkpoints"))
    (folder / name).write_bytes(mutate((folder / name).read_bytes(), changes))
    try:
        open_run(folder)
    except UserError as error:
        one_line(error)


@many
@given(changes=mutations)
def test_tokenizers(base, tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("case")
    (folder / "tokenizer.json").write_bytes(mutate((base / "run" / "model" / "tokenizer.json").read_bytes(), changes))
    try:
        load_tokenizer(folder)
    except UserError as error:
        one_line(error)


@many
@given(changes=mutations, name=st.sampled_from(["model.safetensors", "optimizer.safetensors", "state.json"]))
def test_checkpoints_are_never_trusted_when_altered(base, tmp_path_factory, changes, name):
    store = tmp_path_factory.mktemp("case") / "checkpoints"
    shutil.copytree(base / "run" / "checkpoints", store)
    newest = max(store.glob("step-*"), key=lambda path: int(path.name[5:]))
    before = (newest / name).read_bytes()
    (newest / name).write_bytes(mutate(before, changes))
    altered = (newest / name).read_bytes() != before
    found = CheckpointStore(store, keep=2).newest()
    assert found is not None, "the one before is still good"
    if altered and name != "state.json":
        assert found.folder != newest


@many
@given(changes=mutations, kind=st.sampled_from(["txt", "jsonl", "parquet"]))
def test_text_files(tmp_path_factory, changes, kind):
    folder = tmp_path_factory.mktemp("case")
    path = folder / f"text.{kind}"
    lines = [f"line {n} of a text that is long enough to be divided" for n in range(60)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": lines}), path)
    else:
        path.write_text("\n".join(json.dumps({"text": line}) if kind == "jsonl" else line for line in lines))
    path.write_bytes(mutate(path.read_bytes(), changes))
    try:
        open_corpus(DataConfig(str(path), "bpe-280", None, str(folder / "cache")), progress=False)
    except UserError as error:
        one_line(error)
        assert not list(folder.rglob("*.tmp"))


@many
@given(changes=mutations, pick=st.integers(0, 10**6))
def test_token_caches(base, tmp_path_factory, changes, pick):
    """An altered cache gives the same tokens again, or one line; never other tokens."""
    folder = tmp_path_factory.mktemp("case")
    shutil.copytree(base / "cache", folder / "cache")
    files = sorted(path for path in (folder / "cache").rglob("*") if path.is_file())
    victim = files[pick % len(files)]
    victim.write_bytes(mutate(victim.read_bytes(), changes))
    tokenizer = load_tokenizer(base / "run" / "model")
    config = DataConfig(str(base / "corpus"), "bpe-300", None, str(folder / "cache"))
    clean = DataConfig(str(base / "corpus"), "bpe-300", None, str(base / "cache"))
    try:
        found = open_corpus(config, progress=False, tokenizer=tokenizer)
    except UserError as error:
        one_line(error)
        return
    wanted = open_corpus(clean, progress=False, tokenizer=tokenizer)
    for split in ("train", "validation", "test"):
        assert (found.split(split).tokens == wanted.split(split).tokens).all()


@many
@given(data=json_values, replaced=st.sampled_from(["family", "shape", "options", "width", "heads", "anchor", "all"]))
def test_model_configurations(base, data, replaced):
    stated = json.loads((base / "run" / "model" / "config.json").read_text())["model"]
    if replaced == "all":
        stated = data
    elif replaced in stated:
        stated[replaced] = data
    else:
        stated["options" if replaced == "anchor" else "shape"][replaced] = data
    try:
        ModelConfig.from_dict(stated)
    except UserError as error:
        one_line(error)


OPTIONS = ["lr", "steps", "width", "anchor", "seed", "context"]


@many
@given(name=st.text(max_size=10) | st.sampled_from(OPTIONS), value=json_values)
def test_settings(name, value):
    try:
        assemble("scse", {"scale": "mini", "steps": 3, name: value})
    except UserError as error:
        one_line(error)


@many
@given(where=st.lists(st.integers(0, 30), min_size=1, max_size=5), value=json_values)
def test_records_with_other_values(tmp_path_factory, where, value):
    """Made by somebody else: the hash is right, and what the line says is anything. A report of it is a report."""
    path = tmp_path_factory.mktemp("case") / "records.jsonl"
    data = json.loads(RESULTS.read_bytes().partition(b"\n")[0])
    data.pop("sha256")
    changed = alter(data, where, value)
    path.write_text(json.dumps({**changed, "sha256": content_hash(changed)} if isinstance(changed, dict) else changed))
    with path.open("a") as stream:
        stream.write("\n")
    try:
        records = read_records([path])
    except UserError as error:
        one_line(error)
        return
    preset = find_preset("mini", data="wikitext-2-v1")
    page([], [], preset, origin(records))
    chapters([SUITES.find("add-anchor-design")], preset, records)


SEALED = {"config.json": "run", "model/config.json": "run", "checkpoints/step-6/state.json": "checkpoint"}


@many
@given(
    name=st.sampled_from(sorted(SEALED)), where=st.lists(st.integers(0, 30), min_size=1, max_size=5), value=json_values
)
def test_sealed_files_with_other_values(base, tmp_path_factory, name, where, value):
    """Not damaged but made so: the hash is right and what it vouches for is not."""
    folder = tmp_path_factory.mktemp("case") / "run"
    shutil.copytree(base / "run", folder)
    stated = {key: value for key, value in json.loads((folder / name).read_text()).items() if key != "sha256"}
    changed = alter(stated, where, value)
    format_number = changed.pop("format", None) if isinstance(changed, dict) else None
    write_sealed(folder / name, format_number, changed if isinstance(changed, dict) else {})
    try:
        if SEALED[name] == "run":
            open_run(folder)
        else:
            found = CheckpointStore(folder / "checkpoints", keep=2).newest()
            assert found is not None
            assert found.step in (3, 6)
    except UserError as error:
        one_line(error)


@many
@given(header=json_values, where=st.lists(st.integers(0, 30), max_size=3))
def test_safetensors_headers(base, tmp_path_factory, header, where):
    """A weights file whose table of contents says anything at all."""
    folder = tmp_path_factory.mktemp("case") / "run"
    shutil.copytree(base / "run", folder, ignore=shutil.ignore_patterns("checkpoints"))
    path = folder / "model" / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    said = json.dumps(alter(json.loads(content[8 : 8 + size]), where, header)).encode()
    path.write_bytes(len(said).to_bytes(8, "little") + said + content[8 + size :])
    try:
        persistence.build(read_run_config(folder)[0].model, path)
    except UserError as error:
        one_line(error)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"seed": ' + "9" * 10_000 + "}"], ids=["nesting", "a number"])
def test_json_without_end_is_one_line(base, tmp_path, deep):
    shutil.copytree(base / "run", tmp_path / "run")
    for name in ("config.json", "model/config.json", "model/tokenizer.json"):
        before = (tmp_path / "run" / name).read_text()
        (tmp_path / "run" / name).write_text(deep)
        with pytest.raises(UserError) as error:
            open_run(tmp_path / "run")
        one_line(error.value)
        (tmp_path / "run" / name).write_text(before)
    (tmp_path / "records.jsonl").write_text(deep + "\n\n")
    with pytest.raises(UserError, match="damaged"):
        read_records([tmp_path / "records.jsonl"])


def test_loading_a_model_says_what_is_wrong(base, tmp_path):
    folder = Path(shutil.copytree(base / "run" / "model", tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError):
        load_model(folder)


def test_read_run_config_is_strict(base, tmp_path):
    shutil.copytree(base / "run", tmp_path / "run")
    stated = read_sealed(tmp_path / "run" / "config.json", FORMAT)
    stated["train"]["extra"] = 1
    write_sealed(tmp_path / "run" / "config.json", FORMAT, {"train": stated["train"], "data": stated["data"]})
    with pytest.raises(UserError, match="extra"):
        read_run_config(tmp_path / "run")
