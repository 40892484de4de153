"""The live form of the page: a text typed in a browser of this machine, computed in this process, answered as it comes.

It listens on the loopback address alone. Its address holds a random token, and requests under another name than the
loopback's are refused, so that no page from elsewhere can talk to it through the reader's browser.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scse.errors import UserError
from scse.lens import context
from scse.lens.look import Subject, look, same_rows
from scse.lens.page import document
from scse.measure import elapsed

LOOPBACK = "127.0.0.1"
LONGEST_REQUEST = 1 << 20
MOST_LOOPS = 512


class Server:
    """Serves the page until it is interrupted."""

    def __init__(self, subjects: Sequence[Subject], text: str, loops: int, port: int = 0) -> None:
        self.subjects, self.text, self.loops = list(subjects), text, loops
        self.token = secrets.token_urlsafe(16)
        self.turn = threading.Lock()  # one text at a time: they would only slow each other down
        try:
            self.http = ThreadingHTTPServer((LOOPBACK, port), self._handler())
        except OverflowError:
            raise UserError(f"--port must be between 0 and 65535, got {port}") from None
        except OSError as error:
            raise UserError(f"cannot listen on port {port} ({error.strerror}); choose another with --port") from None
        self.http.daemon_threads = True
        self.http.block_on_close = False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.server_close()

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.http.server_port}/{self.token}/"

    def run(self) -> None:
        """Answer until Ctrl-C."""
        try:
            self.http.serve_forever()
        except KeyboardInterrupt:
            return

    def page(self) -> str:
        labels = [subject.label for subject in self.subjects]
        return document({"live": {"runs": labels, "text": self.text, "loops": self.loops, "most_loops": MOST_LOOPS}})

    def answer(self, wanted: Any) -> Iterator[dict[str, Any]]:
        """What is known about a text, in the order in which it is computed; a mistake is one event."""
        try:
            subjects, text, loops = self._understood(wanted)
            begin = time.perf_counter()
            same_rows(subjects)
            for place, subject in enumerate(subjects):
                found = look(subject, text, loops, context(subjects))
                yield {"run": place, "head": found.head()}
                for part in found.parts():
                    yield {"run": place, "part": part}
                yield {"run": place, "end": True, "attention": found.attention()}
            yield {"seconds": elapsed(begin)}
        except UserError as error:
            yield {"error": str(error)}

    def _understood(self, wanted: Any) -> tuple[list[Subject], str, int]:
        match wanted:
            case {"text": str(text), "runs": [_, *_] as places, "loops": int(loops)} if all(
                isinstance(place, int) and 0 <= place < len(self.subjects) for place in places
            ):
                if not 1 <= loops <= MOST_LOOPS:
                    raise UserError(f"loops must be between 1 and {MOST_LOOPS}, got {loops}")
                if not text:
                    raise UserError("there is no text to look at; type some")
                return [self.subjects[place] for place in dict.fromkeys(places)], text, loops
        raise UserError("choose at least one run and a number of loops")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.admitted(""):
                    self.begin("text/html; charset=utf-8")
                    self.wfile.write(server.page().encode())

            def do_POST(self) -> None:
                if not self.admitted("look"):
                    return
                try:
                    length = int(self.headers.get("Content-Length", ""))
                    if not 0 <= length <= LONGEST_REQUEST:
                        raise ValueError("too long")
                    wanted = json.loads(self.rfile.read(length))
                except (ValueError, RecursionError):
                    self.send_error(HTTPStatus.BAD_REQUEST)
                    return
                self.begin("application/x-ndjson")
                with server.turn:
                    for event in server.answer(wanted):
                        try:
                            self.wfile.write(json.dumps(event, sort_keys=True).encode() + b"\n")
                        except (BrokenPipeError, ConnectionResetError):
                            return  # the reader asks for something else by now

            def admitted(self, name: str) -> bool:
                """Only under the name of this machine's loopback, and only with the token."""
                host = (self.headers.get("Host") or "").rpartition(":")[0]
                here = secrets.compare_digest(self.path.encode(), f"/{server.token}/{name}".encode())
                if host in (LOOPBACK, "localhost") and here:
                    return True
                self.send_error(HTTPStatus.NOT_FOUND)
                return False

            def begin(self, kind: str) -> None:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", kind)
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """The terminal is the reader's, not a log's."""

        return Handler
