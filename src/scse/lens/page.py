"""The page: one HTML file that needs nothing else, the same bytes for the same numbers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from scse.lens.look import Look
from scse.lens.pack import Packed

SCRIPTS = ("data", "numbers", "scales", "drawing", "grid", "token", "live", "main")
NOTHING_FROM_ELSEWHERE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def page(looks: Sequence[Look]) -> str:
    """Runs side by side on the same text."""
    return document({"runs": [look.packed() for look in looks]})


def document(payload: Packed) -> str:
    """The template with its styles, scripts and data. A payload that is 'live' may ask the address it comes from."""
    policy = NOTHING_FROM_ELSEWHERE + ("; connect-src 'self'" if "live" in payload else "")
    parts = {
        "policy": policy,
        "style": _template("lens.css"),
        "data": embedded(payload),
        "script": "".join(_template(f"{name}.js") for name in SCRIPTS),
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda place: parts[place[1]], _template("lens.html"))


def embedded(payload: Any) -> str:
    """JSON that can stand inside a script element whatever its strings hold."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def framed(content: str) -> str:
    """A page inside another one, such as a notebook: with scripts, and without access to what is around it."""
    look = "width:100%;height:900px;border:0"
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{look}" srcdoc="{html.escape(content)}"></iframe>'


def _template(name: str) -> str:
    return (files("scse.lens") / "templates" / name).read_text(encoding="utf-8")
