"""Text of any length to tokens in flat memory, equal to encoding each document in one call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from scse.data.readers import Pieces
from scse.data.sources import SplitSource
from scse.data.tokenizer import Tokenizer
from scse.errors import UserError
from scse.progress import Meter

TokenArray = npt.NDArray[np.unsignedinteger[Any]]

CHUNK_CHARACTERS = 1 << 13
BATCH_CHARACTERS = 1 << 20
BATCH_TEXTS = 1 << 12
MAX_CHUNK_CHARACTERS = 1 << 20

# Places where GPT-2's pre-tokeniser always cuts, whatever stands further left or right: its words hold no white space
# after their first character, and no ASCII letter or digit followed by punctuation. (Punctuation followed by a letter
# is not such a place: "'s" is one word.) The second kind keeps minified or encoded text from growing without end.
SAFE_CUT = re.compile(r"(?<=\S)(?=[ \t\n\r\u3000])|(?<=[A-Za-z0-9])(?=[!-/:-@\[-`{-~])")


def chunks(pieces: Pieces, label: str, size: int = CHUNK_CHARACTERS) -> Iterator[str]:
    """Cut one document into strings of about `size` characters that can be encoded apart.

    A stretch without a safe place to cut is kept whole up to MAX_CHUNK_CHARACTERS; beyond that it is an error, since
    one word of that length costs memory and time and is no text.
    """
    rest, scanned = "", 0
    for piece in pieces:
        text, start = rest + piece, 0
        while (cut := SAFE_CUT.search(text, max(start + size, scanned))) is not None:
            yield _bounded(text[start : cut.start()], label)
            start = cut.start()
        rest = _bounded(text[start:], label)
        scanned = len(rest)
    if rest:
        yield rest


def _bounded(chunk: str, label: str) -> str:
    if len(chunk) > MAX_CHUNK_CHARACTERS:
        limit = f"more than {MAX_CHUNK_CHARACTERS:,} characters"
        raise UserError(f"{label}: the text runs for {limit} without white space; break it into lines")
    return chunk


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def encode_chunks(
    tokenizer: Tokenizer, marked: Iterable[tuple[str, bool]], separated: bool, meter: Meter, unit: str
) -> Iterator[TokenArray]:
    """The tokens of chunks in blocks; `separated`: the end of text follows the last chunk of each document."""
    texts: list[str] = []
    ends: set[int] = set()
    characters = 0
    for chunk, last in marked:
        texts.append(chunk)
        characters += len(chunk)
        if last and separated:
            ends.add(len(texts) - 1)
        if characters >= BATCH_CHARACTERS or len(texts) >= BATCH_TEXTS:
            yield _encode(tokenizer, texts, ends, meter, unit)
            texts, ends, characters = [], set(), 0
    if texts:
        yield _encode(tokenizer, texts, ends, meter, unit)


def marked_chunks(source: SplitSource, whole: bool = False) -> Iterator[tuple[str, bool]]:
    """The chunks of all documents, each with whether its document ends there. An empty document has none.

    `whole`: a document is one chunk, for tokenizers that cut words in a way of their own.
    """
    empty = True
    for document in source.open():
        held: str | None = None
        for chunk in filter(None, ["".join(document)]) if whole else chunks(document, source.label):
            if held is not None:
                yield held, False
            held = chunk
        if held is not None:
            empty = False
            yield held, True
    if empty:
        raise UserError(f"{source.label}: there is no text in it; add some")


def _encode(tokenizer: Tokenizer, texts: list[str], ends: set[int], meter: Meter, unit: str) -> TokenArray:
    dtype = token_dtype(tokenizer.vocab_size)
    parts: list[TokenArray] = []
    separator = np.array([tokenizer.eot_id], dtype=dtype)
    for index, ids in enumerate(tokenizer.encode_batch(texts)):
        parts.append(np.array(ids, dtype=dtype))
        if index in ends:
            parts.append(separator)
    meter.advance(len(ends) if unit == "documents" else sum(len(text.encode()) for text in texts))
    return np.concatenate(parts)


def training_texts(source: SplitSource, meter: Meter) -> Iterator[str]:
    """What a tokenizer is trained on: the same chunks that it will encode."""
    for chunk, last in marked_chunks(source):
        yield chunk
        meter.advance(last if source.unit == "documents" else len(chunk.encode()))
