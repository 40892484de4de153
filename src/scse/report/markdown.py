"""Tables and claims as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scse.report.tables import Entry, Row, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>&|~#$])")


def escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return _SPECIAL.sub(r"\\\1", text)


def table(source: Table) -> str:
    """A caption and a pipe table; groups are rows in bold."""
    heads = [source.stub]
    for head in source.heads:
        heads += [f"{head.text} {part}" for part in head.parts] or [head.text]
    lines = [f"*{escape(source.caption)}*", "", _line(map(escape, heads))]
    lines.append(_line(["---"] + ["---:"] * source.width))
    for section in source.sections:
        if section.heading:
            lines.append(_line([f"**{escape(section.heading)}**", *[""] * source.width]))
        lines += [_line([_label(row), *map(_entry, row.entries)]) for row in section.rows]
    return "\n".join(lines)


def document(title: str, paragraphs: Sequence[str], tables: Sequence[Table]) -> str:
    """A file: a title, paragraphs that are Markdown already, then the tables."""
    return "\n\n".join([f"# {escape(title)}", *paragraphs, *map(table, tables)]) + "\n"


def _label(row: Row) -> str:
    parts = [escape(row.label)]
    if row.reference:
        parts.append("(reference)")
    if row.note:
        parts.append(f"*{escape(row.note)}*")
    return " ".join(parts)


def _entry(entry: Entry) -> str:
    text = escape(entry.text)
    text = f"**{text}**" if entry.bold else text
    return f"{text} *{escape(entry.note)}*" if entry.note else text


def _line(cells: Sequence[str] | map[str]) -> str:
    return "| " + " | ".join(cells) + " |"
