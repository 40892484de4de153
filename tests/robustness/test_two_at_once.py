"""Several processes at one place: no corruption, no work done twice, and a clear line for whoever has to give way."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import pytest

from forked import Forked, scse, start
from runs import command, run, write_corpus
from scse.errors import UserError
from scse.records import read_records
from scse.runs import open_run


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    run(write_corpus(folder / "corpus", words=6000), folder / "run", steps=3)
    return folder


def ended(process: Forked) -> tuple[int, str]:
    _, said = process.communicate()
    assert "Traceback" not in said
    return process.returncode, said


def test_two_trainers_begin_at_the_same_moment(base, tmp_path):
    """One trains, the other is told who does; together they leave one whole run."""
    argv = command(base / "corpus", tmp_path / "run", "--quiet", steps=40)
    results = sorted(ended(process) for process in [start(argv) for _ in range(2)])
    codes = [code for code, _ in results]
    assert codes in ([0, 2], [0, 0]), results
    if codes == [0, 2]:
        assert re.search(r"in use by another trainer \(process \d+\)", results[1][1])
    steps = [json.loads(row)["step"] for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 40
    assert open_run(tmp_path / "run").step == 40


def test_two_exports_into_one_folder(base, tmp_path):
    argv = ["export", str(base / "run"), str(tmp_path / "out"), "--cache-dir", str(base / "cache"), "--quiet"]
    results = sorted(ended(process) for process in [start(argv) for _ in range(2)])
    assert [code for code, _ in results] == [0, 2], results
    assert re.search("already exists|in the meantime", results[1][1])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_can_be_read_while_it_is_trained(base, tmp_path, caplog):
    """With a checkpoint at every step and only one kept, the one being read is gone a moment later."""
    every = ("--checkpoint-every", "1", "--eval-every", "1000", "--keep", "1", "--quiet")
    trainer = start(command(base / "corpus", tmp_path / "run", *every, steps=60))
    seen = set()
    with caplog.at_level(logging.WARNING, "scse"):
        while trainer.poll() is None:
            try:
                seen.add(open_run(tmp_path / "run").step)
            except UserError as early:
                assert re.search(r"no run in|cannot read .*tokenizer\.json|no usable checkpoint yet", str(early))  # noqa: PT017
    assert ended(trainer)[0] == 0
    assert len(seen) > 3
    assert "damaged" not in caplog.text


def test_a_report_while_a_suite_runs(base, tmp_path):
    """Every page is whole, and says of each number either what is recorded or that it is missing."""
    where = ("--data", str(base / "corpus"), "--cache-dir", str(tmp_path / "cache"), "--runs", str(tmp_path / "runs"))
    size = ("--seeds", "0", "--steps", "2", "--limit", "1")
    suite = start(["suite", "run", "anchor-design", *where, *size, "--only", "scse,scse-initial", "--json"])
    pages = []
    (tmp_path / "runs").mkdir(exist_ok=True)
    argv = ["report", str(tmp_path / "runs"), "--suites", "anchor-design", "--data", str(base / "corpus")]
    argv += ["--steps", "2", "--limit", "1", "--out", str(tmp_path / "report"), "--json"]
    while suite.poll() is None or not pages:
        done = scse(argv)
        if not pages and "there are no records" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr
        assert "unfinished" not in done.stderr
        pages.append((tmp_path / "report" / "index.html").read_text())
        assert pages[-1].rstrip().endswith("</html>")
        time.sleep(0.1)
    assert ended(suite)[0] == 0
    files = sorted((tmp_path / "runs").glob("*/seed*/records.jsonl"))
    lines = sum(len(Path(path).read_text().splitlines()) for path in files)
    assert lines == len(read_records(files)) == 2 * 7
