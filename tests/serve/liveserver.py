"""A server in this process, on a free port of the loopback, and a way to ask it."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

from scse.serve.app import Settings
from scse.serve.ask import Defaults
from scse.serve.limits import Limits
from scse.serve.server import Server

TEXT = "the state moves from its anchor and rests again after the loop "


@contextmanager
def running(served, limits=None, defaults=None, settings=None, grace=60):
    """A server that answers until the block ends."""
    limits = limits or Limits(lanes=4, chunk=8, prefill=16)
    with Server(served, "127.0.0.1", 0, limits, defaults or Defaults(4), settings or Settings(), grace) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def ask(server, path, body=None, method=None, **headers):
    """(status, answer): the answer parsed, or the bytes where it is no JSON."""
    place = urlsplit(server.address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, raw, headers)
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    try:
        return reply.status, json.loads(content)
    except ValueError:
        return reply.status, content
