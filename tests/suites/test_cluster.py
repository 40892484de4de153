"""Members on a stand-in for a cluster: sent, stopped, sent again, followed. `make test-cluster` has a real one."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import standin
from toysuites import SMALLER, line

import forked
from scse.cli import main
from scse.errors import UserError
from scse.records import read_records
from scse.runs.folder import locked
from scse.suites import cluster, runner, sending
from scse.suites.cluster import Coordinator, work_as_sent
from scse.suites.outcome import Outcome, Result
from scse.suites.presets import MINIATURES
from scse.suites.runner import share_of_devices
from scse.suites.sending import Sending, newest_sent, send, sent_here
from scse.suites.slurm import DEFAULTS, TERMINATED, Queued, Slurm, sbatch_options, sbatch_words

TOYPRESET = SMALLER[1]


class Cluster(Slurm):
    """What Slurm would say, decided by the test: `waiting` are the tasks in the queue, by member."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.submitted, self.cancelled, self.refusal = runs, [], [], ""
        self.states: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.silent = False

    def submit(self, words):
        if self.refusal:
            raise UserError(f"Slurm refuses: {self.refusal}")
        tasks = newest_sent(self.runs).values()
        self.submitted.append([task.member for task in tasks if Path(words[-1]).parent == task.folder.resolve()])
        self.waiting |= set(self.submitted[-1])
        return str(len(self.submitted))

    def queue(self):
        if self.silent:
            return None
        tasks = newest_sent(self.runs)
        return {tasks[name].key: Queued(name, "RUNNING", "") for name in self.waiting}

    def cancel(self, ids):
        self.cancelled += sorted(ids)

    def last_state(self, job):
        return self.states.get(job, "")

    def ends(self, name: str, outcome: Outcome | None, reason: str = "") -> None:
        """A member leaves the queue, with its result or without a word."""
        if outcome is not None:
            newest_sent(self.runs)[name].tell(Result(outcome, reason))
        self.waiting.discard(name)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_LOOKS", 0.0)
    return Cluster(tmp_path / "runs")


def begun(slurm: Cluster, *members: str, requeues: int = 2) -> Coordinator:
    coordinator = Coordinator(slurm.runs, Sending(["suite", "run", "x"], DEFAULTS, requeues=requeues), slurm)
    coordinator.begin(members)
    return coordinator


def test_a_stopped_member_is_sent_again_alone_and_only_so_often(slurm):
    coordinator = begun(slurm, "a", "b", requeues=2)
    for _ in range(2):
        slurm.ends("a", Outcome.STOPPED)
        assert list(coordinator._look()) == []
    assert slurm.submitted == [["a", "b"], ["a"], ["a"]]
    slurm.ends("a", Outcome.STOPPED)
    ((name, result),) = coordinator._look()
    assert (name, result.outcome) == ("a", Outcome.FAILED)
    assert "stopped 3 times" in result.reason
    slurm.ends("b", Outcome.DONE)
    assert list(coordinator.follow()) == [("b", Result(Outcome.DONE))]
    assert slurm.cancelled == []


def test_a_member_that_was_called_off_is_not_sent_again(slurm):
    coordinator = begun(slurm, "a")
    newest_sent(slurm.runs)["a"].call_off()
    slurm.ends("a", Outcome.STOPPED)
    ((_, result),) = coordinator._look()
    assert result.outcome is Outcome.FAILED
    assert "called off" in result.reason
    assert slurm.submitted == [["a"]]


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED", TERMINATED])
def test_a_member_that_could_not_speak_goes_on_if_it_was_taken_away(slurm, state):
    coordinator = begun(slurm, "a")
    assert list(coordinator._look()) == []
    slurm.states["a"] = state
    slurm.ends("a", None)
    for _ in range(cluster.LOOKS_FOR_A_RESULT):
        assert list(coordinator._look()) == []
    assert slurm.submitted == [["a"], ["a"]]


def test_a_killed_member_fails_alone_and_its_log_is_named(slurm):
    coordinator = begun(slurm, "a", "b")
    assert list(coordinator._look()) == []
    slurm.states["a"] = "OUT_OF_MEMORY"
    slurm.ends("a", None)
    found = [pair for _ in range(cluster.LOOKS_FOR_A_RESULT) for pair in coordinator._look()]
    ((name, result),) = found
    assert (name, result.outcome) == ("a", Outcome.FAILED)
    assert "OUT_OF_MEMORY" in result.reason
    assert str(slurm.runs / ".jobs" / "1" / "log-0.txt") in result.reason
    assert slurm.cancelled == []


def test_a_refusal_is_one_line_and_leaves_nothing(slurm):
    slurm.refusal = "invalid partition specified: nowhere"
    with pytest.raises(UserError, match="Slurm refuses: invalid partition"):
        begun(slurm, "a", "b")
    assert not slurm.runs.exists()


def test_a_refusal_to_send_again_concerns_that_member_alone(slurm):
    coordinator = begun(slurm, "a", "b")
    slurm.refusal = "the account is used up"
    slurm.ends("a", Outcome.STOPPED)
    ((name, result),) = coordinator._look()
    assert (name, result.outcome) == ("a", Outcome.FAILED)
    assert "the account is used up" in result.reason
    slurm.ends("b", Outcome.DONE)
    assert list(coordinator.follow()) == [("b", Result(Outcome.DONE))]


def test_a_second_coordinator_adopts_what_is_in_the_queue(slurm):
    begun(slurm, "a", "b")
    slurm.waiting.discard("b")
    second = Coordinator(slurm.runs, Sending([], DEFAULTS), slurm)
    assert second.begin(["a", "b", "c"]) == (1, 2)
    assert slurm.submitted == [["a", "b"], ["b", "c"]]
    second.cancel()
    assert slurm.cancelled == ["a", "b", "c"]


def test_a_controller_that_does_not_answer_is_waited_for(slurm, caplog):
    coordinator = begun(slurm, "a")
    slurm.silent = True
    slurm.ends("a", Outcome.DONE)
    assert list(coordinator._look()) == []
    slurm.silent = False
    assert list(coordinator._look()) == [("a", Result(Outcome.DONE))]
    slurm.silent = True
    with pytest.raises(UserError, match="does not answer"):
        begun(slurm, "b")


def test_options_of_sbatch():
    chosen = sbatch_options({"partition": "gpu", "gpus_per_node": "1", "nodelist": "n1,n2", "exclusive": "true"})
    assert sbatch_words(chosen | {"requeue": "false"}) == [
        "--time=240",
        "--signal=B:USR2@120",
        "--partition=gpu",
        "--gpus-per-node=1",
        "--nodelist=n1,n2",
        "--exclusive",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [("timeout_min", "write time"), ("slurm_partition", "write partition"), ("array", "one task of an array")],
)
def test_options_that_are_not_for_sbatch(name, said):
    with pytest.raises(UserError, match=said):
        sbatch_options({name: "1"})


def test_the_share_of_a_worker_of_the_gpus():
    assert [share_of_devices(slot, 2, list("0123")) for slot in range(2)] == ["0,2", "1,3"]
    assert [share_of_devices(slot, 3, list("45")) for slot in range(3)] == ["4", "5", "4"]
    assert share_of_devices(0, 2, []) is None


def test_a_task_that_was_queued_again_too_often_does_nothing(slurm, monkeypatch):
    (task,) = send(slurm, slurm.runs, ["a"], Sending([], DEFAULTS, requeues=3)).values()
    monkeypatch.setenv("SCSE_TASK", str(task.folder))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "4")
    monkeypatch.setattr(cluster, "work", lambda job: pytest.fail("worked"))
    assert sent_here() == task
    assert work_as_sent(None, task, 1, []).outcome is Outcome.FAILED
    assert task.told().outcome is Outcome.FAILED


@pytest.mark.parametrize("warned", [True, False])
def test_only_a_member_whose_time_is_up_queues_itself_again(slurm, monkeypatch, warned):
    """One that was cancelled or preempted is Slurm's and the coordinator's affair."""
    (task,) = send(slurm, slurm.runs, ["a"], Sending([], DEFAULTS)).values()
    asked = []
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    monkeypatch.setattr(cluster, "work", lambda job: Result(Outcome.STOPPED))
    monkeypatch.setattr(cluster, "time_is_up", lambda: warned)
    monkeypatch.setattr(Slurm, "requeue", lambda self, job: asked.append(job))
    assert work_as_sent(None, task, 1, []).outcome is Outcome.STOPPED
    assert asked == (["17_0"] if warned else [])


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """The stand-in's commands, and a member that is the script of the test."""
    for name, value in standin.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_LOOKS", 0.2)
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)

    def members_are(script: str) -> None:
        path = tmp_path / "member"
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setattr(sending.sys, "executable", str(path))

    yield members_are
    Slurm().cancel(there.id for there in Slurm().queue().values())


# The member's process: its first turn is warned that its time is up, the next one is stopped, each in mid-training.
DISTURBED = """
import os, runpy, signal, sys
from pathlib import Path
from scse.cli import main
from scse.training.trainer import Trainer

def step(self, at, meter):
    for turn, number in enumerate((signal.SIGUSR2, signal.SIGTERM), start=1):
        mark = Path(os.environ["STANDIN"]) / f"stopped-{turn}"
        if at == turn and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), number)
    return original(self, at, meter)

original, Trainer._step = Trainer._step, step
runpy.run_path(os.environ["TOYPRESET"])
sys.exit(main(sys.argv[3:]))
"""


def through_the_server(member: str) -> str:
    """What Slurm starts: it has the member's process forked off, hands on the signals that it gets, and ends as it."""
    return f"""#!{sys.executable} -S
import signal, sys
sys.path.insert(0, {str(Path(forked.__file__).parent)!r})
import forked
forked._server = lambda: {forked._server()!r}
process = forked.start(["-c", {member!r}, *sys.argv[1:]], python=True, stdout=1, stderr=2)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, _: process.send_signal(number))
sys.exit(process.wait())
"""


def numbers(runs: Path) -> dict[str, dict[str, float]]:
    return {record.key: dict(record.metrics) for record in read_records(sorted(runs.glob("*/seed*/records.jsonl")))}


@pytest.fixture
def smaller(monkeypatch):
    """What toypreset.py changes, in this process and for one test."""
    for name, miniature in MINIATURES.items():
        monkeypatch.setitem(MINIATURES, name, miniature)
    runpy.run_path(TOYPRESET)


def test_a_member_whose_time_is_up_and_that_is_stopped_leaves_the_same_records(
    place, smaller, commands, monkeypatch, capsys
):
    """It is warned and queues itself again, is stopped and sent again by the coordinator, and then ends."""
    chosen = {"depths": "8", "only": "scse"}
    assert main(line(place, "run", runs="undisturbed", **chosen)[1:]) == 0
    capsys.readouterr()
    commands(through_the_server(DISTURBED))
    monkeypatch.setenv("TOYPRESET", TOYPRESET)
    setup = place / "setup.sh"
    setup.write_text("echo the setup was here\n")
    arguments = line(place, "run", runs="disturbed", **chosen)[1:]
    assert main([*arguments, "--slurm", "--slurm-setup", str(setup), "--slurm-set", "time=9"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 1
    assert numbers(place / "disturbed") == numbers(place / "undisturbed")
    state = Path(os.environ["STANDIN"])
    tasks = {path.stem: json.loads(path.read_text()) for path in state.glob("*.json")}
    assert sorted((name, about["turns"]) for name, about in tasks.items()) == [("1_0", 1), ("2_0", 0)]
    assert tasks["1_0"]["options"]["time"] == "9"
    assert (place / "disturbed" / ".jobs" / "1" / "log-0.txt").read_text().count("the setup was here") == 2
    (checkpoint,) = (place / "disturbed").glob("*/seed0/checkpoints/*")
    assert checkpoint.name == "step-4", "what a stop saved was replaced"

    assert main([*arguments, "--slurm"]) == 0
    assert len(list(state.glob("*.json"))) == 2, "finished members need no jobs"
    assert main(line(place, "status", runs="disturbed", **chosen)[1:]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["jobs"]
    assert (row["state"], row["step"]) == ("done", "4 of 4")


def test_detached_followed_and_cancelled(place, commands, capsys):
    commands("#!/bin/sh\necho begun\nexec sleep 600\n")
    arguments = line(place, "run", runs="detached")[1:]
    assert main([*arguments, "--slurm", "--detach"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": 2, "done": 0, "in_queue": 0, "submitted": 2}
    assert main([*arguments, "--slurm", "--detach"]) == 0
    assert json.loads(capsys.readouterr().out)["in_queue"] == 2
    assert main(line(place, "status", runs="detached")[1:]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [(row["job"], row["state"]) for row in jobs] == [("1_0", "running"), ("1_1", "running")]
    while not Path(jobs[0]["log"]).exists() or "begun" not in Path(jobs[0]["log"]).read_text():
        time.sleep(0.05)
    cancel = line(place, "cancel", runs="detached")[1:]
    assert main(cancel) == 0
    assert json.loads(capsys.readouterr().out) == {"cancelled": ["1_0", "1_1"]}
    while Slurm().queue():
        time.sleep(0.05)
    assert Slurm().last_state("1_0") == "CANCELLED"
    assert main(cancel) == 0
    assert json.loads(capsys.readouterr().out) == {"cancelled": []}


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=143:0", TERMINATED),  # scse heard it, before it had work
        ("JobState=FAILED Reason=None ExitCode=0:15", TERMINATED),  # Python had not got so far
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0", "FAILED"),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15", "TIMEOUT"),
        ("", ""),
    ],
)
def test_a_job_told_to_end_while_it_starts_did_not_fail(printed, state, monkeypatch):
    monkeypatch.setattr(
        "scse.suites.slurm._run", lambda command: subprocess.CompletedProcess(command, 0 if printed else 1, printed, "")
    )
    assert Slurm().last_state("1_0") == state


def test_a_coordinator_that_is_stopped_cancels_its_jobs(place, commands, capsys):
    commands(f"#!/bin/sh\n[ $SLURM_ARRAY_TASK_ID = 0 ] && kill -TERM {os.getpid()}\nexec sleep 600\n")
    assert main([*line(place, "run", runs="left")[1:], "--slurm"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"] is False
    while Slurm().queue():
        time.sleep(0.05)
    assert Slurm().last_state("1_0") == "CANCELLED"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--slurm", "--slurm-set", "partition=nowhere"], "Slurm refuses: invalid partition specified: nowhere"),
        (["--slurm", "--slurm-setup", "no/such.sh"], "there is no file no/such.sh"),
        (["--detach"], "--detach is for a cluster; add --slurm"),
        (["--checkpoint-minutes", "0"], "checkpoint_minutes must be more than 0"),
        (["--requeues", "-1"], "--requeues must not be negative"),
        (["--processes", "2", "--processes-per-member", "2"], "leave one of them out"),
    ],
    ids=str,
)
def test_mistakes_with_clusters_are_one_line(place, commands, capsys, extra, said):
    assert main([*line(place, "run", runs="mistaken")[1:], *extra]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (place / "mistaken").exists()


def test_a_machine_without_slurm_is_told(place, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*line(place, "run", runs="mistaken")[1:], "--slurm"]) == 2
    assert capsys.readouterr().err == "scse: there is no squeue here; run this where Slurm's commands are\n"


LAUNCHED = {
    "tells": ('echo \'{"outcome": "done", "reason": ""}\' > $SCSE_TASK/result-$SLURM_ARRAY_TASK_ID.json', Outcome.DONE),
    "dies": ("exit 3", Outcome.FAILED),
    "is stopped": (f"trap 'exit 0' TERM; kill -TERM {os.getpid()}; while :; do sleep 0.05; done", Outcome.STOPPED),
}


@pytest.mark.parametrize("how", LAUNCHED)
def test_a_member_in_several_processes(tmp_path, monkeypatch, how):
    """What the launcher's processes say counts; a stop is passed on to them."""
    script, outcome = LAUNCHED[how]
    (tmp_path / "torchrun").write_text(f"#!/bin/sh\necho $@ > {tmp_path}/words\n{script}\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setattr(cluster.sys, "executable", str(tmp_path / "torchrun"))
    (sent,) = sending.write_submission(tmp_path / "runs", ["a"], requeues=0)
    result = cluster.launch(sent, 2, ["suite", "run", "x"])
    assert result.outcome is outcome
    assert "--nproc-per-node 2 -m scse suite run x" in (tmp_path / "words").read_text()
    if how == "dies":
        assert result.reason == "its processes ended with code 3"


def test_a_member_is_trained_and_evaluated_by_all_its_processes(place, smaller, capsys):
    """What can be spread is, the leader does the rest, and the records are those of one process on the same weights."""
    chosen = {"runs": "together", "only": "scse", "limit": 40, "depths": "8"}
    arguments = line(place, "run", "forcing-controls", **chosen)[1:]
    assert main(line(place, "plan", "forcing-controls", **chosen)[1:]) == 0
    (member,) = json.loads(capsys.readouterr().out)["members"]
    (sent,) = sending.write_submission(place / "together", [member["run"]], requeues=0)
    told = {sending.TASK: str(sent.folder), sending.INDEX: str(sent.index)}
    done = forked.several_processes([*arguments, "--processes-per-member", "2", *SMALLER], **told)
    assert sent.told() == Result(Outcome.DONE), done.stderr
    together, records = numbers(place / "together"), place / "together" / member["run"] / "records.jsonl"
    assert len(records.read_text().splitlines()) == len(together)
    assert {record.identity["task"] for record in read_records([records])} == {"perplexity", "diagnose"}
    records.unlink()
    assert forked.scse([*arguments, *SMALLER]).returncode == 0
    assert numbers(place / "together") == together


def test_members_in_several_processes_are_not_said_to_be_on_a_cluster(place, capsys):
    chosen = {"runs": "launched", "only": "scse", "depths": "8"}
    assert main(line(place, "plan", **chosen)[1:]) == 0
    (member,) = json.loads(capsys.readouterr().out)["members"]
    (sent,) = sending.write_submission(place / "launched", [member["run"]], requeues=0)
    for said in ("not running", "stopped"):
        assert main(line(place, "status", **chosen)[1:-1]) == 0
        printed = capsys.readouterr().out
        assert "In several processes of one machine" in printed
        assert said in printed
        assert "On the cluster" not in printed
        assert "logs:" not in printed
        sent.tell(Result(Outcome.STOPPED))
    with locked(place / "launched" / member["run"]):
        assert main(line(place, "status", **chosen)[1:-1]) == 0
    assert "stopped" not in capsys.readouterr().out, "somebody has taken it up again"


class Worker:
    """A process that has ended before anybody looks."""

    def __init__(self) -> None:
        self.sentinel, writing = os.pipe()
        os.close(writing)

    def is_alive(self) -> bool:
        os.close(self.sentinel)
        return False


def test_a_worker_that_somebody_stops_begins_again_and_the_others_go_on(monkeypatch):
    ends = {"a": iter([Outcome.STOPPED] * 3), "b": iter([Outcome.STOPPED, Outcome.DONE])}
    monkeypatch.setattr(runner, "_start", lambda job, threads, devices: (Worker(), job))
    monkeypatch.setattr(runner, "_told", lambda process, job: Result(next(ends[job.member.name])))
    jobs = [SimpleNamespace(member=SimpleNamespace(name=name)) for name in ends]
    results = {job.member.name: result for job, result in runner.in_processes(1, requeues=2)(jobs)}
    assert results["b"] == Result(Outcome.DONE)
    assert results["a"].outcome is Outcome.FAILED
    assert results["a"].reason.startswith("stopped 3 times")
