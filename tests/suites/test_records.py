"""Records: one per evaluation, never lost, never doubled, never believed when damaged."""

from __future__ import annotations

import errno
import json
import multiprocessing

import pytest

from scse.config import assemble
from scse.errors import RunFailure, UserError
from scse.records import Record, append_records, identity, new_record, read_records
from scse.records import store as records


def record(seed=0, depth=8, ppl=10.0, family="scse", **changes):
    config = assemble(family, {"steps": 5, "seed": seed, **changes})
    return new_record(
        identity(config, 5, dataset="stdlib", split="test", depth=depth), {"ppl": ppl, "nll": 2.3, "tokens": 99}, "abc"
    )


def test_records_round_trip_with_their_provenance(tmp_path):
    path = tmp_path / "records.jsonl"
    append_records(path, [record()])
    (found,) = read_records([path])
    assert found.identity == record().identity
    assert found.metrics == {"ppl": 10.0, "nll": 2.3, "tokens": 99}
    assert {"data", "time", "git", "torch", "python", "scse"} <= found.facts.keys()


@pytest.mark.parametrize("shape", ["positions=rope", "mlp=relu2", "kv_heads=1", "tied=false", "prelude=1"])
def test_every_make_of_a_model_has_readable_records(tmp_path, shape):
    append_records(tmp_path / "records.jsonl", [record(**dict([shape.split("=")]))])
    assert len(read_records([tmp_path / "records.jsonl"])) == 1


def test_two_texts_of_one_name_are_two_evaluations(tmp_path):
    path, first = tmp_path / "records.jsonl", record(ppl=10.0)
    other = Record(first.identity, {**first.metrics, "ppl": 12.0}, {**first.facts, "data": "def"})
    append_records(path, [first, other, record(ppl=11.0)])
    assert [(r.facts["data"], r.metrics["ppl"]) for r in read_records([path])] == [("def", 12.0), ("abc", 11.0)]


def test_a_repeat_replaces_and_never_adds(tmp_path):
    path = tmp_path / "records.jsonl"
    append_records(path, [record(ppl=10.0), record(seed=1)])
    append_records(path, [record(ppl=11.0)])
    found = read_records([path])
    assert sorted((r.seed, r.metrics["ppl"]) for r in found) == [(0, 11.0), (1, 10.0)]
    assert len(path.read_text().splitlines()) == 3, "history stays in the file"


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"depth": 16},
        {"family": "looped"},
        {"lr": 1e-3},
        {"step_scale": 0.4},
        {"data": "wikitext-2"},
        {"data_seed": 7},
    ],
)
def test_the_identity_tells_evaluations_apart(other):
    assert record().key == record(ppl=99.0).key
    assert record().key != record(**other).key


def test_a_group_differs_in_the_seed_alone():
    assert record(seed=0).group == record(seed=1).group
    assert record(seed=0).group != record(seed=1, data_seed=0).group, "a fixed data order is another protocol"
    assert record(seed=2, data_seed=9).group == record(seed=3, data_seed=9).group
    assert record().group != record(depth=16).group


def _append_many(path, seed):
    for depth in range(1, 30):
        append_records(path, [record(seed=seed, depth=depth)])


def test_parallel_writers_lose_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read_records([path])) == 4 * 29


@pytest.mark.parametrize(("lost", "left"), [(40, [0]), (1, [0, 1])], ids=["half a line", "only its end"])
def test_an_unfinished_last_line_is_passed_over_and_written_past(tmp_path, caplog, lost, left):
    """As by a writer that was killed: what is whole stays, what is not counts as never written."""
    path = tmp_path / "records.jsonl"
    append_records(path, [record(seed=0), record(seed=1)])
    path.write_bytes(path.read_bytes()[:-lost])
    assert [r.seed for r in read_records([path])] == left
    assert ("records.jsonl:2 is unfinished" in caplog.text) == (lost > 1)
    append_records(path, [record(seed=2)])
    assert [r.seed for r in read_records([path])] == [*left, 2]


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    append_records(path, [record(seed=0)])
    before = path.read_bytes()
    monkeypatch.setattr(records.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(RunFailure, match=r"records\.jsonl: No space left; mend this"):
        append_records(path, [record(seed=1)])
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["digit", "no hash", "not json", "binary"])
def test_a_damaged_line_is_named(tmp_path, damage):
    path = tmp_path / "records.jsonl"
    append_records(path, [record(seed=0), record(seed=1), record(seed=2)])
    lines = path.read_bytes().splitlines()
    lines[1] = {
        "digit": lines[1].replace(b'"ppl": 10.0', b'"ppl": 90.0'),
        "no hash": json.dumps({"identity": {}, "metrics": {}}).encode(),
        "not json": b"{",
        "binary": b"\xff\xfe",
    }[damage]
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(UserError, match=r"records\.jsonl:2 is damaged"):
        read_records([path])


@pytest.mark.parametrize(
    ("part", "value"), [("family", []), ("family", None), ("shape", {"width": "wide"}), ("options", 3)]
)
def test_a_line_that_is_no_record_is_named_although_its_hash_is_right(tmp_path, part, value):
    strange = record()
    strange.identity["model"][part] = value
    append_records(tmp_path / "records.jsonl", [record(), strange, record()])
    with pytest.raises(UserError, match=r"records\.jsonl:2 is damaged"):
        read_records([tmp_path / "records.jsonl"])


def test_files_are_merged_and_the_later_one_wins(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append_records(first, [record(ppl=1.0), record(seed=5)])
    append_records(second, [record(ppl=2.0)])
    assert {r.seed: r.metrics["ppl"] for r in read_records([first, second])} == {0: 2.0, 5: 10.0}
    with pytest.raises(UserError, match="cannot read records"):
        read_records([tmp_path / "absent.jsonl"])


def test_records_can_be_made_by_hand():
    assert Record({"seed": 3, "depth": None}, {}, {}).depth is None
