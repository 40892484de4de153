from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scse.data import DataConfig, TokenSplit, corpora, open_corpus
from scse.data import cache as cache_module
from scse.data.fingerprint import Ledger
from scse.data.readers import SourceFile
from scse.errors import UserError

BUILD = (
    "import sys; from scse.data import *; print(open_corpus(DataConfig(sys.argv[1]), True).split('train').digest, "
    "flush=True)"
)


def build(path: Path) -> TokenSplit:
    return open_corpus(DataConfig(str(path)), progress=False).split("train")


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*.tmp")]


def test_metadata_states_what_the_tokens_are(story: Path, cache: Path) -> None:
    split = build(story)
    (meta,) = cache.glob("story.txt-*/train.json")
    stated = json.loads(meta.read_text())
    assert stated["count"] == len(split.tokens)
    assert stated["dtype"] == "uint16"
    assert stated["sha256"] == split.digest
    assert stated["format"] == cache_module.CACHE_FORMAT
    assert [name for name, _ in stated["sources"]] == ["story.txt"]
    assert len(stated["tokenizer"]) == 64
    assert leftovers(cache) == []


def test_second_opening_reads_the_cache(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(story)
    monkeypatch.setattr("scse.data.corpora.encode_split", lambda *_: pytest.fail("tokenised again"))
    assert build(story).digest == first.digest


def test_changed_source_gives_another_cache(story: Path, cache: Path) -> None:
    first = build(story)
    story.write_bytes(story.read_bytes().replace(b"quick", b"quite"))
    assert build(story).digest != first.digest
    assert len(list(cache.glob("story.txt-*"))) == 2


def truncate(folder: Path) -> None:
    path = folder / "train.bin"
    path.write_bytes(path.read_bytes()[:-2])


def flip(folder: Path) -> None:
    path = folder / "train.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def drop_metadata(folder: Path) -> None:
    (folder / "train.json").unlink()


def drop_data(folder: Path) -> None:
    (folder / "train.bin").unlink()


def cut_metadata(folder: Path) -> None:
    path = folder / "train.json"
    path.write_bytes(path.read_bytes()[:-5])


def garble_metadata(folder: Path) -> None:
    (folder / "train.json").write_bytes(b"[\xff")


def metadata_of_another_kind(folder: Path) -> None:
    (folder / "train.json").write_text("[]")


def restate(key: str, value: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "train.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    damage.__name__ = f"restate_{key}"
    return damage


RESTATED = (restate("format", 0), restate("tokenizer", "0" * 64), restate("count", None), restate("sources", []))


@pytest.mark.parametrize(
    "damage",
    [truncate, flip, drop_metadata, drop_data, cut_metadata, garble_metadata, metadata_of_another_kind, *RESTATED],
    ids=lambda damage: damage.__name__,
)
def test_unfit_cache_is_rebuilt_with_one_warning(
    damage: Callable[[Path], None], story: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = build(story)
    content = bytes(first.tokens)
    (folder,) = cache.glob("story.txt-*")
    damage(folder)
    again = build(story)
    assert again.digest == first.digest
    assert bytes(again.tokens) == content
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert warned[0].endswith("building it again")
    caplog.clear()
    build(story)
    assert not caplog.records


def test_two_builders_at_once_build_once(story: Path, cache: Path) -> None:
    story.write_bytes(story.read_bytes() * 40)
    command = [sys.executable, "-c", BUILD, str(story)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    builders = [subprocess.Popen(command, **pipes) for _ in range(2)]
    outputs = [builder.communicate() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert len({digest for digest, _ in outputs}) == 1
    assert sum(lines.count("done,") for _, lines in outputs) == 1
    assert outputs[0][0].strip() == build(story).digest
    assert leftovers(cache) == []


def test_build_after_a_killed_one(story: Path, cache: Path) -> None:
    stall = (
        "import time, scse.data.encoding as e; e.BATCH_TEXTS = 1; e.CHUNK_CHARACTERS = 10; encode = e._encode\n"
        "def slow(*a):\n    print('working', flush=True); time.sleep(0.2); return encode(*a)\n"
        "e._encode = slow\n"
    )
    builder = subprocess.Popen([sys.executable, "-c", stall + BUILD, str(story)], stdout=subprocess.PIPE)
    assert builder.stdout is not None
    with builder.stdout:
        for _ in range(3):
            assert builder.stdout.readline() == b"working\n"
        assert leftovers(cache)
        builder.send_signal(signal.SIGKILL)
        assert builder.wait() == -signal.SIGKILL
    assert leftovers(cache)
    split = build(story)
    assert leftovers(cache) == []
    (folder,) = cache.glob("story.txt-*")
    assert sorted(path.name for path in folder.iterdir()) == ["train.bin", "train.json"]
    assert build(story).digest == split.digest


def test_write_that_the_system_refuses_is_one_line_and_leaves_nothing(story: Path, cache: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    catch = "from scse.errors import UserError\ntry:\n    {}\nexcept UserError as e:\n    print(e)"
    script = limit + catch.format(BUILD.replace("; ", "\n    "))
    done = subprocess.run([sys.executable, "-c", script, str(story)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot write the cache ")
    assert "SCSE_CACHE" in done.stdout
    assert done.stdout.count("\n") == 1
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert not list(cache.glob("story.txt-*"))


def test_full_disk(story: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device; make room"):
            build(story)
    assert leftovers(cache) == []
    assert not list(cache.glob("story.txt-*"))
    assert len(build(story).tokens) > 0


def test_cache_folder_that_cannot_be(story: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = DataConfig(str(story), cache_dir=str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="cannot write the cache"):
        open_corpus(config, progress=False).split("train")


def test_interrupted_build_leaves_nothing(story: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("scse.data.encoding._encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(story)
    assert leftovers(cache) == []
    assert not list(cache.glob("story.txt-*"))


def test_source_that_changes_during_the_build(story: Path, cache: Path) -> None:
    corpus = open_corpus(DataConfig(str(story)), progress=False)
    story.write_bytes(story.read_bytes() + b"more\n")
    with pytest.raises(UserError, match="changed while it was being read"):
        corpus.split("train")
    assert not list(cache.glob("story.txt-*"))


def test_verified_cache_needs_no_write_access(story: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = build(story).digest
    monkeypatch.setattr(cache_module, "_locked", lambda _: pytest.fail("took the lock"))
    assert build(story).digest == digest


@pytest.fixture
def ledger_file(tmp_path: Path) -> SourceFile:
    path = tmp_path / "large.jsonl"
    path.write_text('{"text": "' + "x" * 1000 + '"}\n', "utf-8")
    return SourceFile(path, "jsonl", "large.jsonl")


def test_hashes_of_large_files_are_remembered(
    ledger_file: SourceFile, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scse.data.fingerprint.MEMO_FROM_BYTES", 100)
    ledger = Ledger(cache)
    known = ledger.fingerprint(ledger_file).sha256
    assert ledger.count(ledger_file) == 1
    ledger.save()
    with monkeypatch.context() as patch:
        patch.setattr("scse.data.fingerprint._measure", lambda *_: pytest.fail("read again"))
        assert Ledger(cache).fingerprint(ledger_file).sha256 == known
        assert Ledger(cache).count(ledger_file) == 1
    time.sleep(0.01)
    ledger_file.path.write_text(ledger_file.path.read_text().replace("xx", "xy", 1))
    assert Ledger(cache).fingerprint(ledger_file).sha256 != known


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b'{"sha256": 3, "version": 1}', b"\xff\xfe"])
def test_damaged_memo_is_forgotten(
    damage: bytes, ledger_file: SourceFile, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "file-hashes.json").write_bytes(damage)
    assert len(Ledger(cache).fingerprint(ledger_file).sha256) == 64


def test_altered_memo_is_not_believed(ledger_file: SourceFile, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scse.data.fingerprint.MEMO_FROM_BYTES", 100)
    ledger = Ledger(cache)
    known = ledger.fingerprint(ledger_file).sha256
    ledger.save()
    memo = cache / "file-hashes.json"
    altered = known[:-1] + ("0" if known[-1] != "0" else "1")
    memo.write_text(memo.read_text().replace(known, altered))
    assert Ledger(cache).fingerprint(ledger_file).sha256 == known


def test_source_that_vanishes_during_the_build(story: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanishing(*arguments: object) -> Iterator[object]:
        yield from encode(*arguments)
        story.unlink()

    encode = corpora.encode_split
    monkeypatch.setattr(corpora, "encode_split", vanishing)
    with pytest.raises(UserError, match=r"cannot read .*story\.txt: No such file"):
        build(story)
    assert not list(cache.glob("story.txt-*"))


def test_source_that_the_system_cannot_read(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("scse.data.fingerprint.file_hash", unreadable)
    with pytest.raises(UserError, match=r"cannot read .*story\.txt: Input/output error"):
        build(story)


def test_hashes_that_cannot_be_remembered_are_no_failure(
    ledger_file: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scse.data.fingerprint.MEMO_FROM_BYTES", 100)
    caplog.set_level(logging.DEBUG, "scse")
    (tmp_path / "file").write_text("in the way")
    ledger = Ledger(tmp_path / "file" / "cache")
    assert len(ledger.fingerprint(ledger_file).sha256) == 64
    ledger.save()
    assert "file hashes not remembered" in caplog.text
