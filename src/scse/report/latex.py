"""Tables as LaTeX with booktabs, in characters every engine knows."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from scse.report.tables import Entry, Head, Row, Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "‖": r"$\|$",
    "\N{FRACTION SLASH}": "/",
    # A bracket at the start of a row would be read as the option of the line break before it.
    "[": "{[}",
    "]": "{]}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "★": r"$\star$",
    "⋆": r"$\star$",
    "†": r"\dag{}",
    "—": "---",
    "–": "--",
    "…": r"\dots{}",
    "’": "'",
    "“": "``",
    "”": "''",
    "²": "$^{2}$",
    "³": "$^{3}$",
}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
_GREEK_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; a character it would not know is spelled out."""
    return "".join(map(_character, text))


def _character(mark: str) -> str:
    if mark in _SPECIAL:
        return _SPECIAL[mark]
    if mark.isascii():
        return mark if mark.isprintable() else " "
    decomposed = unicodedata.normalize("NFKD", mark)
    if "<super>" in unicodedata.decomposition(mark):
        return f"$^{{{decomposed.replace('−', '-')}}}$"
    if "<sub>" in unicodedata.decomposition(mark):
        return f"$_{{{decomposed.replace('−', '-')}}}$"
    if mark.isalpha() and ord(mark) < 0x180:
        return mark  # Latin letters with their accents, which LaTeX reads as UTF-8
    kind, _, name = unicodedata.name(mark, "").rpartition(" ")
    if name.lower() == "lamda":
        name = "LAMBDA"
    if kind == "GREEK SMALL LETTER" and name.lower() in _GREEK.split():
        return f"$\\{name.lower()}$"
    if kind == "GREEK CAPITAL LETTER" and name.title() in _GREEK_CAPITALS.split():
        return f"$\\{name.title()}$"
    plain = decomposed.replace("\N{FRACTION SLASH}", "/")
    return escape(plain) if plain != mark and plain.isascii() else f"{{[}}U+{ord(mark):04X}{{]}}"


def table(source: Table, label: str) -> str:
    """A table environment; needs \\usepackage{booktabs}."""
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}[t]",
        "\\centering",
        "\\small",
        f"\\begin{{tabular}}{{l{'r' * source.width}}}",
        "\\toprule",
        *_heads(source),
        "\\midrule",
    ]
    for position, section in enumerate(source.sections):
        if position:
            lines.append("\\midrule")
        if section.heading:
            lines.append(f"\\multicolumn{{{source.width + 1}}}{{l}}{{\\emph{{{escape(section.heading)}}}}} \\\\")
        lines += [_row([_label(row), *map(_entry, row.entries)]) for row in section.rows]
    caption = escape(source.caption)
    lines += ["\\bottomrule", "\\end{tabular}", f"\\caption{{{caption}}}", f"\\label{{{label}}}", "\\end{table}"]
    return "\n".join(lines)


def document(tables: Sequence[tuple[str, Table]]) -> str:
    """A file for \\input: labelled tables, one after the other."""
    return "\n\n".join(table(source, label) for label, source in tables) + "\n"


def _heads(source: Table) -> list[str]:
    if not any(head.parts for head in source.heads):
        return [_row([escape(source.stub), *(escape(head.text) for head in source.heads)])]
    spans, rules, below, first = [""], [], [escape(source.stub)], 2
    for head in source.heads:
        size = max(1, len(head.parts))
        spans.append(f"\\multicolumn{{{size}}}{{c}}{{{escape(head.text)}}}")
        rules.append(f"\\cmidrule(lr){{{first}-{first + size - 1}}}")
        below += _parts(head)
        first += size
    return [_row(spans), "".join(rules), _row(below)]


def _parts(head: Head) -> list[str]:
    return [escape(part) for part in head.parts] or [""]


def _label(row: Row) -> str:
    label = escape(row.label) + (" (reference)" if row.reference else "")
    return label + _note(row.note)


def _entry(entry: Entry) -> str:
    text = escape(entry.text)
    text = f"\\textbf{{\\boldmath {text}}}" if entry.bold else text
    return text + _note(entry.note)


def _note(note: str) -> str:
    return f" {{\\footnotesize ({escape(note)})}}" if note else ""


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
