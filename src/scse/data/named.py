"""The corpora that go by a name: in a local folder in any of their usual file shapes, else from the hub."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from scse.data import hub
from scse.data.fingerprint import Ledger
from scse.data.readers import Kind, Pieces, SourceFile, kind_of
from scse.data.sources import (
    SPLIT_WORDS,
    CorpusSource,
    Slices,
    SplitSource,
    document_split,
    documents_of,
    first_files,
    sliced_splits,
    stream_split,
    wikitext_split,
    windowed_splits,
)
from scse.errors import UserError
from scse.files import expand

TEXT_SUFFIXES = (".txt", ".raw", ".tokens")
ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


@dataclass(frozen=True)
class NamedCorpus:
    """A published corpus. `running`: its rows are lines of one text, not documents. `folder` is where its files lie if
    that is not called like it.
    """

    hub: hub.HubDataset
    splits: tuple[str, ...] = ("train", "validation", "test")
    running: bool = False
    slices: Slices | None = None
    hub_heldout: str | None = None
    folder: str = ""

    def expected_files(self) -> str:
        names = ", ".join(f"{split}.txt" if self.running else f"{split}.jsonl" for split in self.splits)
        return f"{names} or the hub's files"


def _wikitext(config: str) -> NamedCorpus:
    return NamedCorpus(hub.HubDataset("Salesforce/wikitext", config), running=True)


NAMED: dict[str, NamedCorpus] = {
    "wikitext-2": _wikitext("wikitext-2-raw-v1"),
    "wikitext-2-v1": _wikitext("wikitext-2-v1"),
    "wikitext-103": _wikitext("wikitext-103-raw-v1"),
    "wikitext-103-v1": _wikitext("wikitext-103-v1"),
    "openwebtext": NamedCorpus(
        hub.HubDataset("Skylion007/openwebtext", None, fallback_revision="refs/convert/parquet"),
        splits=("train",),
        slices=Slices(train=200_000),
    ),
    "c4": NamedCorpus(
        hub.HubDataset("allenai/c4", "en"),
        splits=("train", "validation"),
        slices=Slices(train=100_000),
        hub_heldout="validation",
    ),
    "lambada": NamedCorpus(hub.HubDataset("EleutherAI/lambada_openai", "default"), splits=("test",)),
}


def _whole(name: str) -> NamedCorpus:
    """All of a corpus for training, with the other splits of the paper's slices beside it."""
    corpus = NAMED[name]
    assert corpus.slices is not None
    return replace(corpus, slices=replace(corpus.slices, whole=True), folder=name)


NAMED |= {f"{name}-whole": _whole(name) for name in ("openwebtext", "c4")}


def open_named(name: str, data_dir: str | None, slices: Slices | None, ledger: Ledger) -> CorpusSource:
    corpus = NAMED[name]
    slices = (slices or corpus.slices) if corpus.slices else None
    folder = _local_folder(name, corpus, data_dir)
    if folder is None:
        return _from_hub(name, corpus, slices, data_dir)
    files = find_splits(folder, corpus)
    if not files:
        raise UserError(f"no files of corpus '{name}' in {folder}; put {corpus.expected_files()} there")
    if slices and "test" not in files:
        return _sliced(name, corpus, files, slices, ledger)
    return _prepared(name, corpus, files, slices, ledger)


def in_data_folder(name: str, data_dir: str | None) -> bool:
    """Whether a corpus lies in the data folder, so that no hub is needed."""
    return _local_folder(name, NAMED[name], data_dir) is not None


def _local_folder(name: str, corpus: NamedCorpus, data_dir: str | None) -> Path | None:
    chosen = data_dir or os.environ.get("SCSE_DATA")
    if not chosen:
        return None
    root = expand(chosen)
    if not root.is_dir():
        raise UserError(f"the data folder {root} does not exist; correct --data-dir or SCSE_DATA")
    config = corpus.hub.config or corpus.folder or name
    for folder in (root / (corpus.folder or name) / config, root / (corpus.folder or name)):
        if folder.is_dir():
            return folder
    return None


def find_splits(folder: Path, corpus: NamedCorpus) -> dict[str, list[SourceFile]]:
    """The files of each split in order. A split in two shapes at once is an error: which one is meant?"""
    shapes: dict[str, dict[tuple[str, Kind], list[SourceFile]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.rglob("*")):
        kind = _named_kind(path, corpus.running)
        word = _split_word(path.relative_to(folder))
        if word is None and corpus.splits == ("train",):
            word = "train"
        if kind is not None and word is not None and path.is_file():
            file = SourceFile(path, kind, path.relative_to(folder).as_posix())
            shapes[SPLIT_WORDS[word]][word, kind].append(file)
    for split, groups in shapes.items():
        if len(groups) > 1:
            first, second = (group[0].name for group in list(groups.values())[:2])
            raise UserError(f"{folder} has its {split} split twice ({first}, {second}); keep one of them")
    return {split: next(iter(groups.values())) for split, groups in shapes.items()}


def _named_kind(path: Path, running: bool) -> Kind | None:
    name = path.name.lower()
    if name.endswith(TEXT_SUFFIXES):
        return "text" if running else "lines"
    if not name.endswith(ROW_SUFFIXES):
        return None
    return "jsonl" if name.endswith(".json") else kind_of(path)


def _split_word(relative: Path) -> str | None:
    """The split that a file's name states, or else its folder's.

    Covers valid.txt, train-00000-of-00001.parquet, c4-train.00000-of-01024.json.gz and train/0000.parquet.
    """
    for part in reversed(relative.parts):
        for word in re.split(r"[._-]+", part.lower()):
            if word in SPLIT_WORDS:
                return word
    return None


def _sliced(
    name: str, corpus: NamedCorpus, files: dict[str, list[SourceFile]], slices: Slices, ledger: Ledger
) -> CorpusSource:
    """One long training split divided into windows, as the hub publishes it."""
    splits: dict[str, SplitSource] = {}
    used: list[SourceFile] = []
    if "train" in files:
        train = files["train"] if slices.needed is None else first_files(files["train"], slices.needed, ledger)
        splits = sliced_splits(name, lambda: documents_of(train), slices)
        used += train
    if corpus.hub_heldout:
        splits.pop("heldout", None)
    if "validation" in files:
        held = first_files(files["validation"], slices.heldout, ledger)
        splits["heldout"] = _heldout(name, held, slices.heldout)
        used += held
    return _corpus(name, splits, used, {"slices": slices.stated()}, ledger)


def _heldout(name: str, files: Sequence[SourceFile], examples: int) -> SplitSource:
    return windowed_splits(name, lambda: documents_of(files), {"heldout": (0, examples)})["heldout"]


def _prepared(
    name: str, corpus: NamedCorpus, files: dict[str, list[SourceFile]], slices: Slices | None, ledger: Ledger
) -> CorpusSource:
    """Each split has its own files, which are used whole."""
    splits = {}
    for split, members in files.items():
        label = f"{name} {split}"
        if not corpus.running:
            splits[split] = document_split(label, members, ledger)
        elif members[0].kind == "text":
            splits[split] = stream_split(label, members)
        else:
            splits[split] = wikitext_split(label, partial(documents_of, members))
    settings: dict[str, object] = {}
    if slices and "validation" in files:
        splits["heldout"] = _heldout(name, files["validation"], slices.heldout)
        settings["heldout"] = slices.heldout
    used = [file for members in files.values() for file in members]
    return _corpus(name, splits, used, settings, ledger)


def _corpus(
    name: str,
    splits: dict[str, SplitSource],
    used: Sequence[SourceFile],
    settings: dict[str, object],
    ledger: Ledger,
) -> CorpusSource:
    order = [split for split in ("train", "validation", "test", "heldout") if split in splits]
    fingerprints = [ledger.fingerprint(file) for file in used]
    settings = {"found": "by name", **settings}
    return CorpusSource(name, {split: splits[split] for split in order}, fingerprints, settings)


def _from_hub(name: str, corpus: NamedCorpus, slices: Slices | None, data_dir: str | None) -> CorpusSource:
    where = data_dir or os.environ.get("SCSE_DATA") or "DIR"
    place = f"{corpus.expected_files()} in {where}/{corpus.folder or name}"
    remedy = f"put {place} and name {where} with --data-dir or SCSE_DATA"
    relatives = [other for other in NAMED if _related(name, other) and in_data_folder(other, data_dir)]
    if relatives:
        remedy += f", or take {' or '.join(relatives)}, another release of it, which is there"

    def rows(split: str) -> Iterator[Pieces]:
        return hub.rows(corpus.hub, split, f"corpus '{name}' is not at hand: {remedy}")

    settings: dict[str, object] = {"found": "on the hub", "hub": asdict(corpus.hub)}
    if slices is None:
        splits = {split: _hub_split(f"{name} {split}", corpus, partial(rows, split)) for split in corpus.splits}
        return CorpusSource(name, splits, (), settings)
    splits = sliced_splits(name, partial(rows, "train"), slices)
    if corpus.hub_heldout:
        heldout = {"heldout": (0, slices.heldout)}
        splits |= windowed_splits(name, partial(rows, corpus.hub_heldout), heldout)
    return CorpusSource(name, splits, (), settings | {"slices": slices.stated()})


def _related(name: str, other: str) -> bool:
    """Whether two names are those of releases of one corpus, such as wikitext-2 and wikitext-2-v1."""
    return name.startswith(f"{other}-") or other.startswith(f"{name}-")


def _hub_split(label: str, corpus: NamedCorpus, rows: Callable[[], Iterator[Pieces]]) -> SplitSource:
    return wikitext_split(label, rows) if corpus.running else SplitSource(label, rows, separated=True)
