"""How the loops behind each generated token are shown: a coloured background on a terminal, a number elsewhere.

The five colours rise in lightness from violet to yellow, so that readers who do not tell hues apart can order them, and
each brings its own colour of text, so that they read the same on light and dark terminals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# (background, text) as numbers of the 256-colour palette
SCALE = ((54, 231), (25, 231), (37, 16), (113, 16), (227, 16))
ENOUGH_COLOURS = ("256", "truecolor")


@dataclass(frozen=True)
class Marks:
    """Marks tokens with their loops, of `most`; in colour if the terminal has enough colours."""

    most: int
    colours: bool

    @classmethod
    def on(cls, console: Console, most: int) -> Marks:
        return cls(most, console.is_terminal and not console.no_color and console.color_system in ENOUGH_COLOURS)

    def ends(self) -> list[int]:
        """The last depth of each colour. Each covers about the same ratio of depths, and at least one.

        >>> Marks(48, True).ends(), Marks(8, True).ends(), Marks(2, True).ends()
        ([2, 4, 10, 22, 48], [1, 2, 3, 5, 8], [1, 2])
        """
        ends: list[int] = []
        for place in range(1, len(SCALE) + 1):
            share = self.most ** (place / len(SCALE))
            end = self.most if place == len(SCALE) else max(int(share), ends[-1] + 1 if ends else 1)
            if end <= self.most and end not in ends:
                ends.append(end)
        return ends

    def style(self, loops: int) -> str:
        place = next(i for i, end in enumerate(self.ends()) if loops <= end)
        # A short scale takes the ends of the colours, where they differ most.
        background, text = SCALE[round(place * (len(SCALE) - 1) / max(1, len(self.ends()) - 1))]
        return f"color({text}) on color({background})"

    def mark(self, piece: str, loops: int) -> Text:
        from rich.text import Text

        return Text(piece, style=self.style(loops)) if self.colours else Text(f"{piece}[{loops}]")

    def legend(self) -> Text:
        from rich.text import Text

        if not self.colours:
            return Text("[n] after a token: it took n loops")
        parts: list[str | tuple[str, str]] = ["loops of a token:"]
        first = 1
        for end in self.ends():
            parts += [" ", (f" {first} " if first == end else f" {first}–{end} ", self.style(end))]
            first = end + 1
        return Text.assemble(*parts)
