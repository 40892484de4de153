"""Two small runs that read the same text, one without an anchor, and one that cuts text differently; a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from lenstext import until

import runs
from chromium import CHROMIUM, QUIET


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    return runs.write_corpus(tmp_path_factory.mktemp("lens") / "corpus")


@pytest.fixture(scope="session")
def trained(corpus):
    """name -> the folder of a run, trained when first asked for."""

    def train(name: str) -> Path:
        changes = {"scse": {}, "looped": {}, "unshared-3": {}, "other": {"tokenizer": "bpe-290"}}[name]
        out = corpus.parent / name
        if not out.exists():
            runs.run(corpus, out, family="scse" if name == "other" else name, context=96, **changes)
        return out

    return train


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def tab(browser):
    """A function that opens an address and waits for the view; at the end nothing may have gone wrong in it."""
    contexts, faults = [], []

    def show(address: str, width: int = 1600, height: int = 1000, dark: bool = False):
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        until(page, "typeof lens === 'undefined' || lens.pending === null")
        return page

    yield show
    for context in contexts:
        context.close()
    assert faults == []
