"""A headless Chromium driven over its debugging pipe: pages at any width, light or dark, measured and photographed."""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from chromium import CHROMIUM, QUIET

OPTIONS = ("--headless", *QUIET, "--hide-scrollbars")
PATIENCE = 120  # seconds; only a browser that hangs takes as long


class Browser:
    """One window. Chromium reads commands from descriptor 3 and answers on 4, each message ended by a zero byte."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, commands = os.pipe()
        answers, theirs_out = os.pipe()
        arguments = [
            CHROMIUM,
            *OPTIONS,
            f"--user-data-dir={self.profile.name}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        started = f"exec {shlex.join(arguments)} 3<&{theirs_in} 4>&{theirs_out}"
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", started],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.commands, self.answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self.messages: list[bytes] = []  # heard and not yet taken
        self.begun: list[bytes] = []  # the pieces of one whose end is still to come
        self.numbers = count(1)
        self.events: list[dict[str, Any]] = []
        self.page: Path | None = None
        self.session = ""
        (target,) = (t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """The answer to one command; events that come before it are kept."""
        number = next(self.numbers)
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found
                return dict(found["result"])
            self.events.append(found)

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a page in a window of this width."""
        self.events.clear()
        self._look(width, height, dark)
        self.ask("Page.navigate", url=page.as_uri())
        while not self.happened("Page.loadEventFired"):
            self.events.append(self._next())
        self.page = page

    def show(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """The same without loading it anew where it is the page shown last: it is laid out for the width."""
        if page != self.page:
            self.open(page, width, height, dark)
        self._look(width, height, dark)
        scheme = "dark" if dark else "light"
        while not self.evaluate(f"innerWidth == {width} && matchMedia('(prefers-color-scheme: {scheme})').matches"):
            pass

    def _look(self, width: int, height: int, dark: bool) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def happened(self, *methods: str) -> list[dict[str, Any]]:
        """The events of these kinds since the page was asked for."""
        return [event for event in self.events if event.get("method") in methods]

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def photograph(self, selector: str | None = "html") -> np.ndarray:
        """The pixels of an element, on screen or not, or (None) of the window: [height, width, 3] from 0 to 255."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.picture(selector))).convert("RGB"))

    def picture(self, selector: str | None = "html") -> bytes:
        """An element, or the window, as PNG."""
        where: dict[str, object] = {}
        if selector is not None:
            box = self.evaluate(
                f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                " return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height, scale: 1}; })()"
            )
            where = {"captureBeyondViewport": True, "clip": box}
        shot = self.ask("Page.captureScreenshot", format="png", optimizeForSpeed=True, **where)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        self.session = ""
        self.ask("Browser.close")
        self.process.wait(timeout=PATIENCE)
        self.commands.close()
        self.answers.close()
        self.profile.cleanup()

    def _next(self) -> dict[str, Any]:
        """The next message; a picture is millions of bytes, so they are read in large pieces."""
        while not self.messages:
            piece = self.answers.read1()
            assert piece, "the browser is gone"
            *ended, rest = piece.split(b"\0")
            if ended:
                self.messages = [b"".join([*self.begun, ended[0]]), *ended[1:]]
                self.begun = []
            self.begun.append(rest)
        return dict(json.loads(self.messages.pop(0)))
