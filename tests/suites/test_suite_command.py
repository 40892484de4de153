"""Suites at toy size through the installed command: planned, run, disturbed, continued, shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from toysuites import SMALLER, SUITE, line

import forked
from runs import SCSE
from scse.records import read_records


def scse(place: Path, action: str, *names: str, code: int = 0, extra: tuple[str, ...] = SMALLER, **options: object):
    done = forked.scse([*line(place, action, *names, **options)[1:], *extra])
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def numbers(runs: Path) -> dict[str, dict[str, float]]:
    """{identity: metrics} of everything under a folder of runs."""
    return {record.key: dict(record.metrics) for record in read_records(sorted(runs.glob("*/seed*/records.jsonl")))}


def lines_of_records(runs: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in runs.glob("*/seed*/records.jsonl"))


@pytest.fixture(scope="module")
def undisturbed(place):
    """The suite run from beginning to end, with nothing in its way."""
    assert scse(place, "run", runs="undisturbed") == {
        "runs": 2,
        "done": 2,
        "finished": True,
        "failures": {},
        "not_available": [],
    }
    return numbers(place / "undisturbed")


def test_plan_run_and_status(place, undisturbed):
    plan = scse(place, "plan")
    assert [(row["step"], row["steps"], row["evaluated"], row["evaluations"]) for row in plan["members"]] == [
        (0, 4, 0, 3),
        (0, 4, 0, 3),
    ]
    assert plan["total"]["runs"] == 2
    assert plan["total"]["flops"] > 1e7
    assert not (place / "runs").exists(), "planning writes nothing"

    done = scse(place, "plan", runs="undisturbed")
    assert done["total"]["trained"] == 2
    assert done["total"]["flops"] == 0
    assert {row["speed"] for row in done["members"]} == {"measured"}
    rows = scse(place, "status", runs="undisturbed")["rows"]
    assert [(row["row"], row["trained"], row["evaluated"], row["state"]) for row in rows] == [
        ("scse", "1 of 1", "3 of 3", "complete"),
        ("scse-initial", "1 of 1", "3 of 3", "complete"),
    ]
    initial = {metrics["ppl"] for key, metrics in undisturbed.items()}
    assert len(undisturbed) == 14, "the standard depths of each run"
    assert len(initial) == 8, "the initial anchor gives one perplexity at all depths"


def test_a_second_run_does_nothing_more(place, undisturbed):
    before = lines_of_records(place / "undisturbed")
    scse(place, "run", runs="undisturbed")
    assert lines_of_records(place / "undisturbed") == before


def test_a_suite_that_shares_the_run_trains_nothing(place, undisturbed):
    found = scse(place, "status", "strong_followup", runs="undisturbed", only="scse")["rows"]
    assert [(row["trained"], row["evaluated"]) for row in found] == [("1 of 1", "4 of 4")]


@pytest.fixture
def begin():
    """Start a command; what a failed test leaves running is ended."""
    begun = []

    def start(arguments, **how):
        begun.append(forked.start(arguments, **how))
        return begun[-1]

    yield start
    for process in begun:
        if process.poll() is None:
            process.terminate()  # and with it its workers
            process.communicate()


def wait_for(condition, process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, "it ended before"
        time.sleep(0.05)


# `scse` that says when it trains the second member, and goes on when told to.
HALF_WAY = """
import sys
from scse.cli import main
from scse.training.trainer import Trainer

def step(self, at, meter):
    if self.config.model.family == "scse-initial" and at == 1:
        print("half way", flush=True)
        sys.stdin.readline()
    return original(self, at, meter)

original, Trainer._step = Trainer._step, step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_stopped_half_way_and_run_again(place, undisturbed, begin, number):
    runs = f"stopped-{number.name}"
    command = ["-c", HALF_WAY, *line(place, "run", runs=runs)[1:], *SMALLER]
    process = begin(command, python=True, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == "half way\n"
    process.send_signal(number)
    printed, _ = process.communicate("go on\n" if number is signal.SIGTERM else None)
    first = numbers(place / runs)
    assert len(first) == 7
    if number is signal.SIGTERM:
        assert process.returncode == 0
        assert json.loads(printed)["finished"] is False
    scse(place, "run", runs=runs)
    assert numbers(place / runs) == undisturbed
    assert lines_of_records(place / runs) == len(undisturbed), "nothing was evaluated twice"
    if number is signal.SIGKILL:
        assert_reported(place, runs)


def assert_reported(place: Path, runs: str) -> None:
    """The report of a suite shows its numbers."""
    out = place / f"report-{runs}"
    size = ["--data", str(place / "corpus"), "--steps", "4", "--limit", "2", "--suites", SUITE, *SMALLER]
    assert forked.scse(["report", place / runs, *size, "--out", out]).returncode == 0
    page = (out / "index.html").read_text()
    for record in read_records(sorted((place / runs).glob("*/seed*/records.jsonl"))):
        if record.depth in (8, 24, 48):
            assert f"{record.metrics['ppl']:.2f}" in page


def test_sigterm_is_told_plainly(place, begin):
    command = [part for part in [*line(place, "run", runs="told", steps=4000)[1:], *SMALLER] if part != "--json"]
    process = begin(command, stderr=subprocess.DEVNULL)
    wait_for(lambda: any((place / "told").glob("*/seed0/metrics.jsonl")), process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    assert process.returncode == 0
    assert "stopped and saved; the same command continues" in printed
    (checkpoint,) = (place / "told").glob("*/seed0/checkpoints/step-*")
    assert 0 < int(checkpoint.name[5:]) < 4000


def test_two_at_once_share_the_work(place, undisturbed, begin):
    pair = [begin([*line(place, "run", runs="shared")[1:], *SMALLER], stderr=subprocess.PIPE) for _ in range(2)]
    for process in pair:
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
        assert json.loads(printed)["done"] == 2
    assert numbers(place / "shared") == undisturbed
    assert lines_of_records(place / "shared") == len(undisturbed), "no evaluation was made twice"


# `scse` whose workers are forked off it. Those of a real run are started anew, and loading torch is most of their time.
FORKED_WORKERS = """
import sys
from multiprocessing import get_context
from scse.cli import main
from scse.suites import runner

runner.get_context = lambda method: get_context("fork")
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("how", [{}, {"processes": 2}], ids=["one process", "two processes"])
def test_a_failed_member_does_not_stop_the_others(place, undisturbed, how):
    """And once what was in its way is gone, however many processes there are, the records are the same."""
    runs = f"failing-{len(how)}"
    broken = (
        place
        / runs
        / next(
            row["run"] for row in scse(place, "plan", runs=runs)["members"] if not row["run"].startswith("scse-initial")
        )
    )
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    done = forked.scse(["-c", FORKED_WORKERS, *line(place, "run", runs=runs, **how)[1:], *SMALLER], python=True)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["done"] == 1
    ((name, reason),) = found["failures"].items()
    assert broken == place / runs / name
    assert "format" in reason
    states = {row["row"]: row["state"] for row in scse(place, "status", runs=runs)["rows"]}
    assert states == {"scse": "missing", "scse-initial": "complete"}
    (broken / "config.json").unlink()
    assert scse(place, "run", runs=runs, **how)["done"] == 2
    assert numbers(place / runs) == undisturbed


def test_a_killed_worker_is_one_failed_member(place, begin):
    runs = place / "killed"
    command = ["-c", FORKED_WORKERS, *line(place, "run", runs="killed", steps=4000, processes=2)[1:], *SMALLER]
    parent = begin(command, python=True, stderr=subprocess.PIPE)
    wait_for(lambda: len(list(runs.glob("*/seed0/metrics.jsonl"))) == 2, parent)
    (initial,) = runs.glob("scse-initial-*/seed0")
    os.kill(int((initial / ".lock").read_text()), signal.SIGKILL)
    assert "its process ended with code -9" in parent.stderr.readline()
    parent.send_signal(signal.SIGTERM)
    printed, _ = parent.communicate()
    assert parent.returncode == 1
    assert list(json.loads(printed)["failures"]) == [f"{initial.parent.name}/seed0"]
    assert len(list(runs.glob("*/seed0/checkpoints/step-*"))) == 1, "the other worker saved before it stopped"


# `scse` for which a mean of 16 loops is out of reach.
OUT_OF_REACH = """
import sys
import numpy as np
from scse.cli import main
from scse.evaluation import budgets
from scse.evaluation.calibration import UnreachableBudget

def calibrate(statistics, budget):
    if budget == 16:
        raise UnreachableBudget("no threshold gives a mean of 16 loops")
    return float(np.median(statistics))

budgets.calibrate = calibrate
sys.exit(main(sys.argv[1:]))
"""


def test_a_budget_out_of_reach_leaves_the_other_numbers_alone(place):
    options = {"runs": "adaptive", "only": "scse", "limit": 1}
    arguments = [*line(place, "run", "adaptive-22m", **options)[1:], *SMALLER]
    done = forked.scse(["-c", OUT_OF_REACH, *arguments], python=True)
    assert done.returncode == 1, done.stderr
    (reason,) = json.loads(done.stdout)["failures"].values()
    assert reason == "adaptive on corpus: no threshold gives a mean of 16 loops"
    (row,) = scse(place, "status", "adaptive-22m", **options)["rows"]
    assert row["evaluated"] == "6 of 8"


def test_a_finished_run_of_other_settings_is_refused(place, undisturbed):
    (folder,) = (place / "undisturbed").glob("scse-initial-*")
    (other,) = set((place / "undisturbed").glob("scse-*")) - {folder}
    (place / "mixed").mkdir()
    os.symlink(folder, place / "mixed" / other.name)
    found = scse(place, "run", runs="mixed", only="scse", code=1)
    assert "was started with other settings (model.family: scse-initial → scse" in next(
        iter(found["failures"].values())
    )


def test_columns_without_text_are_named_and_left_empty(place, monkeypatch):
    monkeypatch.delenv("SCSE_DATA", raising=False)
    options = {"runs": "nothing", "only": "scse-22m"}
    absent = scse(place, "status", "transfer", "lambada", **options)["not_available"]
    assert absent[:2] == ["transfer: C4 T=8", "transfer: C4 T=48"]
    assert [name for name in absent[2:] if not name.startswith("lambada: ")] == []
    assert len(absent) == 11


@pytest.mark.parametrize(
    ("action", "names", "options", "message"),
    [
        ("run", ["ablation"], {}, "unknown suite 'ablation'; did you mean 'ablations'"),
        ("runs", [SUITE], {}, "unknown action 'runs'; did you mean 'run'"),
        ("plan", [SUITE], {"only": "scsee"}, "unknown arm 'scsee'; did you mean 'scse'"),
        ("plan", [SUITE], {"preset": "minni"}, "unknown preset 'minni'; did you mean 'mini'"),
        ("plan", [SUITE], {"depths": "9"}, "no column has depth 9 (depths: 8, 24, 48)"),
        ("plan", [SUITE], {"seeds": "7"}, "no row has a seed of [7] (seeds: 0, 1, 2, 3, 4)"),
        ("plan", [SUITE], {"seeds": "one"}, "expected whole numbers"),
        (
            "plan",
            [SUITE, "strong_followup"],
            {"only": "scse-initial", "depths": "16"},
            "both these rows and these depths",
        ),
        ("run", [SUITE], {"data": "wikitext-2v1"}, "unknown corpus 'wikitext-2v1'; did you mean 'wikitext-2-v1'"),
        ("plan", [SUITE], {"data": "no/such/text"}, "there is no file or folder no/such/text"),
        ("run", [SUITE], {"steps": "0"}, "--steps must be at least 1"),
        ("run", [SUITE], {"processes": "0"}, "--processes must be at least 1"),
        ("run", [SUITE], {"slurm_set": "partition"}, "takes name=value"),
    ],
    ids=str,
)
def test_mistakes_are_answered_with_one_line(place, action, names, options, message):
    extra = ("--slurm",) if "slurm_set" in options else SMALLER
    said = scse(place, action, *names, code=2, extra=extra, runs="mistakes", **options)
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (place / "mistakes").exists()


def test_a_suite_must_be_named(place):
    done = subprocess.run([SCSE, "suite", "run"], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "name a suite" in done.stderr


def test_narrowing_by_depth_evaluates_only_that_depth(place):
    scse(place, "run", runs="narrow", only="scse", depths="8")
    depths = {record.depth for record in read_records(sorted((place / "narrow").glob("*/seed*/records.jsonl")))}
    assert depths == {8}


def test_all_suites_can_be_planned_at_both_sizes(place):
    for preset in ("mini", "paper"):
        plan = scse(place, "plan", "all", only=None, seeds=None, steps=None, limit=None, preset=preset, runs="none")
        assert plan["total"]["trained"] == 0
        assert plan["total"]["runs"] > 100
