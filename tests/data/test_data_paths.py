"""The user's own files: shapes, divisions and everything that may be wrong with them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from scse.data import DataConfig, Tokenizer, corpus_documents, open_corpus
from scse.errors import UserError

Writer = Callable[[Path, Iterable[str]], Path]
SPLITS = ("train", "validation", "test")


def documents(path: Path, split: str) -> list[str]:
    return list(corpus_documents(DataConfig(str(path)), split))


def test_folder_of_files_is_divided_by_document(tmp_path: Path, write_jsonl: Writer, write_parquet) -> None:
    root = tmp_path / "docs"
    write_jsonl(root / "a.jsonl", (f"a{i}" for i in range(30)))
    write_parquet(root / "deep" / "b.parquet", (f"b{i}" for i in range(8)))
    (root / "z.md").write_text("# z")
    (root / "zz.py").write_text("z = 1\n")
    (root / ".hidden").write_bytes(b"\x00")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_bytes(b"\xff")
    everything = [f"a{i}" for i in range(30)] + [f"b{i}" for i in range(8)] + ["# z", "z = 1\n"]
    parts = [documents(root, split) for split in SPLITS]
    assert [len(part) for part in parts] == [36, 2, 2]
    assert [text for part in parts for text in part] == everything


def test_three_documents_are_enough(tmp_path: Path, write_jsonl: Writer) -> None:
    path = write_jsonl(tmp_path / "three.jsonl", ["x", "y", "z"])
    assert [documents(path, split) for split in SPLITS] == [["x"], ["y"], ["z"]]
    path = write_jsonl(tmp_path / "two.jsonl", ["x", "y"])
    with pytest.raises(UserError, match=r"holds 2 document\(s\), too few to divide; give a folder with train\.txt"):
        documents(path, "train")


def test_folder_with_splits_of_its_own(tmp_path: Path, write_jsonl: Writer, gpt2: Tokenizer) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.txt").write_text("running text\n")
    write_jsonl(tmp_path / "own" / "val.jsonl", ["one", "two"])
    (tmp_path / "own" / "notes.md").write_text("not part of it")
    corpus = open_corpus(DataConfig(str(tmp_path / "own")), progress=False)
    assert corpus.splits == ("train", "validation")
    assert gpt2.decode(corpus.split("train").tokens) == "running text\n"
    assert gpt2.decode(corpus.split("valid").tokens) == "one<|endoftext|>two<|endoftext|>"
    with pytest.raises(UserError, match="corpus 'own' has no split 'test'; it has: train, validation"):
        corpus.split("test")
    (tmp_path / "own" / "dev.jsonl").write_text('{"text": "three"}\n')
    with pytest.raises(UserError, match=r"validation split twice \(dev\.jsonl, val\.jsonl\)"):
        open_corpus(DataConfig(str(tmp_path / "own")))


def test_source_code_named_after_splits_is_just_files(tmp_path: Path) -> None:
    for name in ("train.py", "test.py", "model.py"):
        (tmp_path / name).write_text(f"name = '{name}'\n")
    assert documents(tmp_path, "train") == ["name = 'model.py'\n"]


def test_folder_with_one_text_file_is_that_file(story: Path) -> None:
    folder = story.parent / "single"
    folder.mkdir()
    story.rename(folder / "story.txt")
    assert documents(folder, "test") == documents(folder / "story.txt", "test")


def test_line_ends_and_byte_order_are_left_alone(tmp_path: Path, gpt2: Tokenizer) -> None:
    text = "one\r\ntwo\rthree\n" * 20
    (tmp_path / "train.txt").write_bytes(text.encode())
    tokens = open_corpus(DataConfig(str(tmp_path)), progress=False).split("train").tokens
    assert gpt2.decode(tokens) == text


def test_compressed_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n\n{"text": "c"}'))
    assert documents(path, "test") == ["c"]


BAD_FILES = {
    "empty.txt": (b"", "is empty"),
    "short.txt": (b"ab", "too short to divide"),
    "binary.txt": (b"x" * 50 + b"\0" + b"y" * 500, "NUL byte at offset 50"),
    "latin.txt": ("é".encode("latin-1").join([b"x" * 40] * 2) + b"z" * 500, "not UTF-8 at byte offset 40"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b"}\n{"text": "c', r"cut\.jsonl:3: not a line of JSON"),
    "field.jsonl": (b'{"text": "a"}\n{"body": "b"}\n{"text": "c"}\n', r'field\.jsonl:2: no "text" field'),
    "null.jsonl": (b'{"text": null}\n' * 3, r"null\.jsonl:1: no \"text\" field that holds a string"),
    "list.jsonl": (b"[1]\n" * 3, r'list\.jsonl:1: no "text" field'),
    "latin.jsonl": (b'{"text": "\xe9"}\n' * 3, r"latin\.jsonl:1: not a line of JSON"),
    "surrogate.jsonl": (b'{"text": "\\ud800"}\n' * 3, r"surrogate\.jsonl:1: lone surrogate"),
    "deep.jsonl": (b"[" * 100_000 + b"\n" + b"{}\n" * 2, r"deep\.jsonl:1: not a line of JSON"),
    "blank.jsonl": (b"\n\n", r"holds 0 document\(s\)"),
    "cut.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' * 9000)[:-20], "damaged gzip file"),
    "junk.parquet": (b"PAR1 nothing of the kind PAR1", "damaged parquet file"),
    "empty.parquet": (b"", "damaged parquet file"),
}


def build_all(path: Path) -> None:
    corpus = open_corpus(DataConfig(str(path)), progress=False)
    for split in SPLITS:
        corpus.split(split)


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_one_line_and_leaves_nothing(name: str, tmp_path: Path, cache: Path) -> None:
    content, message = BAD_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        build_all(path)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    assert not list(cache.rglob("*.tmp"))
    assert {p.stem for p in cache.glob("*/*.bin")} == {p.stem for p in cache.glob("*/*.json")}


def test_fault_far_into_a_file_is_placed_exactly(tmp_path: Path, cache: Path) -> None:
    good = "größer\n".encode() * 100_000
    (tmp_path / "train.txt").write_bytes(good + b"\xff" + b"x" * 50)
    with pytest.raises(UserError, match=rf"train\.txt: not UTF-8 at byte offset {len(good)}"):
        open_corpus(DataConfig(str(tmp_path)), progress=False).split("train")
    (tmp_path / "train.txt").write_bytes(good + "é".encode()[:1])
    with pytest.raises(UserError, match=rf"train\.txt: not UTF-8 at byte offset {len(good)}"):
        open_corpus(DataConfig(str(tmp_path)), progress=False).split("train")
    assert not list(cache.glob("*/*.bin"))


def test_parquet_faults(tmp_path: Path, write_parquet) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_parquet(tmp_path / "column.parquet", ["a", "b", "c"], column="content")
    with pytest.raises(UserError, match=r"column\.parquet: no column 'text' \(it has: content\)"):
        documents(path, "train")
    pq.write_table(pa.table({"text": ["a", None, "c"]}), tmp_path / "null.parquet")
    with pytest.raises(UserError, match=r'null\.parquet: row 2: no "text" field'):
        documents(tmp_path / "null.parquet", "validation")
    path = write_parquet(tmp_path / "flipped.parquet", [f"text number {i} " * 20 for i in range(500)])
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"flipped\.parquet: damaged parquet file"):
        documents(path, "train")


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.array([b"a", b"caf\xe9", b"c"]).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"text": texts}), tmp_path / "latin.parquet")
    with pytest.raises(UserError, match=r"latin\.parquet: not UTF-8 within 3 rows after row 0"):
        documents(tmp_path / "latin.parquet", "train")


def test_overlong_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scse.data.readers.MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"text": "' + b"x" * (1 << 20) + b'"}\n')
    with pytest.raises(UserError, match=r"long\.jsonl:1: line longer than 1 MiB"):
        documents(path, "train")


def test_folders_without_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no files"):
        open_corpus(DataConfig(str(tmp_path)))
    for name in "abc":
        (tmp_path / name).touch()
    for tokenizer in ("gpt2", "bpe-300"):
        with pytest.raises(UserError, match="there is no text in it"):
            open_corpus(DataConfig(str(tmp_path), tokenizer), progress=False).split("train")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_file_that_vanishes(kind: str, tmp_path: Path, write_jsonl: Writer, write_parquet: Writer) -> None:
    path = {"jsonl": write_jsonl, "parquet": write_parquet}[kind](tmp_path / f"rows.{kind}", ["a", "b", "c"])
    corpus = open_corpus(DataConfig(str(path)), progress=False)
    path.unlink()
    with pytest.raises(UserError, match=rf"cannot read .*rows\.{kind}: .*No such file"):
        corpus.split("train")
