"""A figure as PNG bytes and as SVG text that can stand in a page beside others, in its colours and at its width."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from scse.report.figures import lay_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 150
# A grey as matplotlib writes it in a style: equal parts of red, green and blue.
_GREY = re.compile(r"(?<=: )#([0-9a-f]{2})\1\1\b")
# Where matplotlib writes places with six decimals; a hundredth of a point is more than anybody sees.
_PLACES = re.compile(r'(?<=\s)(?:d|x|y)="[^"]*"')
_PRECISE = re.compile(r"(\d+\.\d\d)\d+")
_PROLOGUE = '<?xml version="1.0" encoding="utf-8"?>\n'


@dataclass(frozen=True)
class Picture:
    """A named figure with its caption and a description for those who cannot see it; no figure: nothing to show.

    `narrow` is the same figure drawn for a telephone.
    """

    name: str
    caption: str
    description: str
    figure: Figure | None
    narrow: Figure | None = None


@dataclass(frozen=True)
class Rendered:
    """A picture as it is written; `svg`, `narrow` and `png` are empty where there is nothing to show."""

    name: str
    caption: str
    description: str
    svg: str
    narrow: str
    png: bytes

    @property
    def svg_file(self) -> str:
        return _PROLOGUE + self.svg


def render(picture: Picture) -> Rendered:
    about = (picture.name, picture.caption, picture.description)
    if picture.figure is None:
        return Rendered(*about, svg="", narrow="", png=b"")
    narrow = picture.narrow and _svg(picture.narrow, f"{picture.name}-narrow", picture.description)
    svg = _svg(picture.figure, picture.name, picture.description)
    return Rendered(*about, svg=svg, narrow=narrow or "", png=_png(picture.figure))


def in_page_colours(svg: str) -> str:
    """Black becomes the page's ink, white its paper and greys their mixtures: one drawing for light and dark pages.

    Colours proper stay. Outside a page the variables mean nothing, so the files keep the colours they were drawn in.
    """

    def colour(found: re.Match[str]) -> str:
        level = int(found.group(1), 16)
        if level in (0, 255):
            return "var(--figure-paper)" if level else "var(--figure-ink)"
        return f"color-mix(in srgb, var(--figure-paper) {level / 2.55:.0f}%, var(--figure-ink))"

    return _GREY.sub(colour, svg)


def _svg(figure: Figure, name: str, description: str) -> str:
    """SVG without prologue or metadata, letters as paths, and every id made the picture's own.

    Pictures in one page share its ids: a clip path of the one would otherwise cut the other.
    """
    import matplotlib

    lay_out(figure)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = _PLACES.sub(lambda found: _PRECISE.sub(r"\1", found.group()), text)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    opening = f'<svg role="img" aria-labelledby="{name}-title" '
    title = f'<title id="{name}-title">{escape(description)}</title>\n'
    head, _, rest = text.removeprefix("<svg ").partition(">")
    return "\n".join(line.rstrip() for line in f"{opening}{head}>\n{title}{rest}".splitlines()) + "\n"


def _png(figure: Figure) -> bytes:
    lay_out(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PNG_DPI)
    return buffer.getvalue()
