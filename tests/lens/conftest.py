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


@pytest.fixture(scope="session")
def pages(browser):
    """Pages that nobody looks at just now, for the next test: a new one takes longer than what it is to show."""
    return []


@pytest.fixture
def tab(browser, pages):
    """A function that opens an address and waits for the view; at the end nothing may have gone wrong in it."""
    opened, faults = [], []

    def heard(message) -> None:
        faults.append(getattr(message, "text", None) or str(message))

    def show(address: str, width: int = 1600, height: int = 1000, dark: bool = False):
        page = pages.pop() if pages else browser.new_context().new_page()
        opened.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.on("console", heard)
        page.on("pageerror", heard)
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        until(page, "typeof lens === 'undefined' || lens.pending === null")
        return page

    yield show
    for page in opened:
        page.remove_listener("console", heard)
        page.remove_listener("pageerror", heard)
        page.goto("about:blank")
        page.mouse.move(0, 0)
        pages.append(page)
    assert faults == []
