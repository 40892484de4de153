"""Where a corpus comes from: what it is made of, whatever its place, as splits that can be read again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Literal

from scse.data.fingerprint import Fingerprint, Ledger, file_state
from scse.data.readers import Pieces, SourceFile
from scse.errors import UserError

log = logging.getLogger("scse")

SPLIT_WORDS = {
    "train": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
BLANK_WIKITEXT_LINE = " \n"  # the hub's rows hold it as an empty string


def canonical_split(name: str) -> str:
    return SPLIT_WORDS.get(name, name)


@dataclass(frozen=True)
class Slices:
    """How a corpus that is published in one long training split is divided, counted in examples.

    `validation` follows `train` and `test` follows `validation`. `heldout` is taken from the published validation
    split where there is one, and otherwise starts where `validation` starts. With `whole` training has what follows
    `test` too: all that is published but validation, test and a `heldout` that starts there.
    """

    train: int
    validation: int = 4096
    test: int = 4096
    heldout: int = 4096
    whole: bool = False

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if size < 1 and name != "whole":
                raise UserError(f"slice '{name}' must be at least 1 example, got {size}")

    @property
    def kept_from_training(self) -> tuple[int, int]:
        """The range of examples that none but validation, test and heldout read."""
        return self.train, self.train + max(self.validation + self.test, self.heldout)

    @property
    def needed(self) -> int | None:
        """How many examples are read; None: all there are."""
        return None if self.whole else self.kept_from_training[1]

    def stated(self) -> dict[str, object]:
        """What tells its tokens from those of other slices."""
        return {name: value for name, value in asdict(self).items() if name != "whole" or value}

    def windows(self) -> dict[str, tuple[int, int]]:
        """The range of examples of the training split that makes up each of our splits."""
        validation, test = self.train, self.train + self.validation
        return {
            "train": (0, validation),
            "validation": (validation, test),
            "test": (test, test + self.test),
            "heldout": (validation, validation + self.heldout),
        }


@dataclass(frozen=True)
class SplitSource:
    """A split before it is tokenised. `separated`: its documents are each followed by the end of text.

    `total` is the amount of work in `unit`, where it is known.
    """

    label: str
    open: Callable[[], Iterator[Pieces]]
    separated: bool
    total: int | None = None
    unit: Literal["B", "documents"] = "documents"


@dataclass(frozen=True)
class CorpusSource:
    """A corpus before it is tokenised, and all that identifies its content."""

    name: str
    splits: Mapping[str, SplitSource]
    fingerprints: Sequence[Fingerprint] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    def split(self, name: str) -> SplitSource:
        found = self.splits.get(canonical_split(name))
        if found is None:
            raise UserError(f"corpus '{self.name}' has no split '{name}'; it has: {', '.join(self.splits)}")
        return found

    def check_unchanged(self) -> None:
        for fingerprint in self.fingerprints:
            fingerprint.check_unchanged()


def documents_of(files: Sequence[SourceFile]) -> Iterator[Pieces]:
    for file in files:
        yield from file.documents()


def window(
    documents: Callable[[], Iterator[Pieces]], start: int, stop: int, label: str, unit: str = "examples"
) -> Iterator[Pieces]:
    """Documents [start, stop); a window beyond the end is an error, a short one a warning."""
    found = 0
    for document in islice(documents(), start, stop):
        found += 1
        yield document
    if not found:
        raise UserError(f"{label}: there are no {unit} {start:,} to {stop - 1:,}; add the files that hold them")
    if found < stop - start:
        log.warning("%s: only %s of %s %s are there", label, f"{found:,}", f"{stop - start:,}", unit)


def windowed_splits(
    name: str, documents: Callable[[], Iterator[Pieces]], windows: Mapping[str, tuple[int, int]]
) -> dict[str, SplitSource]:
    """Splits that are ranges of one sequence of documents."""

    def one(split: str, start: int, stop: int) -> SplitSource:
        label = f"{name} {split}"
        return SplitSource(label, lambda: window(documents, start, stop, label), True, stop - start)

    return {split: one(split, start, stop) for split, (start, stop) in windows.items()}


def sliced_splits(name: str, documents: Callable[[], Iterator[Pieces]], slices: Slices) -> dict[str, SplitSource]:
    """The splits of one long sequence of documents."""
    splits = windowed_splits(name, documents, slices.windows())
    if slices.whole:
        splits["train"] = SplitSource(f"{name} train", lambda: all_but(documents, *slices.kept_from_training), True)
    return splits


def all_but(documents: Callable[[], Iterator[Pieces]], start: int, stop: int) -> Iterator[Pieces]:
    """Documents outside of [start, stop)."""
    return (document for number, document in enumerate(documents()) if not start <= number < stop)


def stream_split(label: str, files: Sequence[SourceFile]) -> SplitSource:
    """Plain text files as one running text without separators."""
    total = sum((file_state(file.path)[0] if file.stop is None else file.stop) - file.start for file in files)
    return SplitSource(label, lambda: iter([_run_together(files)]), False, total, "B")


def _run_together(files: Sequence[SourceFile]) -> Iterator[str]:
    for document in documents_of(files):
        yield from document


def wikitext_split(label: str, rows: Callable[[], Iterator[Pieces]]) -> SplitSource:
    """Rows that are the lines of one running text."""

    def text() -> Iterator[str]:
        for row in rows():
            yield "".join(row) or BLANK_WIKITEXT_LINE

    return SplitSource(label, lambda: iter([text()]), False, None, "B")


def document_split(label: str, files: Sequence[SourceFile], ledger: Ledger) -> SplitSource:
    total = sum(ledger.count(file) for file in files)
    return SplitSource(label, lambda: documents_of(files), True, total)


def first_files(files: Sequence[SourceFile], examples: int, ledger: Ledger) -> list[SourceFile]:
    """As many files as hold the first `examples`; the rest need not be read, nor hashed."""
    chosen, held = [], 0
    for file in files:
        if held >= examples:
            break
        chosen.append(file)
        held += ledger.count(file)
    return chosen
