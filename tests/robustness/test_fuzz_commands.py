"""Bad command lines at scale: the exit code is 0, 1 or 2, and a mistake is one line that says what to do."""

from __future__ import annotations

import argparse
import io
import logging
import os
from contextlib import redirect_stderr, redirect_stdout

import pytest
from fuzzing import CASES, many, within_bounds
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import run, write_corpus
from scse.cli import COMMANDS, command_module, main

LONG = {
    "train": ["scse.training.trainer.train"],
    "suite": ["scse.suites.runner.run_jobs"],
    "demo": ["scse.demo.run_demo"],
    "lens": ["scse.lens.serve.Server.run"],
    "serve": ["scse.serve.server.Server.run"],
    "load-test": ["scse.serve.load.run_load"],
    "bench": [
        "scse.bench.training.StepBench.__init__",
        "scse.bench.generation.DecodingBench.__init__",
        "scse.bench.serving.ServingBench.__init__",
    ],
}


def options_of(command: str) -> list[str]:
    parser = argparse.ArgumentParser()
    command_module(command).add_arguments(parser)
    return [word for action in parser._actions for word in action.option_strings]


OPTIONS = {command: options_of(command) for command in COMMANDS}
VALUES = st.sampled_from([
    "8", "1,2", "-1", "0", "scse", "mini", "22m", "lr=x", "lr=1e-3", "nowhere", "1e400", "nan", "=", "", "plan", "run",
    "list", "status", "ablations", "all", "stdlib", "paper", "0.5", "1e9", "9999999999999999999", "scse,looped",
    "looped", "update", "exact", "last-2", "gpt2", "../..", "/", "~nobody/x", "\x00", "é", "a b", "--", "cluster=local",
])  # fmt: skip


@pytest.fixture(autouse=True)
def _bounded(monkeypatch):
    """Work that takes long is replaced by its beginning: what is tested is everything before it."""
    for names in LONG.values():
        for name in names:
            monkeypatch.setattr(name, started)
    with within_bounds():
        yield


class Started(Exception):
    pass


def started(*args, **kwargs):
    raise Started


def check(argv: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    logging.getLogger("scse").setLevel(logging.ERROR)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(argv)
        except Started:
            code = 0
        except SystemExit as leaving:  # argparse, after --help
            code = int(leaving.code or 0)
    assert code in (0, 1, 2)
    if code:
        last = err.getvalue().strip().splitlines()[-1]
        assert last.startswith("scse: "), err.getvalue()
        assert "Traceback" not in err.getvalue()


@st.composite
def command_lines(draw):
    """Options with a value behind them or not, and words in between."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    option, value = st.sampled_from(OPTIONS[command]), VALUES | st.text(max_size=6)
    parts = draw(st.lists(st.tuples(option, value) | st.tuples(option) | st.tuples(value), max_size=5))
    return [command, *(word for part in parts for word in part)]


@many
@given(argv=command_lines() | st.lists(st.text(max_size=6), max_size=3))
def test_command_lines(tmp_path_factory, argv):
    os.chdir(tmp_path_factory.mktemp("case"))
    check(argv)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    run(write_corpus(folder / "corpus", words=1200), folder / "run", steps=3)
    return folder


ON_A_RUN = ("eval", "adaptive", "pareto", "diagnose", "theory", "generate", "export", "lens", "serve")
# Sizes that end soon: a depth of a billion is a correct request.
SMALL = st.sampled_from([
    "1", "2", "3", "1,2", "2,1", "1,1", "0", "-1", "0.5", "nan", "inf", "1e-9", "x", "", "test", "train", "validation",
    "update", "relative", "kl", "exact", "shared", "last-2", "last-0", "example", "token", "online", "here.png", "0,1",
])  # fmt: skip


@st.composite
def lines_on_a_run(draw):
    command = draw(st.sampled_from(ON_A_RUN))
    option = st.sampled_from([word for word in OPTIONS[command] if word not in ("-h", "--help")])
    parts = draw(st.lists(st.tuples(option, SMALL | st.text(max_size=4)) | st.tuples(option), max_size=4))
    return command, [word for part in parts for word in part]


@settings(many, max_examples=max(10, CASES // 4))  # each does some work
@given(line=lines_on_a_run())
def test_commands_on_a_run(base, tmp_path_factory, line):
    """With a run that is really there, the words after it get as far as the work itself."""
    os.chdir(tmp_path_factory.mktemp("case"))
    command, words = line
    folders = ["--cache-dir", str(base / "cache")] if "--cache-dir" in OPTIONS[command] else []
    limit = ["--limit", "1"] if "--limit" in OPTIONS[command] else []
    where = ["out"] if command == "export" else []
    check([command, str(base / "run"), *where, *folders, *limit, *words])
