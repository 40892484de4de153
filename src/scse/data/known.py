"""The table of corpora that go by a name: the embedded one, the published ones, and those that guests bring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from scse.data.fingerprint import Ledger
from scse.data.local import open_stdlib
from scse.data.named import NAMED, in_data_folder, open_named
from scse.data.readers import Pieces
from scse.data.sources import CorpusSource, Slices, SplitSource, canonical_split
from scse.errors import UserError
from scse.registry import Registry


class KnownCorpus(ABC):
    """Text under a name."""

    name: str
    table: ClassVar[str] = "scse.data:CORPORA"

    @abstractmethod
    def open(self, data_dir: str | None, slices: Slices | None, ledger: Ledger) -> CorpusSource:
        """Where its splits come from; nothing is read yet."""

    def at_hand(self, data_dir: str | None) -> bool:
        """Whether it can be read without a hub."""
        return True


class _Stdlib(KnownCorpus):
    name = "stdlib"

    def open(self, data_dir: str | None, slices: Slices | None, ledger: Ledger) -> CorpusSource:
        return open_stdlib(ledger)


@dataclass(frozen=True)
class _Published(KnownCorpus):
    name: str

    def open(self, data_dir: str | None, slices: Slices | None, ledger: Ledger) -> CorpusSource:
        return open_named(self.name, data_dir, slices, ledger)

    def at_hand(self, data_dir: str | None) -> bool:
        return in_data_folder(self.name, data_dir)


@dataclass(frozen=True)
class DocumentCorpus(KnownCorpus):
    """A corpus of your own: for each split a function that gives its documents, the same ones whenever it is called.

    It is registered with `scse.register(DocumentCorpus("mine", {"train": …, "validation": …, "test": …}))`. Tokens
    are cached under the name, `version` and the hash of the file that registered it; when the documents change and that
    file does not, give another `version`.
    """

    name: str
    splits: Mapping[str, Callable[[], Iterable[str]]]
    version: str = ""

    def open(self, data_dir: str | None, slices: Slices | None, ledger: Ledger) -> CorpusSource:
        guest = CORPORA.origin(self.name)
        splits = {canonical_split(split): self._split(split) for split in self.splits}
        settings = {"found": "brought", "by": guest and [guest.name, guest.version], "version": self.version}
        return CorpusSource(self.name, splits, (), settings)

    def _split(self, split: str) -> SplitSource:
        label = f"{self.name} {split}"
        return SplitSource(label, partial(self._documents, split, label), separated=True)

    def _documents(self, split: str, label: str) -> Iterator[Pieces]:
        for document in self.splits[split]():
            if not isinstance(document, str):
                raise UserError(f"{label} gives a document of type {type(document).__name__}; it must be a text")
            yield [document]


CORPORA: Registry[KnownCorpus] = Registry("corpus", (_Stdlib(), *map(_Published, NAMED)), "'scse data list' shows all")
