"""Corpora as tokens: text mapped from disk, and problems.

>>> corpus = open_corpus(DataConfig("wikitext-2", tokenizer="gpt2"))   # doctest: +SKIP
>>> corpus.split("validation").tokens[:4]                              # doctest: +SKIP
"""

from scse.data.corpora import (
    DataConfig,
    absolute_corpus,
    at_hand,
    corpus_documents,
    existing_corpus,
    open_corpus,
)
from scse.data.known import CORPORA, DocumentCorpus
from scse.data.problem import ProblemCorpus
from scse.data.sequences import UNCOUNTED, Readable, Sequences
from scse.data.sources import Slices
from scse.data.splits import Corpus, TokenSplit
from scse.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "CORPORA",
    "UNCOUNTED",
    "Corpus",
    "DataConfig",
    "DocumentCorpus",
    "ProblemCorpus",
    "Readable",
    "Sequences",
    "Slices",
    "TokenSplit",
    "Tokenizer",
    "absolute_corpus",
    "at_hand",
    "corpus_documents",
    "existing_corpus",
    "load_tokenizer",
    "open_corpus",
]
