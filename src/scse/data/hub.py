"""Rows of a dataset on the Hugging Face hub, through the optional package `datasets`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scse.data.readers import Pieces, checked_text
from scse.errors import UserError

SECONDS_TO_ANSWER = 5.0


@dataclass(frozen=True)
class HubDataset:
    """A dataset's address. `fallback_revision` serves where the main one needs a loading script."""

    path: str
    config: str | None
    fallback_revision: str | None = None


def offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def rows(dataset: HubDataset, split: str, absent: str) -> Iterator[Pieces]:
    """The texts of one split, streamed. `absent` says how to do without the hub, should it not answer.

    Offline, only what `datasets` has downloaded before can serve, and that is not reached by streaming.
    """
    try:
        import datasets
    except ImportError:
        raise UserError(f"{absent}, or fetch it from the hub after pip install 'scse[hub]'") from None
    if not offline():
        require_answer(absent)
    try:
        number = 0
        for number, row in enumerate(_load(datasets, dataset, split), start=1):
            yield (checked_text(row, f"{dataset.path} {split} row {number}"),)
    except UserError:
        raise
    except Exception as error:  # the hub's client raises errors of many unrelated libraries
        state = "HF_HUB_OFFLINE is set" if offline() else f"the hub failed: {_first_line(error)}"
        raise UserError(f"{absent} ({state})") from None


def require_answer(absent: str) -> None:
    """Ask the hub for a sign of life. `datasets` itself tries again for half a minute, which cannot be set."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
    except Exception as error:
        raise UserError(f"{absent} (the hub does not answer: {_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _load(datasets: Any, dataset: HubDataset, split: str) -> Any:
    wanted = {"name": dataset.config, "split": split, "streaming": not offline()}
    try:
        # The newest text of that name: its hash goes into every run and record. No code of the hub is executed.
        return datasets.load_dataset(dataset.path, **wanted)  # nosec B615
    except RuntimeError:  # "Dataset scripts are no longer supported"
        if dataset.fallback_revision is None:
            raise
        return datasets.load_dataset(dataset.path, revision=dataset.fallback_revision, **wanted)
