"""A long split is tokenised in shards, by one process or several; those that are done survive whoever builds.

A split is a sequence of chunks that are encoded apart, so any cut between two chunks gives the same tokens. A shard is
a run of chunks: `N.bin` with its tokens, and `N.json` with the hashes of its text and of them. A build that finds a
shard reads the text up to its end and goes on behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scse.data.encoding import encode_chunks, marked_chunks
from scse.data.sources import SplitSource
from scse.data.tokenizer import Tokenizer, read_tokenizer
from scse.errors import UserError
from scse.files import file_hash, read_sealed, replacing, write_sealed
from scse.progress import SILENT, Meter

FORMAT = 1
SHARD_CHARACTERS = 1 << 22  # the last ones of a split are not done at the same moment: about half of one is lost
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Shard:
    """A run of chunks, each with whether its document ends there."""

    number: int
    chunks: list[tuple[str, bool]]

    @property
    def text_hash(self) -> str:
        digest = hashlib.sha256()
        for chunk, last in self.chunks:
            digest.update(chunk.encode() + (b"\1" if last else b"\0"))
        return digest.hexdigest()

    def amount(self, unit: str) -> int:
        """The work in it, as progress is counted."""
        if unit == "documents":
            return sum(last for _, last in self.chunks)
        return sum(len(chunk.encode()) for chunk, _ in self.chunks)


def shards(source: SplitSource, whole: bool = False) -> Iterator[tuple[Shard, bool]]:
    """The shards of a split, each with whether it is the only one; `whole` documents are not cut."""
    held: Shard | None = None
    chunks: list[tuple[str, bool]] = []
    characters = number = 0
    for chunk, last in marked_chunks(source, whole):
        if characters >= SHARD_CHARACTERS:
            if held is not None:
                yield held, False
            held, chunks, characters, number = Shard(number, chunks), [], 0, number + 1
        chunks.append((chunk, last))
        characters += len(chunk)
    if held is not None:
        yield held, False
    yield Shard(number, chunks), held is None


def encode_split(
    tokenizer: Tokenizer, source: SplitSource, meter: Meter, keep: Path, processes: int = 1
) -> Iterator[bytes]:
    """The tokens of a split in blocks; `keep` is where finished shards lie until all are done."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(_pool(tokenizer, processes)) if processes > 1 else None
        waiting: deque[tuple[int, int, Future[None]]] = deque()
        for shard, only in shards(source, tokenizer.whole):
            if only:
                for block in encode_chunks(tokenizer, shard.chunks, source.separated, meter, source.unit):
                    yield block.tobytes()
                return
            waiting.append((shard.number, shard.amount(source.unit), _kept(tokenizer, shard, keep, source, pool)))
            while len(waiting) > (2 * processes if pool else 0):
                yield _finished(*waiting.popleft(), keep, meter)
        while waiting:
            yield _finished(*waiting.popleft(), keep, meter)


def _kept(
    tokenizer: Tokenizer, shard: Shard, keep: Path, source: SplitSource, pool: ProcessPoolExecutor | None
) -> Future[None]:
    """A shard on its way into the folder; one that is there already, or that is written here, has arrived."""
    known = is_kept(shard, keep)
    if pool is not None and not known:
        return pool.submit(_write_in_worker, shard, keep, source.separated)
    if not known:
        write_shard(tokenizer, shard, keep, source.separated)
    arrived: Future[None] = Future()
    arrived.set_result(None)
    return arrived


def _finished(number: int, amount: int, future: Future[None], keep: Path, meter: Meter) -> bytes:
    future.result()
    meter.advance(amount)
    return (keep / f"{number}.bin").read_bytes()


def remove(keep: Path) -> None:
    """The shards of a split that is complete."""
    shutil.rmtree(keep, ignore_errors=True)


def is_kept(shard: Shard, keep: Path) -> bool:
    """Whether a shard was written before, from this text, and is whole."""
    try:
        stated = read_sealed(keep / f"{shard.number}.json", FORMAT)
        found = {"text": shard.text_hash, "tokens": file_hash(keep / f"{shard.number}.bin")}
        return found == {name: stated[name] for name in found}
    except (UserError, OSError, KeyError):
        return False


def write_shard(tokenizer: Tokenizer, shard: Shard, keep: Path, separated: bool) -> None:
    digest = hashlib.sha256()
    with replacing(keep / f"{shard.number}.bin") as temporary, temporary.open("wb") as handle:
        for block in encode_chunks(tokenizer, shard.chunks, separated, SILENT, "B"):
            handle.write(block.tobytes())
            digest.update(block.tobytes())
    write_sealed(keep / f"{shard.number}.json", FORMAT, {"text": shard.text_hash, "tokens": digest.hexdigest()})


_worker_tokenizer: Tokenizer | None = None


@contextlib.contextmanager
def _pool(tokenizer: Tokenizer, processes: int) -> Iterator[ProcessPoolExecutor]:
    """Workers that have the tokenizer. What they have not begun when the build fails is dropped."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _prepare_worker, (tokenizer.serialised(), os.getpid()))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker(serialised: bytes, parent: int) -> None:
    global _worker_tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent is told too, and ends us in order
    _worker_tokenizer = read_tokenizer(serialised)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """A worker outlives a parent that was killed only by a moment."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _write_in_worker(shard: Shard, keep: Path, separated: bool) -> None:
    assert _worker_tokenizer is not None
    write_shard(_worker_tokenizer, shard, keep, separated)
