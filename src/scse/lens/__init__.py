"""The loop lens: what every loop does to every token, as one page.

>>> scse.lens("runs/mine", "The history of the loop").save("lens.html")   # doctest: +SKIP
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scse.data import Tokenizer
    from scse.lens.look import Look, Subject, Truth
    from scse.model import LoopedLM
    from scse.runs import Run

    Source = LoopedLM | Run | str | Path

LOOPS = 48


@dataclass(frozen=True)
class Lens:
    """Looks at one text, side by side. A notebook shows it as the page."""

    looks: tuple[Look, ...]

    def html(self) -> str:
        """The page, with everything it needs in it."""
        from scse.lens.page import page

        return page(self.looks)

    def plain(self) -> list[dict[str, Any]]:
        """What the page shows, as plain numbers."""
        return [look.plain() for look in self.looks]

    def save(self, path: str | Path) -> None:
        from scse.files import replacing

        with replacing(Path(path)) as draft:
            draft.write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        from scse.lens.page import framed

        return framed(self.html())

    def __repr__(self) -> str:
        names = ", ".join(look.subject.label for look in self.looks)
        return f"Lens({names}; {len(self.looks[0].window.ids)} tokens, {self.looks[0].loops} loops)"


def lens(
    model: Source | Sequence[Source],
    text: str | Sequence[int],
    *,
    loops: int = LOOPS,
    tokenizer: Tokenizer | None = None,
    truth: Truth | None = None,
    targets: Sequence[int] | None = None,
) -> Lens:
    """Look at a text, or at token ids, with a model, an opened run, a run folder, or several of them side by side.

    A bare model needs the `tokenizer` to read a text. `truth[position][t]` is the answer expected after t loops, as an
    id or as the text of one token (None: nothing is expected), drawn beside what the loops found. `targets` are the
    true tokens, -1 where there is none; without them, each token's is the next one. `scse.lens.example` gives both for
    a problem.
    """
    from scse.lens.look import look, same_rows

    sources = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    subjects = [subject(source, tokenizer) for source in sources]
    same_rows(subjects)
    return Lens(tuple(look(s, text, loops, context(subjects), truth, targets).finish() for s in subjects))


def example(
    run: Source | Sequence[Source], number: int = 0, *, difficulty: int | None = None, loops: int = LOOPS
) -> Lens:
    """Look at an example of the problem that a run, or each of several, was trained on, with the path to every answer.

    `number` counts the examples of the test split from 0; `difficulty` asks for one drawn to be so hard.
    """
    from scse.lens.examples import shown_example
    from scse.runs import Run, open_run

    sources = list(run) if isinstance(run, Sequence) and not isinstance(run, str) else [run]
    runs = [source if isinstance(source, Run) else open_run(source) for source in sources]  # type: ignore[arg-type]
    shown = shown_example(runs[0], number, difficulty, loops)
    return lens(runs, shown.ids, loops=loops, truth=shown.truth, targets=shown.targets)


def subject(source: Source, tokenizer: Tokenizer | None = None) -> Subject:
    """What is looked at, by whatever it was named."""
    from scse.lens.look import Subject
    from scse.model import LoopedLM
    from scse.runs import Run, open_run

    if isinstance(source, LoopedLM):
        return Subject(source.config.family, source, tokenizer)
    opened = source if isinstance(source, Run) else open_run(source)
    return Subject(str(opened.folder), opened.model, opened.tokenizer)


def context(subjects: Sequence[Subject]) -> int:
    """The most tokens that all of them can take."""
    return min(subject.model.config.shape.context for subject in subjects)


class _Callable(ModuleType):
    """`scse.lens` is this package and, called, its function of the same name."""

    def __call__(self, *arguments: Any, **options: Any) -> Lens:
        return lens(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
