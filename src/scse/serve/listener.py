"""From the engine's thread to the one that talks to clients: tokens become text, and stop strings are found."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from scse.data import Tokenizer
from scse.generation.text import Continuation
from scse.serve.sequence import Token


@dataclass(frozen=True)
class News:
    """Something about one choice: scored tokens of its prompt, new text with the tokens behind it, or its end."""

    choice: int
    text: str = ""
    scored: tuple[Token, ...] = ()
    tokens: tuple[Token, ...] = ()
    end: str = ""
    message: str = ""


@dataclass
class Mailbox:
    """News of one request, put in by the engine's thread and taken out by the event loop."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[News] = field(default_factory=asyncio.Queue)

    def put(self, news: News) -> None:
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, news)
        except RuntimeError:
            """The loop has closed: nobody listens any more."""


class Listener:
    """A `Sink` for one choice. Text that could be the beginning of a stop string waits until it is known not to be."""

    def __init__(self, choice: int, tokenizer: Tokenizer, stops: tuple[str, ...], mailbox: Mailbox) -> None:
        self.choice, self.stops, self.mailbox = choice, stops, mailbox
        self.grown = Continuation(tokenizer)
        self.shown = 0
        self.length: int | None = None  # of the text, once a stop string has been found

    def prompt(self, scored: list[Token]) -> None:
        self.mailbox.put(News(self.choice, scored=tuple(scored)))

    def token(self, new: Token) -> bool:
        self.grown.add(new.id, new.loops)
        text = self.grown.text
        found = [place for stop in self.stops if (place := text.find(stop, max(0, self.shown))) >= 0]
        if found:
            self.length = min(found)
        until = len(text) - self._held_back(text) if self.length is None else self.length
        self.mailbox.put(News(self.choice, text[self.shown : until], tokens=(new,)))
        self.shown = max(self.shown, until)
        return self.length is not None

    def end(self, reason: str, message: str = "") -> None:
        rest = ""
        if self.length is None and self.grown.ids:
            self.grown.finish()
            rest = self.grown.text[self.shown :]
        self.mailbox.put(News(self.choice, rest, end=reason, message=message))

    def _held_back(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        waiting = len(text) - self.shown
        return max(
            (n for stop in self.stops for n in range(1, min(len(stop), waiting + 1)) if text.endswith(stop[:n])),
            default=0,
        )
