"""A suite on a real Slurm, through what a cluster does every day. `make test-cluster` runs it and prints what it gave.

Four members on two nodes are refused once, then sent; meanwhile members are preempted, queued again, cancelled, warned
of their time limit, and their coordinator and a node are lost. They must end complete, with the weights and records of
a suite in one process that nobody disturbed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import realslurm

from runs import write_corpus

SCSE = [sys.executable, "-m", "scse"]
STEPS = int(os.environ.get("SCSE_CLUSTER_STEPS", "0"))  # 0: as many as do not fit into the shortest time limit here
LONGER_THAN_A_LIMIT = 75  # seconds of steps; a job of a minute has time for some forty
happened: Counter[str] = Counter()


def suite(place: Path, action: str, runs: str, *extra: str) -> list[str]:
    chosen = ["--data", place / "corpus", "--cache-dir", place / "cache", "--runs", place / runs, "--steps", STEPS]
    chosen += ["--only", "scse,scse-initial", "--seeds", "0,1", "--depths", "8", "--limit", "2", "--json", *extra]
    return [*SCSE, "suite", action, "anchor-design", *map(str, chosen)]


def steps_that_take(seconds: float, place: Path) -> int:
    """As many steps as this machine needs so long for, by the speed of a few."""
    ask([*suite(place, "run", "probe"), "--only", "scse", "--seeds", "0", "--steps", "12"])
    (metrics,) = (place / "probe").glob("*/seed*/metrics.jsonl")
    times = [row["seconds"] for row in map(json.loads, metrics.read_text().splitlines()) if "seconds" in row]
    return max(60, round(seconds / sorted(times)[len(times) // 2]))


def ask(command: list[str], code: int = 0) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else {"said": done.stderr}


def outcome(runs: Path) -> dict[str, str]:
    """What must not differ: the weights and the numbers of every member."""
    found = {}
    for path in sorted(runs.glob("*/seed*/model/model.safetensors")):
        found[str(path.relative_to(runs))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(runs.glob("*/seed*/records.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[str(path.relative_to(runs))] = json.dumps([[row["identity"], row["metrics"]] for row in lines])
    return found


def refused(place: Path, cluster: realslurm.Cluster) -> None:
    said = ask(suite(place, "run", "refused", "--slurm", "--slurm-set", "partition=nowhere"), code=2)["said"]
    assert said.startswith("scse: Slurm refuses: "), said
    assert said.count("\n") == 1, said
    assert not (place / "refused").exists()
    assert not cluster.say("squeue", "-h").strip()
    happened["refused submission"] += 1


class Trouble:
    """What happens to the suite while it runs."""

    def __init__(self, place: Path, cluster: realslurm.Cluster) -> None:
        self.place, self.cluster, self.nodes, self.hit = place, cluster, set(), set()
        # The shortest limit there is; Slurm looks twice a minute, and so may warn half a minute early.
        limits = ("--slurm-set", "time=1", "--slurm-set", "signal=B:USR2@10", "--requeues", "100")
        self.command = suite(place, "run", "disturbed", "--slurm", "--slurm-set", "cpus-per-task=2", *limits)
        self.log = (place / "coordinator.txt").open("ab")
        self.coordinator = self.begin()

    def begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, stdout=self.log, stderr=self.log, start_new_session=True)

    def jobs(self) -> list[dict]:
        return ask(suite(self.place, "status", "disturbed"))["jobs"]

    def one_at_work(self) -> str:
        """The id of a member that has made steps since it was last disturbed."""
        while self.coordinator.poll() is None:
            self.cluster.hurry()
            at_work = self.cluster.running()
            self.nodes |= set(at_work.values())
            for row in self.jobs():
                step = int(row["step"].split()[0])
                if row["job"] in at_work and (row["job"], step) not in self.hit and 2 <= step < STEPS - 10:
                    self.hit.add((row["job"], step))
                    return row["job"]
            time.sleep(1)
        raise SystemExit(f"the suite ended before everything had happened to it: {dict(happened)}")

    def preempt(self) -> None:
        chosen = self.one_at_work()
        node = self.cluster.running().get(chosen, "n1")
        job = self.cluster.say(
            *("sbatch", "--parsable", "--partition=urgent", f"--nodelist={node}", "--exclusive"),
            *("--output=/dev/null", "--wrap=true"),
        ).strip()
        self.cluster.wait_for(lambda: not self.cluster.say("squeue", "-h", "-j", job).strip(), "the urgent job")
        happened["preemption"] += 1

    def cancel(self) -> None:
        subprocess.run(["scancel", self.one_at_work()], check=True)
        happened["cancellation"] += 1

    def requeue(self) -> None:
        subprocess.run(["scontrol", "requeue", self.one_at_work()], check=True)
        happened["requeue by hand"] += 1

    def lose_a_node(self) -> None:
        chosen = self.one_at_work()
        self.cluster.lose(self.cluster.running().get(chosen, "n1"))
        happened["lost node"] += 1

    def lose_the_coordinator(self) -> None:
        self.one_at_work()
        self.coordinator.send_signal(signal.SIGKILL)
        self.coordinator.wait()
        waiting = len(self.cluster.say("squeue", "-h", "-r").splitlines())
        assert waiting, "the jobs go on without their coordinator"
        self.coordinator = self.begin()
        happened["lost coordinator"] += 1

    def until_the_end(self) -> None:
        while self.coordinator.poll() is None:
            self.cluster.hurry()
            time.sleep(2)
        assert self.coordinator.returncode == 0, (self.place / "coordinator.txt").read_text()
        logs = [path.read_text() for path in (self.place / "disturbed" / ".jobs").glob("*/log-*.txt")]
        happened["time limit"] += sum(text.count("the time of this job is nearly up") for text in logs)


def detached(place: Path, cluster: realslurm.Cluster) -> None:
    """Submitted and left, followed, cancelled; what was saved is there."""
    sent = ask(suite(place, "run", "detached", "--slurm", "--slurm-set", "cpus-per-task=2", "--detach"))
    assert sent["submitted"] == 4
    rows = lambda: ask(suite(place, "status", "detached"))["jobs"]  # noqa: E731
    cluster.wait_for(lambda: any(int(row["step"].split()[0]) > 2 for row in rows()), "a detached member's steps")
    cancelled = ask(suite(place, "cancel", "detached"))["cancelled"]
    assert len(cancelled) == 4
    cluster.wait_for(lambda: not cluster.say("squeue", "-h").strip(), "the cancelled jobs")
    assert list((place / "detached").glob("*/seed*/checkpoints/step-*")), "a cancelled member saves"
    assert "stopped" in {row["state"] for row in rows()}
    happened["detached, followed and cancelled"] += 1


def over_processes(place: Path, cluster: realslurm.Cluster) -> None:
    """A member in two processes of its job is a member in two processes here."""
    some = ["--processes-per-member", "2", "--seeds", "0", "--only", "scse", "--steps", "6"]
    for runs, how in (("launched", []), ("launched-by-slurm", ["--slurm", "--slurm-set", "cpus-per-task=2"])):
        assert ask(suite(place, "run", runs, *some, *how))["done"] == 1
    assert outcome(place / "launched") == outcome(place / "launched-by-slurm")
    happened["a member over two processes"] += 1


def main() -> int:
    if reason := realslurm.missing():
        print(f"make test-cluster cannot run here: {reason}")
        return 1
    realslurm.install()
    os.environ["OMP_NUM_THREADS"] = "1"
    place = Path(tempfile.mkdtemp(prefix="scse-cluster-"))
    place.chmod(0o755)
    begin = time.monotonic()
    write_corpus(place / "corpus", words=12_000)
    global STEPS
    STEPS = STEPS or steps_that_take(LONGER_THAN_A_LIMIT, place)
    assert ask(suite(place, "run", "undisturbed"))["done"] == 4
    with realslurm.Cluster(place) as cluster:
        print(cluster.say("sinfo", "--version").strip(), "on", os.uname().release)
        refused(place, cluster)
        trouble = Trouble(place, cluster)
        trouble.preempt()
        trouble.cancel()
        trouble.preempt()
        trouble.lose_the_coordinator()
        trouble.requeue()
        trouble.lose_a_node()
        trouble.preempt()
        trouble.until_the_end()
        assert trouble.nodes == {"n1", "n2"}, trouble.nodes
        assert outcome(place / "disturbed") == outcome(place / "undisturbed")
        assert happened["time limit"] >= 1
        detached(place, cluster)
        over_processes(place, cluster)
    for name, times in happened.items():
        print(f"| {name} | {times} |")
    members = len(list((place / "disturbed").glob("*/seed*/model")))
    print(f"{members} members complete, weights and records as undisturbed, {time.monotonic() - begin:.0f} s")
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
