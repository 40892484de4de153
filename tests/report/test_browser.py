"""The page in a real browser."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from chromium import CHROMIUM, QUIET, needs_chromium

pytestmark = needs_chromium

# Appended to a copy of the page: it writes what the browser made of it where the printed document shows it.
MEASURE = """
<pre id="measured"></pre>
<script>
addEventListener("load", () => {
  const sizes = [...document.querySelectorAll("figure")].map(figure => {
    const box = figure.querySelector("svg").getBoundingClientRect();
    return figure.id + ":" + Math.round(box.width) + "x" + Math.round(box.height);
  });
  const fetched = performance.getEntriesByType("resource").map(entry => entry.name);
  document.getElementById("measured").textContent =
    sizes.join(" ") + " | " + fetched.join(" ") + " | " + document.documentElement.scrollWidth + " " + innerWidth;
});
</script>
"""


def browse(page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [CHROMIUM, "--headless", *QUIET, f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0"]
    command += [*options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_in_chromium(report, tmp_path, width):
    page = (report / "index.html").read_text(encoding="utf-8")
    copy = tmp_path / "measured.html"
    copy.write_text(page.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    shown = browse(copy, tmp_path / "profile", f"--window-size={width},900", "--dump-dom")
    assert re.findall(r".*CONSOLE.*", shown.stderr) == []
    (measured,) = re.findall(r'<pre id="measured">(.*?)</pre>', shown.stdout)
    figures, fetched, widths = measured.split(" | ")
    sizes = dict(re.findall(r"figure-([\w-]+):(\d+x\d+)", figures))
    assert set(sizes) == {path.stem for path in (report / "figures").glob("*.svg")}
    for name, size in sizes.items():
        across, down = map(int, size.split("x"))
        assert across > 300, name
        assert down > 100, name
    assert fetched == "", "the page asks for nothing"
    content, window = map(int, widths.split())
    assert content <= window, "wide tables scroll by themselves, the page does not"


def test_a_picture_does_not_borrow_from_the_others(report, tmp_path):
    """With every other picture hidden, clip paths and markers of this one are still found: its ids are its own."""
    from matplotlib.image import imread

    name = "figure-toy-ablations-depth-response"
    page = (report / "index.html").read_text(encoding="utf-8")
    copy, picture = tmp_path / "alone.html", tmp_path / "page.png"
    hidden = f"<style>figure:not(#{name}), table {{ display: none }}</style></head>"
    copy.write_text(page.replace("</head>", hidden), encoding="utf-8")
    browse(copy, tmp_path / "profile", "--window-size=1200,4000", f"--screenshot={picture}")
    pixels = imread(picture)[..., :3]
    for colour in ((0x00, 0x9E, 0x73), (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        ink = (abs(pixels - [channel / 255 for channel in colour]) < 0.02).all(axis=-1)
        assert ink.sum() > 500, colour
