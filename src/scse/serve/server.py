"""A service on a socket: the engine in a thread of its own, uvicorn in this one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from scse.errors import UserError
from scse.serve.app import Service, Settings
from scse.serve.ask import Defaults
from scse.serve.calibration import calibrate
from scse.serve.connection import Connection
from scse.serve.engine import Engine
from scse.serve.limits import GRACE_SECONDS, Limits
from scse.serve.served import Served
from scse.serve.wire import Place

log = logging.getLogger("scse.serve")


class Server:
    """Listens from the moment it is made; `run` answers until it is told to stop."""

    def __init__(
        self,
        served: Served,
        host: str,
        port: int,
        limits: Limits,
        defaults: Defaults,
        settings: Settings,
        grace: int = GRACE_SECONDS,
    ) -> None:
        self.engine = Engine(served.model, limits)
        calibrate(self.engine, defaults.loops)
        self.service = Service(served, self.engine, defaults, settings)
        self.socket = listen(host, port)
        config = uvicorn.Config(
            self.service.app(),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=grace,
        )
        self.http = _Draining(config, self.service)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def address(self) -> str:
        return f"http://{Place(*self.socket.getsockname()[:2]).name}"

    def run(self) -> None:
        """Answer until a signal or `stop`; then what is under way is finished, within the grace."""
        with self._engine_at_work():
            self.http.run(sockets=[self.socket])

    def stop(self) -> None:
        self.service.draining = True
        self.http.should_exit = True

    @contextmanager
    def _engine_at_work(self) -> Iterator[None]:
        worker = threading.Thread(target=self.engine.run, name="engine", daemon=True)
        worker.start()
        try:
            yield
        finally:
            self.engine.stop()
            worker.join(timeout=5)


class _Draining(uvicorn.Server):
    """Says so at /health once it has been told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.draining = True
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one line."""
    if not host:
        raise UserError("--host must name an address of this machine, such as 127.0.0.1 or 0.0.0.0")
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be between 0 and 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)
    except (OSError, ValueError, TypeError) as error:  # the last two: a name that no machine can have
        found.close()
        why = error.strerror if isinstance(error, OSError) else "this is no address"
        raise UserError(f"cannot listen on {host}:{port} ({why}); choose another --host or --port") from None
    found.setblocking(False)
    return found
