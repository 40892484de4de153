from __future__ import annotations

import pytest

from runs import write_corpus


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small corpus, for runs, caches and reports."""
    folder = tmp_path_factory.mktemp("suites")
    write_corpus(folder / "corpus", words=12_000)
    return folder
