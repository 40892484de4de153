"""Whatever cuts a command short, the same command again ends as if nothing had happened.

Every target is a command with what it leaves behind. It is killed just before each of its writes (a sample of them
here), killed at random moments many times over, and refused any space on the disk; then it is given again and must
leave the same bytes as an undisturbed one: nothing lost, doubled or left over. SCSE_KILLS sets how many.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from faulty import LEAKED, TESTS, Commands

from runs import command, run, write_corpus
from scse.files import file_hash
from scse.records import read_records

KILLS = int(os.environ.get("SCSE_KILLS", "3"))
ALIKE = {"seconds", "tokens_per_second", "matmul_share"}  # what no two runs have in common


def train(base: Path, place: Path) -> list[str]:
    """With a cache of its own: the text is tokenised first."""
    argv = command(base / "corpus", place / "run", "--quiet", steps=6)
    argv[argv.index("--cache-dir") + 1] = str(place / "cache")
    argv[argv.index("--checkpoint-every") + 1] = "2"
    return argv


def suite(base: Path, place: Path) -> list[str]:
    where = ("--data", str(base / "corpus"), "--cache-dir", str(place / "cache"), "--runs", str(place / "runs"))
    size = ("--only", "scse,scse-initial", "--seeds", "0", "--steps", "2", "--limit", "1", "--depths", "8")
    size += ("--import", str(TESTS / "suites" / "toypreset.py"))
    return ["suite", "run", "anchor-design", *where, *size, "--json"]


def export(base: Path, place: Path) -> list[str]:
    return ["export", str(base / "run"), str(place / "out"), "--cache-dir", str(base / "cache"), "--quiet"]


def report(base: Path, place: Path) -> list[str]:
    """Of the results in the repository; a suite without figures, since the time goes into drawing."""
    results = Path(__file__).parents[2] / "results" / "mini-wikitext-2" / "records.jsonl"
    chosen = ("--suites", "step-film", "--data", "wikitext-2-v1")
    return ["report", str(results), *chosen, "--out", str(place / "report")]


# A report writes what it read; there is nothing in its folder that it relies on, and the short form leaves it out.
TARGETS = {target.__name__: target for target in (train, suite, export, *([report] if KILLS > 10 else []))}


def content(path: Path) -> object:
    """What a file says, without times."""
    if path.name == "metrics.jsonl":
        rows = map(json.loads, path.read_text().splitlines())
        return [{name: value for name, value in row.items() if name not in ALIKE} for row in rows]
    if path.name == "records.jsonl":
        assert len(path.read_text().splitlines()) == len(read_records([path])), "a record is there twice"
        return {record.key: dict(record.metrics) for record in read_records([path])}
    return file_hash(path)


def outcome(place: Path) -> dict[str, object]:
    """All that a command left behind. Locks are empty and stay; anything else unexpected makes a difference."""
    files = (path for path in place.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != ".lock")
    return {str(path.relative_to(place)): content(path) for path in files}


@dataclass
class Bench:
    """A target, what it should leave behind, and how many writes and seconds that takes."""

    commands: Commands
    argv: list[str]
    place: Path
    wanted: dict[str, object]
    writes: int
    seconds: float
    bytes: int

    def meet(self, **fault: object) -> dict:
        done = self.commands.run(self.argv, self.place, **fault)
        assert done["code"] != LEAKED, done["err"]
        assert "Traceback" not in done["err"], done["err"]
        return done

    def finish(self) -> None:
        """Give the command again, undisturbed; it must end as it would have without all that went before."""
        done = self.again()
        assert done["code"] == 0, done["err"]
        self.compare()

    def again(self) -> dict:
        if self.argv[0] == "export":
            shutil.rmtree(self.place / "out", ignore_errors=True)  # an export never writes into a finished one
        return self.meet()

    def compare(self, apart: tuple[str, ...] = ()) -> None:
        """`apart` names folders that may look different."""
        found = outcome(self.place)
        for name in {*found, *self.wanted}:
            if not any(folder in name for folder in apart):
                assert found.get(name) == self.wanted.get(name), f"{name} differs"
        self.clear()

    def clear(self) -> None:
        for path in self.place.iterdir():
            shutil.rmtree(path)


@pytest.fixture(autouse=True)
def _clear(bench):
    """What a failed test left behind is not the next one's."""
    bench.clear()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    run(write_corpus(folder / "corpus", words=6000), folder / "run", steps=3)
    return folder


@pytest.fixture(scope="module")
def commands():
    server = Commands()
    yield server
    server.close()


@pytest.fixture(scope="module", params=TARGETS)
def bench(request, base, commands, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    argv = TARGETS[request.param](base, place)
    done = commands.run(argv, place)
    assert done["code"] == 0, done["err"]
    size = sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())
    found = Bench(commands, argv, place, outcome(place), done["writes"], done["seconds"], size)
    assert found.writes > 5
    found.clear()
    return found


# In the short form a suite, which takes seconds each time, is only killed.
WRITERS = pytest.mark.parametrize("bench", ["train", "export", *(["suite"] if KILLS > 10 else [])], indirect=True)


def spread(count: int) -> list[int]:
    """Up to KILLS writes out of `count`, the first and the last among them."""
    return sorted({1 + round(place * (count - 1) / max(1, KILLS - 1)) for place in range(min(count, KILLS))})


def test_killed_before_each_write(bench):
    for at in spread(bench.writes):
        assert bench.meet(kind="die", at=at)["code"] == -signal.SIGKILL
        bench.finish()


@WRITERS
def test_killed_again_and_again_at_random_moments(bench):
    draw, killed = random.Random(KILLS), 0
    while killed < KILLS:
        if draw.random() < 0.5:
            fault = {"kind": "late", "seconds": draw.uniform(0, bench.seconds)}
        else:
            fault = {"kind": "die", "at": draw.randint(1, bench.writes)}
        done = bench.meet(**fault)
        killed += done["code"] == -signal.SIGKILL
        assert done["code"] in (0, -signal.SIGKILL) or bench.argv[0] == "export", done["err"]
        if done["code"] == 0:
            assert outcome(bench.place) == bench.wanted
            bench.clear()
    bench.finish()


@WRITERS
def test_no_space_left_at_any_moment(bench):
    for at in spread(bench.writes):
        done = bench.meet(kind="full", at=at)
        if done["code"]:
            assert done["code"] in (1, 2)
            assert "No space left" in done["err"].strip().splitlines()[-1], done["err"]
        bench.finish()


@contextlib.contextmanager
def mounted(place: Path, size: int):
    """A disk of its own, mounted over a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield lambda change: subprocess.run(["mount", "-o", f"remount,{change}", str(place)], check=True)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def complaint(done: dict, words: str) -> None:
    """The command failed, and said why in its last line."""
    assert done["code"] in (1, 2), done
    assert words in done["err"].strip().splitlines()[-1], done["err"]


@WRITERS
def test_a_disk_that_is_full(bench):
    """For real, not only where a file is begun."""
    for part in range(1, KILLS):
        with mounted(bench.place, bench.bytes * part // KILLS) as remount:
            complaint(bench.meet(), "No space left")
            remount(f"size={4 * bench.bytes + (1 << 20)}")
            bench.finish()


@WRITERS
def test_a_disk_that_cannot_be_written(bench):
    with mounted(bench.place, 4 * bench.bytes + (1 << 20)) as remount:
        for at in (0, bench.writes // 2):
            if at:
                bench.meet(kind="die", at=at)
            remount("ro")
            complaint(bench.meet(), "Read-only file system")
            remount("rw")
            bench.finish()


@WRITERS
def test_a_file_that_is_gone(bench, tmp_path):
    """Deleted half-way or afterwards: made again, or missed in one clear line.

    A checkpoint that lost a file is set aside as damaged; a finished run misses neither those nor its tokens, and the
    log of its training cannot be had again.
    """
    for at in (bench.writes * 2 // 3, 0):
        bench.meet(**({"kind": "die", "at": at} if at else {}))
        saved = shutil.copytree(bench.place, tmp_path / f"before-{at}")
        files = sorted(path.relative_to(saved) for path in saved.rglob("*") if path.is_file() and path.name != ".lock")
        for name in [files[place - 1] for place in spread(len(files))]:
            bench.clear()
            shutil.copytree(saved, bench.place, dirs_exist_ok=True)
            (bench.place / name).unlink()
            done = bench.again()
            if done["code"]:
                assert name.name == "config.json", f"{name}: {done['err']}"
                assert name.name in done["err"]
            else:
                bench.compare(apart=("checkpoints/", "cache/", "metrics.jsonl"))
        bench.clear()


@WRITERS
def test_clocks_that_jump_change_nothing(bench):
    for seed in range(max(1, KILLS // 3)):
        done = bench.meet(kind="clock", seed=seed)
        assert done["code"] == 0, done["err"]
        bench.finish()
