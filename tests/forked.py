"""The `scse` command in processes that are forked off a server which has imported everything already.

Loading torch and its friends takes seconds; most tests of a command want its behaviour in a process of its own, and
not another import. `start` is like `subprocess.Popen([SCSE, …])` and `scse` like `subprocess.run`, with pipes, signals
and exit codes as real as there; with `python=True` it is Python that gets the arguments. Tests about starting up (what
is imported, the installed script, a terminal from the first line on) use `subprocess` themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MESSAGE = 1 << 20


class Forked:
    """A process of the server, with the part of `subprocess.Popen` that tests use. Streams are text."""

    def __init__(self, connection: socket.socket, streams: dict[str, io.TextIOBase]) -> None:
        self.connection = connection
        self.stdin, self.stdout, self.stderr = (streams.get(name) for name in ("stdin", "stdout", "stderr"))
        self.pid = int(json.loads(connection.recv(64))["pid"])
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self._hear(socket.MSG_DONTWAIT)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self._hear()
        assert self.returncode is not None
        return self.returncode

    def _hear(self, flags: int = 0) -> None:
        said = self.connection.recv(64, flags)
        self.returncode = json.loads(said)["code"] if said else -signal.SIGKILL
        self.connection.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Write all of the input, read all of the output, and wait."""
        said = {"stdout": "", "stderr": ""}

        def read(name: str) -> None:
            with getattr(self, name) as stream:
                said[name] = stream.read()

        readers = [threading.Thread(target=read, args=(name,)) for name in said if getattr(self, name) is not None]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(text or "")
                self.stdin.close()
        for reader in readers:
            reader.join(timeout)
            assert not reader.is_alive(), "it did not end in time"
        self.wait()
        return said["stdout"], said["stderr"]


def start(
    arguments: Sequence[object],
    *,
    stdin: int | None = None,
    stdout: int | None = subprocess.PIPE,
    stderr: int | None = subprocess.PIPE,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    python: bool = False,
) -> Forked:
    """Begin `scse ARGUMENTS`, or `python ARGUMENTS` (a script or -c).

    Each stream is a pipe, DEVNULL, a file descriptor, or (None) what the server has.
    """
    theirs, ours, closing = [], {}, []
    for name, wanted in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        if wanted == subprocess.PIPE:
            reader, writer = os.pipe()
            mine, other = (writer, reader) if name == "stdin" else (reader, writer)
            ours[name] = open(mine, "w" if name == "stdin" else "r", encoding="utf-8")  # noqa: SIM115
            closing.append(other)
        elif wanted in (None, subprocess.DEVNULL):
            other = os.open(os.devnull, os.O_RDWR)
            closing.append(other)
        else:
            other = wanted
        theirs.append(other)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    request = {
        "argv": [str(argument) for argument in arguments],
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or os.getcwd()),
        "python": python,
    }
    socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], theirs)
    for descriptor in closing:
        os.close(descriptor)
    return Forked(connection, ours)


def scse(arguments: Sequence[object], input: str | None = None, **keywords) -> subprocess.CompletedProcess[str]:
    """Run `scse ARGUMENTS` to its end."""
    process = start(arguments, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE, **keywords)
    out, err = process.communicate(input)
    return subprocess.CompletedProcess(["scse", *map(str, arguments)], process.returncode, out, err)


def begin_together(arguments: Sequence[object], count: int = 2, python: bool = False, **env: str) -> list[Forked]:
    """What torchrun starts on a machine, without torchrun: processes that find each other by their environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [start(arguments, env=os.environ | meeting | rank | env, python=python) for rank in ranks]


def said_by(together: Sequence[Forked]) -> list[tuple[str, str]]:
    """What each has printed, on stdout and stderr, when all have ended."""
    with ThreadPoolExecutor(len(together)) as readers:
        return list(readers.map(lambda process: process.communicate(), together))


def several_processes(
    arguments: Sequence[object], count: int = 2, python: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `begin_together` to its end, as one process that said what all did. As under torchrun, one that fails ends
    the others."""
    together = begin_together(arguments, count, python, **env)
    failures: list[int] = []

    def end(process: Forked) -> tuple[str, str]:
        said = process.communicate()
        if process.returncode:
            failures.append(process.returncode)
            for other in together:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other.pid, signal.SIGTERM)
        return said

    with ThreadPoolExecutor(count) as readers:
        out, err = ("".join(texts) for texts in zip(*readers.map(end, together), strict=True))
    return subprocess.CompletedProcess([*map(str, arguments)], failures[0] if failures else 0, out, err)


def two_processes(arguments: Sequence[object]) -> subprocess.CompletedProcess[str]:
    return several_processes(arguments)


@functools.cache
def _server() -> str:
    """The address of this process's server, which is started when it is first needed and ends with it."""
    folder = tempfile.mkdtemp(prefix="scse-forked-")
    address = os.path.join(folder, "socket")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.stdin.close()
        process.wait()
        os.unlink(address)
        os.rmdir(folder)

    atexit.register(end)
    return address


# ---------------------------------------------------------------- the server


def preload() -> None:
    """What commands import is imported here, once, and what they measure of the machine is measured."""
    import importlib
    import pkgutil

    import torch

    import scse.cli

    torch.set_num_threads(1)
    for name in pkgutil.walk_packages(scse.__path__, "scse."):
        if not name.name.endswith(("__main__", "remote")):
            importlib.import_module(name.name)
    import matplotlib.pyplot  # noqa: F401

    from scse.training.speed import matmul_rate

    matmul_rate(torch.float32, torch.device("cpu"))


def child(request: dict, descriptors: Sequence[int]) -> None:
    """Be the command, as if just started."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"])
    code = 70
    try:
        os.chdir(request["cwd"])
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
        code = script(request["argv"]) if request["python"] else command(request["argv"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)


def command(argv: list[str]) -> int:
    from scse.cli import main

    sys.argv = ["scse", *argv]
    return main(argv)


def script(argv: list[str]) -> int:
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")
    return 0


def serve(address: str) -> None:
    preload()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    bell, ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting = selectors.DefaultSelector()
    for source in (sys.stdin, listener, bell):
        waiting.register(source, selectors.EVENT_READ)
    running: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                return
            if key.fileobj is listener:
                _begin(listener, running)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(bell, 4096)
                _bury(running)


def _begin(listener: socket.socket, running: dict[int, socket.socket]) -> None:
    connection, _ = listener.accept()
    content, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 3)
    while not content.endswith(b"\n"):
        content += connection.recv(MESSAGE)
    request = json.loads(content)
    if request["argv"][0] == "report":
        from scse.report.diagrams import diagrams

        diagrams()  # the same in every report; drawn by the first that wants them
    process = os.fork()
    if process == 0:
        listener.close()
        child(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    running[process] = connection
    connection.send(json.dumps({"pid": process}).encode().ljust(64))


def _bury(running: dict[int, socket.socket]) -> None:
    """Tell the clients of processes that have ended how they did."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not process:
            return
        connection = running.pop(process)
        with contextlib.suppress(BrokenPipeError):
            connection.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode().ljust(64))
        connection.close()


if __name__ == "__main__":
    serve(sys.argv[1])
