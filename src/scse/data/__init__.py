"""Text corpora as memory-mapped tokens.

>>> corpus = open_corpus(DataConfig("wikitext-2", tokenizer="gpt2"))   # doctest: +SKIP
>>> corpus.split("validation").tokens[:4]                              # doctest: +SKIP
"""

from scse.data.corpora import (
    CORPUS_NAMES,
    Corpus,
    DataConfig,
    TokenSplit,
    at_hand,
    corpus_documents,
    existing_corpus,
    open_corpus,
    settled_corpus,
)
from scse.data.sources import Slices
from scse.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "CORPUS_NAMES",
    "Corpus",
    "DataConfig",
    "Slices",
    "TokenSplit",
    "Tokenizer",
    "at_hand",
    "corpus_documents",
    "existing_corpus",
    "load_tokenizer",
    "open_corpus",
    "settled_corpus",
]
