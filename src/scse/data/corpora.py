"""A corpus as tokens: found by name or path, tokenised once, read from the cache ever after."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scse.data.cache import CACHE_FORMAT, Artifact, cache_root
from scse.data.encoding import token_dtype, training_texts
from scse.data.fingerprint import Ledger
from scse.data.known import CORPORA
from scse.data.local import open_path
from scse.data.problem import ProblemCorpus
from scse.data.shards import encode_split, remove
from scse.data.sources import CorpusSource, Slices, canonical_split
from scse.data.splits import Corpus, TokenSplit
from scse.data.tokenizer import Tokenizer, gpt2_tokenizer, load_tokenizer, train_tokenizer, trained_size
from scse.errors import UserError, unknown_name
from scse.files import expand, safe_name
from scse.layout import TOKENIZER_FILE
from scse.problems import PROBLEMS, make_problem
from scse.progress import progress as show_progress

log = logging.getLogger("scse")


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how it becomes tokens.

    `corpus` is a name or a path, `tokenizer` is "gpt2" or "bpe-N" (trained on the corpus's own training split). A
    problem has options, and words of its own for a tokenizer.
    """

    corpus: str = "stdlib"
    tokenizer: str = "gpt2"
    data_dir: str | None = None
    cache_dir: str | None = None
    problem: Mapping[str, int] = field(default_factory=dict)


class TextCorpus(Corpus):
    """A corpus whose splits are tokenised when they are first asked for."""

    def __init__(
        self,
        source: CorpusSource,
        tokenizer: Tokenizer,
        folder: Path,
        facts: dict[str, Any],
        progress: bool,
        processes: int = 1,
    ) -> None:
        super().__init__(source.name, tokenizer)
        self._processes = processes
        self._source, self._folder, self._facts, self._progress = source, folder, facts, progress

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._source.splits)

    def _canonical(self, name: str) -> str:
        self._source.split(name)
        return canonical_split(name)

    def _open(self, name: str) -> TokenSplit:
        dtype = token_dtype(self.tokenizer.vocab_size)
        facts = {**self._facts, "split": name, "dtype": dtype.name, "tokenizer": self.tokenizer.digest}
        artifact = Artifact(self._folder, f"{name}.bin", f"{name}.json", facts, dtype.itemsize)
        stored = artifact.obtain(lambda: self._encode(name))
        remove(self._shards(name))
        return TokenSplit(name, np.memmap(stored.path, dtype=dtype, mode="r"), stored.sha256)

    def _encode(self, name: str) -> Iterator[bytes]:
        source = self._source.split(name)
        with show_progress(f"tokenising {source.label}", source.total, source.unit, self._progress) as meter:
            yield from encode_split(self.tokenizer, source, meter, self._shards(name), self._processes)
        self._source.check_unchanged()

    def _shards(self, name: str) -> Path:
        return self._folder / f".{name}.shards"


def open_corpus(
    config: DataConfig,
    progress: bool = True,
    *,
    tokenizer: Tokenizer | None = None,
    slices: Slices | None = None,
    processes: int = 1,
) -> Corpus:
    """Find a corpus and its tokenizer; nothing is tokenised yet, and then by so many processes.

    `tokenizer` takes the place of the configured one, for text that an existing model is to read. `slices` takes the
    place of the sizes in which OpenWebText and C4 are divided.
    """
    if config.corpus in PROBLEMS:
        return ProblemCorpus(make_problem(config.corpus, config.problem))
    size = trained_size(config.tokenizer) if tokenizer is None else None
    root = cache_root(config.cache_dir)
    source = _find(config, root, slices)
    if tokenizer is None and size is None:
        tokenizer = gpt2_tokenizer()
    facts = {
        "sources": [[file.name, file.sha256] for file in source.fingerprints],
        "settings": dict(source.settings),
    }
    made_by = tokenizer.digest if tokenizer else config.tokenizer
    folder = root / f"{safe_name(source.name)}-{_key(facts, made_by)}"
    if tokenizer is None:
        tokenizer = _own_tokenizer(source, config.tokenizer, folder, facts, progress)
    return TextCorpus(source, tokenizer, folder, facts, progress, processes)


def corpus_documents(config: DataConfig, split: str, *, slices: Slices | None = None) -> Iterator[str]:
    """The texts of a split before tokenisation; a running text, such as WikiText, is one document."""
    source = _find(config, cache_root(config.cache_dir), slices).split(split)
    return ("".join(document) for document in source.open())


def absolute_corpus(corpus: str) -> str:
    """A name as it is, a path made absolute: a run must find its text again from any folder."""
    if not corpus or _is_named(corpus):
        return corpus
    path = expand(corpus)
    return str(path.resolve()) if os.path.exists(path) else corpus


def existing_corpus(corpus: str) -> str:
    """The same, or the error for one that is neither a name nor a path."""
    if not _is_named(corpus) and not (corpus and _exists(expand(corpus))):
        raise _no_such(corpus, expand(corpus))
    return absolute_corpus(corpus)


def at_hand(corpus: str, data_dir: str | None = None) -> bool:
    """Whether a corpus can be read without a hub."""
    if corpus in CORPORA:
        return CORPORA.find(corpus).at_hand(data_dir)
    return corpus in PROBLEMS or _exists(expand(corpus))


def _is_named(corpus: str) -> bool:
    return corpus in CORPORA or corpus in PROBLEMS


def _find(config: DataConfig, root: Path, slices: Slices | None) -> CorpusSource:
    ledger = Ledger(root)
    try:
        if config.corpus in CORPORA:
            return CORPORA.find(config.corpus).open(config.data_dir, slices, ledger)
        path = expand(config.corpus)
        if config.corpus and _exists(path):
            return open_path(path, ledger)
    finally:
        ledger.save()
    raise _no_such(config.corpus, path)


def _no_such(corpus: str, path: Path) -> UserError:
    if path.suffix or len(path.parts) > 1:
        return UserError(f"there is no file or folder {path}; check the path, or use a corpus by name")
    named = [*CORPORA.names(), *PROBLEMS.names()]
    return unknown_name("corpus", corpus, named, f"valid: {', '.join(named)}, or a path to a file or folder")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise UserError(f"cannot look at {str(path)[:80]}: {error.strerror}; check the path") from None


def _own_tokenizer(source: CorpusSource, name: str, folder: Path, facts: dict[str, Any], progress: bool) -> Tokenizer:
    """The tokenizer trained on the corpus, kept beside its tokens."""
    if "train" not in source.splits:
        raise UserError(f"corpus '{source.name}' has no train split to train '{name}' on; use tokenizer gpt2")
    artifact = Artifact(folder, TOKENIZER_FILE, "tokenizer.meta.json", {**facts, "trained": name})
    artifact.obtain(_trainer(source, name, progress))
    return load_tokenizer(folder)


def _trainer(source: CorpusSource, name: str, progress: bool) -> Callable[[], Iterator[bytes]]:
    def train() -> Iterator[bytes]:
        split = source.split("train")
        size = trained_size(name) or 0
        with show_progress(f"training {name} on {split.label}", split.total, split.unit, progress) as meter:
            tokenizer = train_tokenizer(training_texts(split, meter), size)
        source.check_unchanged()
        if tokenizer.vocab_size < size:
            log.warning("%s supports only %d of %d entries", split.label, tokenizer.vocab_size, size)
        yield tokenizer.serialised()

    return train


def _key(facts: dict[str, Any], tokenizer: str) -> str:
    payload = json.dumps([CACHE_FORMAT, facts, tokenizer], sort_keys=True)
    return hashlib.sha256(payload.encode()).hexdigest()[:16]
