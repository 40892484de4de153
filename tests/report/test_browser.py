"""The page in a real browser, at the widths people have, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

from chromium import needs_chromium

pytestmark = needs_chromium

WIDTHS = (390, 800, 1200, 1600)
PAGES = ("report", "demo_report")

# What stands beyond the right edge, of all that does not scroll inside its own box.
BEYOND = """
[...document.querySelectorAll("body *")]
  .filter(part => !part.closest(".scroll, svg") && part.getBoundingClientRect().right > innerWidth + 0.5)
  .map(part => part.tagName + "." + part.className)
"""
TABLES = """
[...document.querySelectorAll("table")].filter(table => table.offsetParent).map(table => {
  const box = table.closest(".scroll");
  return {kind: table.className, hidden: box.scrollWidth - box.clientWidth,
          scrolls: getComputedStyle(box).overflowX == "auto"};
})
"""
# The drawing that is shown of each figure: its size on screen, and the size at which it was drawn.
DRAWINGS = """
[...document.querySelectorAll("figure")].filter(figure => figure.querySelector("svg")).map(figure => {
  const shown = [...figure.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width);
  const box = shown[0].getBoundingClientRect(), drawn = shown[0].viewBox.baseVal;
  return {id: figure.id, shown: shown.length, top: box.top + scrollY, left: box.left, right: box.right,
          width: box.width, height: box.height,
          scale: box.width / (drawn.width * 4 / 3), proportion: box.width / box.height * drawn.height / drawn.width};
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module", params=PAGES)
def folder(request) -> Path:
    """A report's folder: the toy suites', and the demo's."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_runs_off_the_page(browser, folder, width):
    browser.show(folder / "index.html", width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(BEYOND) == []
    tables = browser.evaluate(TABLES)
    assert len(tables) > 2
    assert all(table["scrolls"] for table in tables), "a wide table scrolls inside its own box"
    if width >= 1200:
        assert [table["kind"] for table in tables if table["hidden"] > 0] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_drawings_shrink_with_the_page_and_stay_legible(browser, folder, width):
    browser.show(folder / "index.html", width)
    drawings = browser.evaluate(DRAWINGS)
    assert {d["id"] for d in drawings} == {f"figure-{path.stem}" for path in (folder / "figures").glob("*.svg")}
    for drawing in drawings:
        assert drawing["shown"] == 1, drawing
        assert drawing["left"] >= 0, drawing
        assert drawing["right"] <= width, drawing
        assert drawing["height"] > 100, drawing
        assert drawing["proportion"] == pytest.approx(1, rel=0.02), drawing
        # Letters are drawn at 8 to 11 points: at seven tenths of that they can still be read.
        assert drawing["scale"] >= 0.7, drawing
        assert drawing["scale"] <= 1.01, drawing


def test_the_page_asks_for_nothing_and_complains_of_nothing(browser, folder):
    browser.open(folder / "index.html", 1200)
    asked = [event["params"]["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [(folder / "index.html").as_uri()]
    assert browser.happened("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []


def lighter(pixels, level: int):
    """Which pixels are lighter than this in all three colours."""
    red, green, blue = (pixels[..., colour] > level for colour in range(3))
    return red & green & blue


def whiteness(pixels) -> float:
    """Which part of a picture is white or nearly so."""
    return float(lighter(pixels, 237).mean())


@pytest.mark.parametrize("width", [390, 1200])
def test_a_dark_page_has_no_white_boxes(browser, folder, width):
    browser.show(folder / "index.html", width, dark=False)
    assert whiteness(browser.photograph(None)) > 0.5, "a light page is white"
    browser.show(folder / "index.html", width, dark=True)
    page = browser.photograph()
    assert whiteness(page) < 0.01
    drawings = browser.evaluate(DRAWINGS)
    assert drawings
    for drawing in drawings:
        left, top, wide, high = (round(drawing[side]) for side in ("left", "top", "width", "height"))
        pixels = page[top : top + high, left : left + wide]
        assert pixels.shape[:2] == (high, wide), drawing["id"]
        assert whiteness(pixels) < 0.03, drawing["id"]
        assert lighter(pixels, 178).sum() > 200, f"letters and axes are light: {drawing['id']}"


def test_a_picture_does_not_borrow_from_the_others(browser, report, tmp_path):
    """With every other picture hidden, clip paths and markers of this one are still found: its ids are its own."""
    name = "figure-toy-ablations-depth-response"
    page = (report / "index.html").read_text(encoding="utf-8")
    copy = tmp_path / "alone.html"
    hidden = f"<style>figure:not(#{name}), table {{ display: none }}</style></head>"
    copy.write_text(page.replace("</head>", hidden), encoding="utf-8")
    browser.open(copy, 1200)
    pixels = browser.photograph(f"#{name}")
    for colour in ((0x00, 0x9E, 0x73), (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        ink = (abs(pixels.astype(int) - colour) < 6).all(axis=-1)
        assert ink.sum() > 500, colour
