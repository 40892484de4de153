"""A guest that brings a corpus: documents by split."""

from scse import DocumentCorpus, register

SAYINGS = ("the state stays where its anchor is", "one block and many loops", "depth is chosen when a model is used")


def documents(repeats):
    return lambda: (f"{saying}, {count}" for count in range(repeats) for saying in SAYINGS)


register(DocumentCorpus("sayings", {"train": documents(80), "valid": documents(20), "test": documents(20)}))
