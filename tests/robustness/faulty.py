"""Commands that meet a fault: a server that runs them in forked children, so that hundreds of them take seconds.

It reads one JSON request per line and answers each with one line:

    {"argv": ["train", …], "scope": "/folder", "fault": {"kind": "die", "at": 7}}
    → {"code": -9, "out": "", "err": "", "writes": 7, "seconds": 0.41}

A write is an operation that changes names or opens a file for writing under `scope`. Faults are

    die     SIGKILL just before write number `at`
    late    SIGKILL to the whole process group after `seconds`
    full    from write number `at` on, nothing can be created: no space left on device
    clock   every clock jumps to and fro, and sometimes stands still

A process ends with code 70 where the command let an exception through.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import forked
from scse.report.diagrams import diagrams

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
LEAKED = 70
TESTS = Path(__file__).parents[1]


class Writes:
    """Counts the writes of a process and lets one of them go wrong."""

    def __init__(self, scope: str, fault: dict) -> None:
        self.scope, self.fault = scope, fault
        self.shared = mmap.mmap(-1, 8)  # the parent reads it after the child is gone

    @property
    def count(self) -> int:
        return int.from_bytes(self.shared[:], "little")

    def __call__(self, event: str, args: tuple) -> None:
        creates = event == "os.mkdir" or (event == "open" and isinstance(args[2], int) and args[2] & WRITING)
        if not (creates or event in CHANGES) or not self.inside(args[0]):
            return
        self.shared[:] = (self.count + 1).to_bytes(8, "little")
        kind, at = self.fault.get("kind"), self.fault.get("at", 0)
        if kind == "die" and self.count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "full" and self.count >= at and creates:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(args[0]))

    def inside(self, path: object) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(self.scope)


def disturb_clocks(seed: int) -> None:
    draw = random.Random(seed)
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, lambda: draw.choice([0.0, 1.0, 1e9, -5.0, 1e12 * draw.random()]))


def child(request: dict, writes: Writes, out: int, err: int) -> None:
    from scse.cli import main

    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    if request["fault"].get("kind") == "clock":
        disturb_clocks(request["fault"]["seed"])
    sys.addaudithook(writes)
    try:
        code = main(request["argv"])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
        code = LEAKED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def answer(request: dict) -> dict:
    fault = request.setdefault("fault", {})
    if request["argv"][0] == "report":
        diagrams()  # the same in every report; drawn by the first that wants them
    writes = Writes(str(Path(request["scope"]).resolve()), fault)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.monotonic()
        process = os.fork()
        if process == 0:
            child(request, writes, out.fileno(), err.fileno())
        if fault.get("kind") == "late":
            time.sleep(fault["seconds"])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        texts = {name: (stream.seek(0), stream.read().decode())[1] for name, stream in (("out", out), ("err", err))}
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "writes": writes.count, "seconds": time.monotonic() - begin, **texts}


class Commands:
    """The server, as its clients see it."""

    def __init__(self) -> None:
        self.process = forked.start([__file__], python=True, stdin=subprocess.PIPE, stderr=None)

    def run(self, argv: list[str], scope: Path, **fault: object) -> dict:
        request = {"argv": argv, "scope": str(scope), "fault": fault}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
