"""How rows become a table that fits the terminal: one rule for every command.

Names and numbers are never folded and decimal points stand under each other. A table that is too wide gets, in this
order: headers over several lines, no rules between columns, what is the same in every row stated once above it, text
wrapped at words, fewer columns (those that the command can spare, which it then names), the table turned on its side,
or several tables one below the other that repeat what identifies a row. Without a terminal there is no width to fit,
and nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scse.cli.text import MISSING, cell_width, print_text, render, shortened, terminal_width, wrapped

NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+))((?:\.\d+)?(?:e[+-]?\d+)?%?(?: .*)?)$")
COMFORTABLE = 30  # text wrapped to less than this is hard to read: a column that can be spared goes first
SHORTEST_TEXT = SHORTEST_NAME = 12  # what is no longer than this is neither wrapped nor shortened
RULED, BARE = 3, 2  # what each column costs besides its cells, with rules between the columns and without


def print_table(
    rows: Sequence[Mapping[str, object]], title: str = "", spare: Sequence[str] = (), elsewhere: str = "--json has all"
) -> None:
    """Rows with the same keys. `spare` are columns to leave out for want of room, the first of them first."""
    if title:
        print_text(title)
    if not rows:
        print_text("no rows")
        return
    layout = fitted(Layout.of(rows), terminal_width(), [name for name in spare if name in rows[0]])
    for line in layout.above:
        print_text(line)
    for number, part in enumerate(layout.parts):
        if number:
            print()
        draw(part, layout.ruled)
    if layout.dropped:
        print_text(f"no room for: {', '.join(layout.dropped)} ({elsewhere})")


@dataclass(frozen=True)
class Column:
    """A header (with line breaks where it is folded) and its cells. `prose` may be wrapped at its spaces."""

    name: str
    cells: tuple[str, ...]
    header: str = ""
    prose: bool = False
    right: bool = False

    @classmethod
    def of(cls, name: str, values: Sequence[object]) -> Column:
        cells = [render(value) for value in values]
        if all(map(is_number, cells)):
            return cls(name, aligned(cells), name, right=any(cells))
        return cls(name, tuple(cells), name, prose=any(" " in cell and len(cell) > SHORTEST_TEXT for cell in cells))

    @property
    def width(self) -> int:
        return max(cell_width(line) for text in (self.header, *self.cells) for line in text.split("\n"))

    def least(self, comfortable: int) -> int:
        """The width below which this column cannot go without breaking a word."""
        words = max(cell_width(word) for text in (self.header, *self.cells) for word in text.split() or [""])
        return max(words, min(self.width, comfortable)) if self.prose else self.width

    def folded(self) -> Column:
        """The header on as many lines as it has words."""
        return replace(self, header="\n".join(re.split(r"[ _]", self.header)))

    def narrowed(self, width: int) -> Column:
        """Text at a width: wrapped if it is prose, otherwise with its middle left out."""
        if self.width <= width:
            return self
        if self.prose:
            return replace(self, cells=tuple("\n".join(wrapped(cell, width)) for cell in self.cells))
        return replace(self, cells=tuple(shortened(cell, width) for cell in self.cells))


@dataclass(frozen=True)
class Layout:
    """Tables to draw one below the other, the lines above them, and the columns that were left out."""

    parts: tuple[tuple[Column, ...], ...]
    above: tuple[str, ...] = ()
    dropped: tuple[str, ...] = field(default=())
    ruled: bool = True

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]]) -> Layout:
        return cls((tuple(Column.of(key, [row[key] for row in rows]) for key in rows[0]),))

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.parts[0]

    def room(self, width: int) -> int:
        """How much is left beside the columns, or how much is missing."""
        return width - table_width([column.width for column in self.columns], self.ruled)


def table_width(widths: Sequence[int], ruled: bool) -> int:
    return sum(widths) + (RULED * len(widths) + 1 if ruled else BARE * (len(widths) - 1))


def fitted(layout: Layout, width: int | None, spare: Sequence[str]) -> Layout:
    """The first form that has room."""
    if width is None:
        return layout
    for form in forms(layout, width, spare):
        if form.room(width) >= 0:
            return form
    return split(spared(layout, spare), width)


def spared(layout: Layout, names: Sequence[str]) -> Layout:
    """Without these columns."""
    left = tuple(column for column in layout.columns if column.name not in names)
    gone = tuple(column.name for column in layout.columns if column not in left)
    return replace(layout, parts=(left,), dropped=gone)


def forms(layout: Layout, width: int, spare: Sequence[str]) -> Iterator[Layout]:
    """Ever narrower forms of one table."""
    yield layout
    folded = replace(layout, parts=(tuple(column.folded() for column in layout.columns),))
    yield folded
    yield replace(folded, ruled=False)
    if len(layout.columns[0].cells) > 1:
        folded = stated_once(folded)
    yield folded
    bare = replace(folded, ruled=False)
    yield bare
    yield with_wrapped_text(bare, width, COMFORTABLE)
    for count in range(1, len(spare) + 1):
        fewer = spared(bare, spare[:count])
        yield fewer
        yield with_wrapped_text(fewer, width, COMFORTABLE)
    yield with_wrapped_text(bare, width, 0)
    on_its_side = turned(layout)
    yield on_its_side
    yield replace(on_its_side, ruled=False)
    yield with_wrapped_text(replace(on_its_side, ruled=False), width, COMFORTABLE)


def stated_once(layout: Layout) -> Layout:
    """Without the columns whose cells are all the same, and without folders that all names of a column lie in."""
    columns, same, folders = [], [], []
    for place, column in enumerate(layout.columns):
        shared = "" if column.right else common_folder(column.cells)
        if place and len(set(column.cells)) == 1:
            same.append(f"{column.name} {column.cells[0].strip() or MISSING}")
        elif shared:
            folders.append(f"{column.name}: in {shared}")
            columns.append(replace(column, cells=tuple(cell.removeprefix(shared) for cell in column.cells)))
        else:
            columns.append(column)
    above = ([f"in every row: {', '.join(same)}"] if same else []) + folders
    return replace(layout, parts=(tuple(columns),), above=tuple(above))


def common_folder(names: Sequence[str]) -> str:
    """'runs/mini/' for runs/mini/scse and runs/mini/looped; '' where there is none"""
    shared = []
    for parts in zip(*(name.split("/")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(f"{parts[0]}/")
    return "".join(shared)


def with_wrapped_text(layout: Layout, width: int, comfortable: int) -> Layout:
    """Take what is missing from the widest text column, again and again, until it fits or nothing gives."""
    columns = list(layout.columns)
    widths = [column.width for column in columns]
    least = [column.least(comfortable) for column in columns]
    while table_width(widths, layout.ruled) > width:
        giving = [i for i in range(len(columns)) if widths[i] > least[i]]
        if not giving:
            break
        widths[max(giving, key=lambda i: widths[i])] -= 1
    return replace(layout, parts=(tuple(c.narrowed(w) for c, w in zip(columns, widths, strict=True)),))


def turned(layout: Layout) -> Layout:
    """A row for each column; the cells of the first column become the headers."""
    first, *rest = layout.columns
    if len(first.cells) == 1:
        labels, rest = Column("", tuple(column.name for column in layout.columns)), list(layout.columns)
        heads = [""]
    else:
        labels, heads = Column(first.name, tuple(column.name for column in rest), first.header), list(first.cells)
    columns = [
        turned_column(head.strip(), [column.cells[i].strip() for column in rest]) for i, head in enumerate(heads)
    ]
    return replace(layout, parts=((labels, *columns),))


def turned_column(head: str, cells: Sequence[str]) -> Column:
    """What stood beside each other, below each other: the numbers aligned, words between them to the left."""
    column = Column.of(head, cells)
    if column.right:
        return column
    numbers = iter(aligned([cell for cell in cells if is_number(cell)]))
    return replace(column, cells=tuple(next(numbers) if is_number(cell) else cell for cell in cells))


def split(layout: Layout, width: int) -> Layout:
    """Several tables, each beginning with the columns that tell the rows apart."""
    said = stated_once(layout) if len(layout.columns[0].cells) > 1 else layout
    columns = [column.folded() for column in said.columns]
    names = key_of(columns)
    others = [column for column in columns if column.name not in names]
    needed = max((column.least(0) for column in others), default=0)
    key = squeezed([column for column in columns if column.name in names], width - BARE - needed)
    left = width - table_width([column.width for column in key], ruled=False)
    parts: list[tuple[Column, ...]] = []
    current: list[Column] = []
    for column in others:
        room = left - sum(BARE + other.width for other in current) - BARE
        if column.least(0) > room and current:
            parts.append((*key, *current))
            current, room = [], left - BARE
        current.append(column.narrowed(room))
    return replace(said, parts=(*parts, (*key, *current)), ruled=False)


def key_of(columns: Sequence[Column]) -> list[str]:
    """The names of the first columns that tell the rows apart, without those that are not needed for it."""
    count = next((n for n in range(1, len(columns)) if tells_rows_apart(columns[:n])), 1)
    key = list(columns[:count])
    for column in reversed(columns[:count]):
        rest = [other for other in key if other is not column]
        if rest and tells_rows_apart(rest):
            key = rest
    return [column.name for column in key]


def tells_rows_apart(columns: Sequence[Column]) -> bool:
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return len(set(rows)) == len(rows)


def squeezed(columns: Sequence[Column], width: int) -> list[Column]:
    """Names that leave no room for anything else, with their middle left out; numbers stay whole."""
    widths = [column.width for column in columns]
    while table_width(widths, ruled=False) > width:
        giving = [i for i, column in enumerate(columns) if not column.right and widths[i] > SHORTEST_NAME]
        if not giving:
            break
        widths[max(giving, key=lambda i: widths[i])] -= 1
    return [column.narrowed(w) for column, w in zip(columns, widths, strict=True)]


def is_number(cell: str) -> bool:
    return cell in ("", MISSING) or NUMBER.match(cell) is not None


def aligned(cells: Sequence[str]) -> tuple[str, ...]:
    """Numbers with their last whole digits, and so their decimal points, under each other.

    >>> aligned(["465.1", "98.23", "–", "1,024"])
    ('  465.1 ', '   98.23', '    –   ', '1,024   ')
    """
    if not cells:
        return ()
    found = [NUMBER.match(cell) for cell in cells]
    pairs = [match.groups() if match else (cell, "") for match, cell in zip(found, cells, strict=True)]
    before, after = (max(len(pair[side]) for pair in pairs) for side in (0, 1))
    return tuple(f"{lead:>{before}}{tail:<{after}}" for lead, tail in pairs)


def draw(columns: Sequence[Column], ruled: bool) -> None:
    """Every cell is already as wide as its column, so that nothing is left to fold or to move."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = box.HEAVY_HEAD if ruled else box.SIMPLE_HEAD
    padding = (0, 1) if ruled else (0, 1, 0, 0)
    headed = any(column.header for column in columns)
    table = Table(box=lines, show_edge=ruled, pad_edge=ruled, padding=padding, show_header=headed, header_style="bold")
    for column in columns:
        table.add_column(Text(padded(column.header, column)), width=column.width, no_wrap=True, overflow="ignore")
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(padded(cell, column)) for cell, column in zip(cells, columns, strict=True)))
    Console(width=table_width([column.width for column in columns], ruled), highlight=False).print(table)


def padded(text: str, column: Column) -> str:
    """Each line at the width of its column: numbers to the right, anything else to the left."""
    gaps = [(line, " " * (column.width - cell_width(line))) for line in text.split("\n")]
    return "\n".join(gap + line if column.right else line + gap for line, gap in gaps)
