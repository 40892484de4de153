"""Every test has a cache of its own and no corpora but those it makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from scse.data import Tokenizer
from scse.data.tokenizer import gpt2_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SCSE_DATA", "SCSE_GPT2"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SCSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    return gpt2_tokenizer()


@pytest.fixture
def write_jsonl() -> Callable[[Path, Iterable[str]], Path]:
    def write(path: Path, texts: Iterable[str]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
        return path

    return write


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    def write(path: Path, texts: Iterable[str], column: str = "text") -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({column: list(texts)}), path)
        return path

    return write


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """A text file of 400 numbered lines."""
    path = tmp_path / "story.txt"
    path.write_text("".join(f"Line {i}: the quick brown fox, the lazy dog — café.\n" for i in range(400)), "utf-8")
    return path
