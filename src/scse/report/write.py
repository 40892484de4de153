"""A report as files. Each is written whole or not at all, the page last: it never shows what is not yet there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scse.errors import UserError
from scse.files import find_below, put
from scse.records import FILE, Record
from scse.report import latex, markdown
from scse.report.diagrams import diagrams
from scse.report.page import Chapter, Finding, chapters, origin, page
from scse.report.pictures import Rendered
from scse.suites.suite import Preset, Suite


def write_report(
    suites: Sequence[Suite],
    preset: Preset,
    records: Sequence[Record],
    out: Path,
    links: Mapping[str, str] | None = None,
) -> list[Chapter]:
    """Write index.html, tables/ and figures/ under `out`; the same records give the same bytes.

    `links` are pages beside this one that it should name, {file: what it shows}.
    """
    parts = chapters(suites, preset, records)
    drawings = diagrams()
    for part in parts:
        put(out / "tables" / f"{part.name}.md", markdown_file(part))
        put(out / "tables" / f"{part.name}.tex", latex_file(part))
    for figure in [*drawings, *(figure for part in parts for figure in part.figures)]:
        put_figure(out / "figures", figure)
    put(out / "index.html", page(parts, drawings, preset, origin(records), links))
    return parts


def put_figure(folder: Path, figure: Rendered) -> None:
    """Both files of a figure; where there is nothing to show any more, an older picture goes."""
    png, svg = folder / f"{figure.name}.png", folder / f"{figure.name}.svg"
    if figure.svg:
        put(png, figure.png)
        put(svg, figure.svg_file)
    else:
        png.unlink(missing_ok=True)
        svg.unlink(missing_ok=True)


def markdown_file(part: Chapter) -> str:
    paragraphs = [f"Suite `{part.suite}`: {part.state}, {part.found} of {part.wanted} numbers."]
    paragraphs.append(f"Runs: {markdown.escape(part.setting)}.")
    paragraphs += map(markdown.escape, part.remarks)
    if part.findings:
        lines = (f"{place}. {claim_line(found)}" for place, found in enumerate(part.findings, start=1))
        paragraphs.append("\n".join(lines))
    return markdown.document(part.title, paragraphs, [table for _, table in part.tables])


def claim_line(found: Finding) -> str:
    return f"**{found.verdict}**: {markdown.escape(found.text.rstrip('.'))}. {markdown.escape(found.numbers)}."


def latex_file(part: Chapter) -> str:
    return latex.document([(f"tab:{part.name}-{kind}", table) for kind, table in part.tables])


def record_files(paths: Sequence[Path]) -> list[Path]:
    """Record files as given, and those found in folders, each once and in a fixed order."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found |= dict.fromkeys(find_below(path, FILE))
        elif path.exists():
            found[path] = None
        else:
            raise UserError(f"there is nothing at {path}; give record files, or folders that hold {FILE}")
    return list(found)
