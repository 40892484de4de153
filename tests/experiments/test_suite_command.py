"""Suites at toy size through the installed command: planned, run, disturbed, continued, shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from runs import SCSE, run, write_corpus
from scse.cli import main
from scse.cli.suite import duration
from scse.evaluation.runs import open_run
from scse.experiments import runner, work
from scse.experiments.records import read_records
from scse.experiments.runner import Resumable, run_jobs
from scse.experiments.suite import Column
from scse.experiments.suites import SUITES
from scse.experiments.tasks import TASKS, Text
from scse.experiments.work import Outcome, Result

SUITE = "add-anchor-design"
ARMS = ("scse", "scse-initial")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suites")
    write_corpus(folder / "corpus", words=12_000)
    return folder


def line(place: Path, action: str, *names: str, runs: str = "runs", **options: object) -> list[str]:
    chosen = {"data": place / "corpus", "cache-dir": place / "cache", "runs": place / runs}
    chosen |= {"only": ",".join(ARMS), "seeds": "0", "steps": 4, "limit": 2}
    chosen |= {name.replace("_", "-"): value for name, value in options.items()}
    flags = [part for name, value in chosen.items() if value is not None for part in (f"--{name}", str(value))]
    return [str(SCSE), "suite", action, *(names or (SUITE,)), *flags, "--json"]


def scse(place: Path, action: str, *names: str, code: int = 0, extra: tuple[str, ...] = (), **options: object):
    done = subprocess.run(
        [*line(place, action, *names, **options), *extra], capture_output=True, text=True, timeout=180, check=False
    )
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
    assert plan["total"]["flops"] > 1e9
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


def wait_for(condition, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_stopped_half_way_and_run_again(place, undisturbed, number):
    runs = f"stopped-{number.name}"
    # The second member is training: the first has been evaluated.
    started = lambda: any((place / runs).glob("scse-initial-*/seed0/metrics.jsonl"))  # noqa: E731
    process = subprocess.Popen(
        line(place, "run", runs=runs), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    wait_for(started)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
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
    size = ["--data", str(place / "corpus"), "--steps", "4", "--limit", "2", "--suites", SUITE]
    subprocess.run([SCSE, "report", place / runs, *size, "--out", out], check=True, capture_output=True, timeout=120)
    page = (out / "index.html").read_text()
    for record in read_records(sorted((place / runs).glob("*/seed*/records.jsonl"))):
        if record.depth in (8, 24, 48):
            assert f"{record.metrics['ppl']:.2f}" in page


def test_sigterm_is_told_plainly(place):
    command = [part for part in line(place, "run", runs="told", steps=4000) if part != "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    wait_for(lambda: any((place / "told").glob("*/seed0/metrics.jsonl")))
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped and saved; the same command continues" in printed
    (checkpoint,) = (place / "told").glob("*/seed0/checkpoints/step-*")
    assert 0 < int(checkpoint.name[5:]) < 4000


def test_two_at_once_share_the_work(place, undisturbed):
    commands = [line(place, "run", runs="shared") for _ in range(2)]
    pair = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    for process in pair:
        printed, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
        assert json.loads(printed)["done"] == 2
    assert numbers(place / "shared") == undisturbed
    assert lines_of_records(place / "shared") == len(undisturbed), "no evaluation was made twice"


def test_several_processes_leave_the_same_records(place, undisturbed):
    assert scse(place, "run", runs="parallel", processes=2)["done"] == 2
    assert numbers(place / "parallel") == undisturbed


def test_submitit_leaves_the_same_records(place, undisturbed):
    pytest.importorskip("submitit")
    extra = ("--slurm", "--slurm-set", "cluster=local", "--slurm-set", "timeout_min=5")
    assert scse(place, "run", runs="submitted", extra=extra)["done"] == 2
    assert numbers(place / "submitted") == undisturbed


@pytest.mark.parametrize("how", [{}, {"processes": 2}], ids=["one process", "two processes"])
def test_a_failed_member_does_not_stop_the_others(place, how):
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
    found = scse(place, "run", runs=runs, code=1, **how)
    assert found["done"] == 1
    ((name, reason),) = found["failures"].items()
    assert broken == place / runs / name
    assert "format" in reason
    states = {row["row"]: row["state"] for row in scse(place, "status", runs=runs)["rows"]}
    assert states == {"scse": "missing", "scse-initial": "complete"}


def test_a_killed_worker_is_one_failed_member(place):
    runs = place / "killed"
    command = line(place, "run", runs="killed", steps=4000, processes=2)
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(runs.glob("*/seed0/metrics.jsonl"))) == 2)
    (initial,) = runs.glob("scse-initial-*/seed0")
    os.kill(int((initial / ".lock").read_text()), signal.SIGKILL)
    assert "its process ended with code -9" in parent.stderr.readline()
    parent.send_signal(signal.SIGTERM)
    printed, _ = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert list(json.loads(printed)["failures"]) == [f"{initial.parent.name}/seed0"]
    assert len(list(runs.glob("*/seed0/checkpoints/step-*"))) == 1, "the other worker saved before it stopped"


def test_an_evaluation_that_fails_leaves_the_others_alone(place):
    """Two windows have too few exits to calibrate on; the fixed depths are evaluated all the same."""
    found = scse(place, "run", "adaptive_wt103", runs="adaptive", only="scse", code=1, limit=1)
    assert "adaptive on" in next(iter(found["failures"].values()))
    (row,) = scse(place, "status", "adaptive_wt103", runs="adaptive", only="scse", limit=1)["rows"]
    assert row["evaluated"] == "2 of 5"


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
    absent = scse(place, "status", "heldout_transfer", "lambada", **options)["not_available"]
    assert absent[:2] == ["heldout_transfer: C4 T=8", "heldout_transfer: C4 T=48"]
    assert [name for name in absent[2:] if not name.startswith("lambada: ")] == []
    assert len(absent) == 8


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
    extra = ("--slurm",) if "slurm_set" in options else ()
    said = scse(place, action, *names, code=2, extra=extra, runs="mistakes", **options)
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (place / "mistakes").exists()


def test_a_suite_must_be_named(place):
    done = subprocess.run([SCSE, "suite", "run"], capture_output=True, text=True, timeout=60, check=False)
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


@pytest.fixture
def known_speed(monkeypatch):
    """A machine that multiplies at 2 TFLOP/s, of which training is taken to reach half."""
    monkeypatch.setattr("scse.experiments.cost.matmul_rate", lambda *_: 2e12)


def table(printed: str) -> list[list[str]]:
    """The cells of a printed table, the head first."""
    lines = [line.replace("┃", "│") for line in printed.splitlines()]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


def in_process(place: Path, action: str, *names: str, **options: object) -> int:
    return main(line(place, action, *names, **options)[1:-1])


def test_the_list_names_every_suite_with_its_size(capsys):
    assert main(["suite", "list"]) == 0
    head, *rows = table(capsys.readouterr().out)
    assert head == ["suite", "rows", "runs", "title"]
    assert [row[0] for row in rows] == list(SUITES)
    assert [SUITE, "4", "14"] in [row[:3] for row in rows]


def test_the_plan_and_the_status_are_tables_for_people(place, known_speed, capsys, monkeypatch):
    monkeypatch.delenv("SCSE_DATA", raising=False)
    chosen = {"only": "scse-22m", "seeds": "0,1", "runs": "unplanned", "steps": 4000}
    assert in_process(place, "plan", "heldout_transfer", **chosen) == 0
    printed = capsys.readouterr().out
    head, first, second = table(printed)
    assert head == ["run", "row", "step", "steps", "evaluated", "evaluations", "flops", "seconds", "speed"]
    assert [first[i] for i in (1, 2, 3, 4, 5, 8)] == ["scse-22m", "0", "4,000", "0", "2", "estimated"]
    assert (first[0][-5:], second[0][-5:]) == ("seed0", "seed1")
    assert first[6].endswith("e+13")
    assert float(first[7].removesuffix(" s")) == pytest.approx(float(first[6]) / 1e12, abs=1)
    assert "2 runs, 0 of them trained; " in printed
    absent = "not available at this size, or not at hand: heldout_transfer: C4 T=8, heldout_transfer: C4 T=48\n"
    assert printed.endswith(absent)

    assert in_process(place, "status", "heldout_transfer", **chosen) == 0
    printed = capsys.readouterr().out
    assert table(printed) == [
        ["suite", "row", "seeds", "trained", "evaluated", "state"],
        ["heldout_transfer", "scse-22m", "0,1", "0 of 2", "0 of 4", "missing"],
    ]
    assert printed.endswith(absent)


def test_the_status_leaves_out_rows_without_the_seeds_asked_for(place, capsys):
    rows = {"only": "looped-50m,scse-50m", "seeds": "4", "runs": "unplanned"}
    assert in_process(place, "status", "stepcond_wt103", **rows) == 0
    assert [row[1] for row in table(capsys.readouterr().out)[1:]] == ["scse-50m"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40, "40 s"), (119, "119 s"), (120, "2 min"), (7_199, "120 min"), (12_600, "3.5 h"), (172_800, "2.0 d")],
)
def test_durations_are_in_the_unit_that_people_use(seconds, text):
    assert duration(seconds) == text


def test_a_plan_follows_the_speed_of_whole_runs_and_passes_over_the_rest(tmp_path, known_speed, capsys):
    runs = tmp_path / "runs"
    arguments = ["suite", "plan", SUITE, "--runs", str(runs), "--only", "scse", "--seeds", "0", "--json"]

    def planned() -> tuple[str, int]:
        assert main(arguments) == 0
        (row,) = json.loads(capsys.readouterr().out)["members"]
        return row["speed"], row["seconds"]

    for name, content in {"empty": None, "damaged": "{"}.items():
        (runs / name / "seed0").mkdir(parents=True)
        if content is not None:
            (runs / name / "seed0" / "config.json").write_text(content)
            (runs / name / "seed0" / "metrics.jsonl").write_text("")
    estimated = planned()
    assert estimated[0] == "estimated"

    corpus = write_corpus(tmp_path / "corpus", words=4000)
    mini = {"width": 128, "heads": 4, "ff_width": 512, "context": 128, "tokenizer": "bpe-4096", "batch": 1, "steps": 1}
    run(corpus, runs / "whole" / "seed0", **mini)
    measured = planned()
    assert measured[0] == "measured"
    with (runs / "whole" / "seed0" / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 2, "seco')
    assert planned() == measured


def broken(*_):
    raise ZeroDivisionError("division by zero")


def test_a_fault_of_the_program_fails_the_members_and_is_told(place, monkeypatch, capsys, caplog):
    monkeypatch.setattr(work, "train", broken)
    assert in_process(place, "run", runs="faulty") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "0 of 2 runs are trained and evaluated"
    assert [text.split(": ", 2)[2] for text in printed[1:]] == ["ZeroDivisionError: division by zero"] * 2
    assert "failed unexpectedly" in caplog.text
    assert "in broken" in caplog.text, "with the place of the fault"


def test_a_suite_can_be_run_from_a_thread(place, monkeypatch, capsys):
    """Signals are the main thread's affair; the work is the same without them."""
    codes = []
    arguments = {"runs": "threaded", "only": "scse", "depths": "8"}
    thread = threading.Thread(target=lambda: codes.append(in_process(place, "run", **arguments)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert "1 of 1 runs are trained and evaluated" in capsys.readouterr().out


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """A trained run, and a passage of LAMBADA beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    run(write_corpus(folder / "corpus"), folder / "run", steps=1)
    (folder / "data" / "lambada").mkdir(parents=True)
    (folder / "data" / "lambada" / "test.jsonl").write_text('{"text": "the state moves from its anchor"}\n')
    return folder


@pytest.mark.parametrize(
    ("task", "depths"), [("completion", [4, 2]), ("steering", [5]), ("profile", [1, 2])], ids=lambda value: str(value)
)
def test_a_suite_gets_its_columns_from_one_evaluation(tiny_run, task, depths):
    columns = [Column(f"{task} {depth}", task, depth=depth) for depth in depths]
    text = Text(limit=1, data_dir=str(tiny_run / "data"), cache_dir=str(tiny_run / "cache"), show=False)
    found = TASKS[task](open_run(tiny_run / "run"), text, columns)
    assert [(record.identity["task"], record.depth) for record in found.records] == [(task, depth) for depth in depths]


def test_a_cluster_without_submitit_is_one_line(place, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main([*line(place, "run", runs="unsent")[1:], "--slurm"]) == 2
    assert capsys.readouterr().err == "scse: submitit is not installed; run: pip install 'scse[cluster]'\n"


@pytest.mark.parametrize("option", ["cluster=nowhere", "partition_of_no_such_name=1"])
def test_options_that_submitit_refuses_are_one_line(place, option, capsys):
    pytest.importorskip("submitit")
    settings = ["--slurm", "--slurm-set", "cluster=local", "--slurm-set", option]
    assert main([*line(place, "run", runs="unsent")[1:], *settings]) == 2
    said = capsys.readouterr().err
    assert said.startswith("scse: submitit refuses: ")
    assert said.count("\n") == 1


class Sent:
    """A job on a cluster, as submitit hands it back."""

    def __init__(self, end: Result | Exception | None) -> None:
        self.end, self.cancelled = end, False

    def done(self) -> bool:
        return self.end is not None

    def exception(self) -> Exception | None:
        return self.end if isinstance(self.end, Exception) else None

    def result(self) -> Result:
        assert isinstance(self.end, Result)
        return self.end

    def cancel(self, check: bool) -> None:
        self.cancelled = True


def test_a_cluster_job_that_fails_is_told_and_the_rest_is_cancelled_on_a_stop(tmp_path, monkeypatch):
    lost = Sent(RuntimeError("Job not requeued because:\nits node went down\n"))
    sent = [lost, Sent(Result(Outcome.STOPPED)), Sent(None)]
    waiting = iter(sent)

    class Executor:
        def __init__(self, folder: Path, cluster: str) -> None:
            assert cluster == "slurm"

        def update_parameters(self, **parameters: object) -> None:
            assert parameters == {"name": "scse", "slurm_partition": "small"}

        def submit(self, function: Resumable, job: object) -> Sent:
            return next(waiting)

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=Executor))
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)
    jobs = [SimpleNamespace(member=SimpleNamespace(name=name)) for name in ("lost", "stopped", "waiting")]
    results = run_jobs(jobs, runner.on_cluster(tmp_path, {"slurm_partition": "small"}))
    assert results == {"lost": Result(Outcome.FAILED, "its node went down"), "stopped": Result(Outcome.STOPPED)}
    assert [job.cancelled for job in sent] == [False, False, True]


def test_when_the_time_on_a_cluster_is_up_the_same_job_is_queued_again():
    pytest.importorskip("submitit")
    function, job = Resumable(), object()
    again = function.checkpoint(job)
    assert (again.function, again.args) == (function, (job,))
