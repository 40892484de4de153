"""The passages for scse_lambada.yaml, cut as `scse lambada` cuts them."""

from __future__ import annotations

from typing import Any

import datasets

from scse.data import DataConfig, corpus_documents


def passages(**_: Any) -> dict[str, datasets.Dataset]:
    rows = []
    for text in corpus_documents(DataConfig("lambada"), "test"):
        context, space, word = text.rstrip().rpartition(" ")
        rows.append({"context": context, "answer": space + word})
    return {"test": datasets.Dataset.from_list(rows)}
