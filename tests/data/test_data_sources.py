from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scse.data import DataConfig, Slices, Tokenizer, corpus_documents, open_corpus
from scse.data.named import NAMED
from scse.errors import UserError

SMALL = Slices(train=5, validation=2, test=3, heldout=2)
Writer = Callable[[Path, Iterable[str]], Path]


def documents(name: str, split: str, root: Path, slices: Slices | None = None) -> list[str]:
    return list(corpus_documents(DataConfig(name, data_dir=str(root)), split, slices=slices))


def numbered(start: int, stop: int) -> list[str]:
    return [f"example {i}" for i in range(start, stop)]


def write_gzip(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as handle:
        handle.writelines(json.dumps({"text": text, "url": "u", "timestamp": "t"}) + "\n" for text in texts)


def test_published_sizes() -> None:
    assert NAMED["openwebtext"].slices == Slices(200_000, 4096, 4096, 4096)
    assert NAMED["c4"].slices == Slices(100_000, 4096, 4096, 4096)
    assert Slices(200_000).windows() == {
        "train": (0, 200_000),
        "validation": (200_000, 204_096),
        "test": (204_096, 208_192),
        "heldout": (200_000, 204_096),
    }
    with pytest.raises(UserError, match="slice 'train' must be at least 1"):
        Slices(train=0)


@pytest.mark.parametrize(
    "names",
    [
        ("plain_text/train-00000-of-00002.parquet", "plain_text/train-00001-of-00002.parquet"),
        ("plain_text/partial-train/0000.parquet", "plain_text/partial-train/0001.parquet"),
        ("0000.parquet", "0001.parquet"),
    ],
)
def test_openwebtext_slices_in_file_order(names: tuple[str, str], tmp_path: Path, write_parquet) -> None:
    root = tmp_path / "openwebtext"
    write_parquet(root / names[0], numbered(0, 6))
    write_parquet(root / names[1], numbered(6, 20))
    (root / "README.md").write_text("about the training data")
    expected = {"train": (0, 5), "validation": (5, 7), "test": (7, 10), "heldout": (5, 7)}
    for split, (start, stop) in expected.items():
        assert documents("openwebtext", split, tmp_path, SMALL) == numbered(start, stop)


def test_c4_slices_and_its_own_validation_files(tmp_path: Path, gpt2: Tokenizer) -> None:
    folder = tmp_path / "c4" / "en"
    write_gzip(folder / "c4-train.00000-of-01024.json.gz", numbered(0, 8))
    write_gzip(folder / "c4-train.00001-of-01024.json.gz", numbered(8, 30))
    write_gzip(folder / "c4-validation.00000-of-00008.json.gz", numbered(100, 101))
    write_gzip(folder / "c4-validation.00001-of-00008.json.gz", numbered(101, 200))
    expected = {"train": (0, 5), "validation": (5, 7), "test": (7, 10), "heldout": (100, 102)}
    corpus = open_corpus(DataConfig("c4", data_dir=str(tmp_path)), progress=False, slices=SMALL)
    assert corpus.splits == tuple(expected)
    for split, (start, stop) in expected.items():
        assert documents("c4", split, tmp_path, SMALL) == numbered(start, stop)
        text = "".join(f"{document}<|endoftext|>" for document in numbered(start, stop))
        assert gpt2.decode(corpus.split(split).tokens) == text


def test_files_beyond_the_slices_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "c4" / "en"
    write_gzip(folder / "c4-train.00000-of-01024.json.gz", numbered(0, 10))
    config = DataConfig("c4", data_dir=str(tmp_path))
    digest = open_corpus(config, progress=False, slices=SMALL).split("test").digest
    (folder / "c4-train.00001-of-01024.json.gz").write_bytes(b"not even gzip")
    assert open_corpus(config, progress=False, slices=SMALL).split("test").digest == digest
    with pytest.raises(UserError, match=r"c4-train\.00001-of-01024\.json\.gz: damaged gzip"):
        open_corpus(config, progress=False, slices=Slices(train=9))


def test_c4_without_validation_files_has_no_heldout_split(tmp_path: Path, write_jsonl: Writer) -> None:
    write_jsonl(tmp_path / "c4" / "train.jsonl", numbered(0, 30))
    with pytest.raises(UserError, match="has no split 'heldout'; it has: train, validation, test"):
        documents("c4", "heldout", tmp_path, SMALL)


def test_c4_of_validation_files_alone_is_its_heldout_split(tmp_path: Path, write_jsonl: Writer) -> None:
    write_jsonl(tmp_path / "c4" / "validation.jsonl", numbered(0, 4))
    assert documents("c4", "heldout", tmp_path, SMALL) == numbered(0, 2)
    with pytest.raises(UserError, match="corpus 'c4' has no split 'train'; it has: heldout"):
        documents("c4", "train", tmp_path, SMALL)


def test_a_python_without_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(UserError, match=r"has no sources; name another corpus with --data"):
        open_corpus(DataConfig("stdlib"), progress=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"caf\xe9", r"test\.txt:2: not UTF-8 at byte 3 of the line"), (b"a\0b", r"test\.txt:2: NUL byte")],
    ids=["latin", "binary"],
)
def test_faults_in_lines_are_placed(line: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "test.txt").write_bytes(b"a passage\n" + line + b"\n")
    with pytest.raises(UserError, match=message):
        documents("lambada", "test", tmp_path)


def test_the_whole_of_a_corpus_trains_on_all_but_the_papers_other_splits(
    tmp_path: Path, monkeypatch, write_jsonl: Writer
) -> None:
    for name in ("openwebtext", "c4"):
        monkeypatch.setitem(NAMED, f"{name}-whole", replace(NAMED[f"{name}-whole"], slices=replace(SMALL, whole=True)))
    write_jsonl(tmp_path / "openwebtext" / "train.jsonl", numbered(0, 20))
    write_gzip(tmp_path / "c4" / "en" / "c4-train.00000-of-01024.json.gz", numbered(0, 8))
    write_gzip(tmp_path / "c4" / "en" / "c4-train.00001-of-01024.json.gz", numbered(8, 20))
    write_gzip(tmp_path / "c4" / "en" / "c4-validation.00000-of-00008.json.gz", numbered(50, 60))
    for name in ("openwebtext", "c4"):
        assert documents(f"{name}-whole", "train", tmp_path) == numbered(0, 5) + numbered(10, 20)
        for split in ("validation", "test", "heldout"):
            assert documents(f"{name}-whole", split, tmp_path) == documents(name, split, tmp_path, SMALL)


def test_slices_state_what_they_stated_before_there_were_whole_ones() -> None:
    assert Slices(5, 2, 3, 2).stated() == {"train": 5, "validation": 2, "test": 3, "heldout": 2}
    assert Slices(5, whole=True).stated()["whole"] is True


def test_slice_sizes_are_part_of_the_cache_key(tmp_path: Path, write_jsonl: Writer) -> None:
    write_jsonl(tmp_path / "openwebtext" / "train.jsonl", numbered(0, 30))
    config = DataConfig("openwebtext", data_dir=str(tmp_path))
    sizes = (SMALL, Slices(6, 2, 3, 2))
    first, second = (open_corpus(config, progress=False, slices=s).split("train").digest for s in sizes)
    assert first != second


def test_short_slice_warns_and_missing_slice_is_an_error(
    tmp_path: Path, write_jsonl: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    write_jsonl(tmp_path / "openwebtext" / "train.jsonl", numbered(0, 6))
    assert documents("openwebtext", "validation", tmp_path, SMALL) == numbered(5, 6)
    assert "only 1 of 2 examples" in caplog.text
    assert {record.name for record in caplog.records} == {"scse"}
    with pytest.raises(UserError, match="openwebtext test: there are no examples 7 to 9"):
        documents("openwebtext", "test", tmp_path, SMALL)


def test_prepared_splits_are_used_whole(tmp_path: Path, write_jsonl: Writer) -> None:
    for split, start in (("train", 0), ("validation", 20), ("test", 30)):
        write_jsonl(tmp_path / "c4" / f"{split}.jsonl", numbered(start, start + 8))
    assert documents("c4", "train", tmp_path, SMALL) == numbered(0, 8)
    assert documents("c4", "test", tmp_path, SMALL) == numbered(30, 38)
    assert documents("c4", "heldout", tmp_path, SMALL) == numbered(20, 22)


@pytest.mark.parametrize("place", ["wikitext-103", "wikitext-103/wikitext-103-raw-v1"])
@pytest.mark.parametrize("name", ["valid.txt", "validation.txt", "wiki.valid.raw"])
def test_wikitext_names(place: str, name: str, tmp_path: Path, gpt2: Tokenizer) -> None:
    text = " \n = A title = \n \n Some text . \n"
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / name).write_text(text)
    corpus = open_corpus(DataConfig("wikitext-103", data_dir=str(tmp_path)), progress=False)
    assert corpus.splits == ("validation",)
    assert corpus.split("dev").tokens.tolist() == gpt2.encode(text)


def test_split_in_two_shapes_is_an_error(tmp_path: Path, write_jsonl: Writer) -> None:
    write_jsonl(tmp_path / "wikitext-2" / "train.jsonl", ["a\n"])
    (tmp_path / "wikitext-2" / "train.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"has its train split twice \(train\.jsonl, train\.txt\)"):
        open_corpus(DataConfig("wikitext-2", data_dir=str(tmp_path)))


def test_lines_of_a_text_file_are_documents_for_a_document_corpus(tmp_path: Path) -> None:
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "test.txt").write_text("first passage\n\nsecond passage\r\nthird")
    assert documents("lambada", "test", tmp_path) == ["first passage", "second passage", "third"]


def test_data_folder_from_the_environment(tmp_path: Path, write_jsonl: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "lambada" / "test.jsonl", ["a passage"])
    monkeypatch.setenv("SCSE_DATA", str(tmp_path))
    assert list(corpus_documents(DataConfig("lambada"), "test")) == ["a passage"]


class Recorder:
    """Stands in for `datasets.load_dataset` and serves rows in the hub's shape."""

    def __init__(self, rows: dict[str, list[str]], scripted: bool = False) -> None:
        self.rows, self.scripted = rows, scripted
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, path: str, **wanted: Any) -> Iterator[dict[str, str]]:
        self.calls.append((path, wanted))
        if self.scripted and "revision" not in wanted:
            raise RuntimeError("Dataset scripts are no longer supported")
        return ({"text": text, "url": "u"} for text in self.rows[wanted["split"]])


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorder], Recorder]:
    def install(recorder: Recorder) -> Recorder:
        monkeypatch.setattr("datasets.load_dataset", recorder)
        monkeypatch.setattr("scse.data.hub.require_answer", lambda absent: None)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        return recorder

    return install


def test_hub_wikitext(serve: Callable[[Recorder], Recorder], gpt2: Tokenizer) -> None:
    recorder = serve(Recorder({"train": ["", " = Title = \n", "", " Text . \n"]}))
    tokens = open_corpus(DataConfig("wikitext-2"), progress=False).split("train").tokens
    assert tokens.tolist() == gpt2.encode(" \n = Title = \n \n Text . \n")
    wanted = {"name": "wikitext-2-raw-v1", "split": "train", "streaming": True}
    assert recorder.calls == [("Salesforce/wikitext", wanted)]
    open_corpus(DataConfig("wikitext-2"), progress=False).split("train")
    assert len(recorder.calls) == 1


@pytest.mark.parametrize(
    ("name", "config"),
    [("wikitext-2-v1", "wikitext-2-v1"), ("wikitext-103", "wikitext-103-raw-v1"), ("wikitext-103-v1",) * 2],
)
def test_hub_configurations(name: str, config: str, serve: Callable[[Recorder], Recorder]) -> None:
    recorder = serve(Recorder({"test": ["x\n"]}))
    assert list(corpus_documents(DataConfig(name), "test")) == ["x\n"]
    assert recorder.calls[0][1]["name"] == config


def test_hub_openwebtext_from_the_converted_revision(serve: Callable[[Recorder], Recorder]) -> None:
    recorder = serve(Recorder({"train": numbered(0, 20)}, scripted=True))
    config = DataConfig("openwebtext")
    assert list(corpus_documents(config, "test", slices=SMALL)) == numbered(7, 10)
    assert list(corpus_documents(config, "heldout", slices=SMALL)) == numbered(5, 7)
    assert [wanted.get("revision") for _, wanted in recorder.calls[:2]] == [None, "refs/convert/parquet"]


def test_hub_c4(serve: Callable[[Recorder], Recorder]) -> None:
    recorder = serve(Recorder({"train": numbered(0, 20), "validation": numbered(50, 60)}))
    config = DataConfig("c4")
    assert list(corpus_documents(config, "train", slices=SMALL)) == numbered(0, 5)
    assert list(corpus_documents(config, "heldout", slices=SMALL)) == numbered(50, 52)
    assert [(path, wanted["name"], wanted["split"]) for path, wanted in recorder.calls] == [
        ("allenai/c4", "en", "train"),
        ("allenai/c4", "en", "validation"),
    ]


def test_hub_lambada(serve: Callable[[Recorder], Recorder]) -> None:
    recorder = serve(Recorder({"test": ["a passage"]}))
    assert list(corpus_documents(DataConfig("lambada"), "test")) == ["a passage"]
    assert recorder.calls[0][0] == "EleutherAI/lambada_openai"
    with pytest.raises(UserError, match="corpus 'lambada' has no split 'train'; it has: test"):
        open_corpus(DataConfig("lambada")).split("train")


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (iter([{"text": "good"}, {"body": "bad"}]), '^EleutherAI/lambada_openai test row 2: no "text" field'),
        (RuntimeError("Dataset scripts are no longer supported"), "the hub failed: Dataset scripts are no longer"),
    ],
    ids=["a row without text", "a dataset that is a program"],
)
def test_hub_that_serves_something_else_is_one_line(served: Any, message: str, serve: Callable[[Any], object]) -> None:
    calls = []

    def load(path: str, **_: Any) -> Any:
        calls.append(path)
        if isinstance(served, Exception):
            raise served
        return served

    serve(load)
    with pytest.raises(UserError, match=message) as caught:
        list(corpus_documents(DataConfig("lambada"), "test"))
    assert "\n" not in str(caught.value)
    assert calls == ["EleutherAI/lambada_openai"], "there is no other revision to ask for"


def test_hub_that_breaks_off_is_one_line_and_leaves_nothing(serve: Callable[[Recorder], Recorder], cache: Path) -> None:
    def broken(_: str, **__: Any) -> Iterator[dict[str, str]]:
        yield {"text": "begins\n"}
        raise ConnectionError("connection reset\nby peer")

    serve(broken)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the hub failed: connection reset") as caught:
        open_corpus(DataConfig("wikitext-2"), progress=False).split("train")
    assert "\n" not in str(caught.value)
    assert not list(cache.glob("wikitext-2-*"))


def test_a_hub_that_cannot_be_reached_is_one_line_at_once(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        result = subprocess.run(
            [sys.executable, "-m", "scse", "train", "--data", "wikitext-2", "--steps", "1", "--out", tmp_path / "out"],
            env=environment | {"HF_ENDPOINT": f"http://127.0.0.1:{held.getsockname()[1]}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr.startswith("scse: corpus 'wikitext-2' is not at hand: put train.txt")
    assert "the hub does not answer" in result.stderr
    assert result.stderr.endswith("Connection refused)\n")
    assert result.stderr.count("\n") == 1


def test_absent_corpus_says_what_to_put_where(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_corpus(DataConfig("wikitext-2", data_dir=str(tmp_path)), progress=False).split("train")
    message = str(caught.value)
    assert f"put train.txt, validation.txt, test.txt or the hub's files in {tmp_path}/wikitext-2" in message
    assert "--data-dir or SCSE_DATA" in message
    assert "HF_HUB_OFFLINE is set" in message
    assert "\n" not in message
    assert "another release" not in message


def test_absent_corpus_names_a_release_of_it_that_is_there(tmp_path: Path, cache: Path) -> None:
    for there in ("wikitext-2-v1", "wikitext-103-v1"):
        (tmp_path / there).mkdir()
    with pytest.raises(UserError, match=r"or take wikitext-2-v1, another release of it, which is there \("):
        open_corpus(DataConfig("wikitext-2", data_dir=str(tmp_path)), progress=False).split("train")


def test_absent_corpus_without_the_datasets_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"train\.jsonl.* in DIR/openwebtext.*SCSE_DATA.*pip install 'scse\[hub\]'"):
        next(corpus_documents(DataConfig("openwebtext"), "train"))


def test_data_folder_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data folder .*nowhere does not exist; correct --data-dir or SCSE_DATA"):
        open_corpus(DataConfig("c4", data_dir=str(tmp_path / "nowhere")))
    (tmp_path / "c4").mkdir()
    with pytest.raises(UserError, match=r"no files of corpus 'c4' in .*put train\.jsonl, validation\.jsonl"):
        open_corpus(DataConfig("c4", data_dir=str(tmp_path)))


@pytest.mark.parametrize(("name", "nearest"), [("wikitext2", "wikitext-2"), ("OpenWebtext", "openwebtext")])
def test_misspelt_corpus(name: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{nearest}'.*or a path"):
        open_corpus(DataConfig(name))
    with pytest.raises(UserError, match="unknown corpus ''"):
        open_corpus(DataConfig(""))
