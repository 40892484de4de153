"""Tokenising in shards: any number of processes, killed at any moment, gives the tokens of one undisturbed build."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from scse.cli import main
from scse.data import DataConfig, open_corpus, shards
from scse.data import cache as cache_module
from scse.errors import UserError

DOCUMENTS = 120


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Documents of many lengths, one of them longer than a shard and one of them empty."""
    draw, words = random.Random(1), ["all", "work", "and", "no", "play"]
    lengths = [draw.randrange(1, 120) for _ in range(DOCUMENTS)]
    lengths[7], lengths[11] = 3000, 0
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"text": " ".join(draw.choices(words, k=length))}) for length in lengths]
    (folder / "train.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 2000)
    monkeypatch.setattr("scse.data.encoding.CHUNK_CHARACTERS", 300)


def build(documents: Path, cache: Path, processes: int = 1):
    config = DataConfig(str(documents), cache_dir=str(cache))
    return open_corpus(config, progress=False, processes=processes).split("train")


def stray(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*") if "shards" in path.name or path.name.endswith(".tmp")]


def test_shards_are_the_same_tokens_and_leave_nothing(documents, tmp_path, monkeypatch):
    whole = build(documents, tmp_path / "whole")
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 2000)
    cut = build(documents, tmp_path / "cut")
    assert cut.digest == whole.digest
    assert bytes(cut.tokens) == bytes(whole.tokens)
    assert stray(tmp_path / "cut") == []


def until_killed(documents: Path, cache: Path, said: int, moments: int) -> None:
    """A build that says which shards it has written, and kills itself a moment after one of them has begun."""
    write, begun = shards.write_shard, []

    def dying(*arguments):
        begun.append(arguments[1].number)
        if len(begun) == moments:
            threading.Timer(random.uniform(0, 0.01), os.kill, (os.getpid(), signal.SIGKILL)).start()
        write(*arguments)
        os.write(said, f"{arguments[1].number}\n".encode())
        if len(begun) == moments:
            time.sleep(60)

    shards.write_shard = dying
    build(documents, cache)


def test_killed_ten_times_it_loses_at_most_a_shard(documents, tmp_path, small_shards):
    """A shard that was finished is never written again, and the end is that of an undisturbed build."""
    digest = build(documents, tmp_path / "whole").digest
    written: list[str] = []
    for kill in range(10):
        reader, writer = os.pipe()
        process = multiprocessing.get_context("fork").Process(
            target=until_killed, args=(documents, tmp_path / "cut", writer, 1 + kill % 2)
        )
        process.start()
        os.close(writer)
        with open(reader) as said:
            written += said.read().split()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it came to the end"
    assert len(written) == len(set(written))
    assert build(documents, tmp_path / "cut").digest == digest
    assert stray(tmp_path / "cut") == []


def test_processes_share_the_shards(documents, tmp_path, monkeypatch, small_shards):
    whole = build(documents, tmp_path / "whole")
    assert build(documents, tmp_path / "shared", processes=2).digest == whole.digest
    assert stray(tmp_path / "shared") == []


def interrupted(documents: Path, cache: Path) -> None:
    """A build that ends before its fourth shard."""

    def dying(*arguments):
        if arguments[1].number == 3:
            raise KeyboardInterrupt
        write(*arguments)

    write = shards.write_shard
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "write_shard", dying)
        with pytest.raises(KeyboardInterrupt):
            build(documents, cache)


@pytest.mark.parametrize("part", ["1.bin", "1.json"])
def test_a_damaged_shard_is_written_again(documents, tmp_path, small_shards, part):
    digest = build(documents, tmp_path / "whole").digest
    interrupted(documents, tmp_path / "cut")
    (damaged,) = (tmp_path / "cut").glob(f"*/.train.shards/{part}")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert build(documents, tmp_path / "cut").digest == digest


def test_shards_of_other_text_are_not_believed(documents, tmp_path, small_shards):
    """The hash of the files names the folder; text from elsewhere is told by its own."""
    interrupted(documents, tmp_path / "cut")
    found = [shard for shard, _ in shards.shards(open_corpus(DataConfig(str(documents)))._source.split("train"))]
    (kept,) = (tmp_path / "cut").glob("*/.train.shards")
    assert [shards.is_kept(shard, kept) for shard in found[:4]] == [True, True, True, False]
    other = shards.Shard(0, [(chunk.replace("work", "wort"), last) for chunk, last in found[0].chunks])
    assert not shards.is_kept(other, kept)


def test_workers_leave_with_a_parent_that_is_killed(monkeypatch):
    left = []
    monkeypatch.setattr(shards.os, "getppid", lambda: 1)
    monkeypatch.setattr(shards.os, "_exit", left.append)
    shards._leave_with(os.getpid())
    assert left == [1]


def test_a_large_file_is_hashed_once_and_again_when_it_was_touched(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "TRUSTED_FROM_BYTES", 100)
    digest = build(documents, tmp_path / "cache").digest
    (data,) = (tmp_path / "cache").glob("*/train.bin")
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "file_hash", lambda path: pytest.fail("hashed again"))
        assert build(documents, tmp_path / "cache").digest == digest
    os.utime(data, ns=(1, 1))
    hashed = []
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "file_hash", lambda path: hashed.append(path) or digest)
        for _ in range(2):
            assert build(documents, tmp_path / "cache").digest == digest
    assert hashed == [data], "a copied cache is hashed once and then known"


@pytest.mark.parametrize("change", ["sha256", "state"])
def test_altered_metadata_is_not_believed(documents, tmp_path, monkeypatch, change, caplog):
    monkeypatch.setattr(cache_module, "TRUSTED_FROM_BYTES", 100)
    digest = build(documents, tmp_path / "cache").digest
    (meta,) = (tmp_path / "cache").glob("*/train.json")
    stated = json.loads(meta.read_text())
    meta.write_text(json.dumps({**stated, change: "0" * 64 if change == "sha256" else [1, 1]}))
    assert build(documents, tmp_path / "cache").digest == digest
    assert ("altered" in caplog.text) == (change == "sha256")


def test_prepared_and_verified(documents, tmp_path, capsys):
    place = ["--cache-dir", str(tmp_path / "cache"), "--json"]
    assert main(["data", "prepare", str(documents), "--processes", "1", "--quiet", *place]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["split"], row["sha256"]) == ("train", build(documents, tmp_path / "cache").digest)
    assert main(["data", "verify", *place]) == 0
    assert [file["state"] for file in json.loads(capsys.readouterr().out)["files"]] == ["ok"]
    (data,) = (tmp_path / "cache").glob("*/train.bin")
    data.write_bytes(data.read_bytes()[:-2])
    assert main(["data", "verify", *place[:-1]]) == 1
    assert "1 files, 1 not as they were built" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "said"), [([], "name a corpus"), (["p-hop"], "is a problem")])
def test_mistakes_in_preparing(words, said, capsys):
    assert main(["data", "prepare", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_corpus_without_text_is_told(tmp_path, small_shards):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "train.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(UserError, match="there is no text in it"):
        build(tmp_path / "texts", tmp_path / "cache")
