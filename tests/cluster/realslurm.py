"""A real Slurm on this machine: a controller and two nodes from the distribution's packages, on the loopback alone.

Everything lives in one folder; nothing of the system's own configuration is read or changed. Ends what it started, by
the process ids it has.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")

CONFIGURATION = """ClusterName=scse
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort=17000
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ReturnToService=2
KillWait=60
SchedulerParameters=sched_interval=5,bf_interval=5
MpiDefault=none
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname={host} Port=17001 CPUs=2 RealMemory=4000
NodeName=n2 NodeAddr=127.0.0.1 NodeHostname={host} Port=17002 CPUs=2 RealMemory=4000
PartitionName=main Nodes=n1,n2 Default=YES PriorityTier=1 State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=10 State=UP
"""


def missing() -> str:
    """Why there can be no cluster here; empty when there can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    if absent and shutil.which("apt-get") is None:
        return f"{', '.join(absent)} are not installed, and there is no apt-get to install {' '.join(PACKAGES)} with"
    return ""


def install() -> None:
    if any(shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None for name in PROGRAMS):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], check=True, env=environment)


class Cluster:
    """A controller and two nodes; a context that ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons = folder, []
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        os.environ["PATH"] += ":/usr/sbin:/sbin"

    def __enter__(self) -> Cluster:
        (self.folder / "munge").mkdir(mode=0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        text = CONFIGURATION.format(host=socket.gethostname(), folder=self.folder)
        (self.folder / "slurm.conf").write_text(text)
        places = {name: f"{self.folder}/munge/{name}" for name in ("socket", "pid", "log", "seed")}
        self._start(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={places['socket']}"),
            *(f"--pid-file={places['pid']}", f"--log-file={places['log']}", f"--seed-file={places['seed']}"),
        )
        self.wait_for(lambda: Path(places["socket"]).exists(), "munge")
        self._start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._start_node(node)
        self.wait_for(lambda: self.say("sinfo", "-h", "-o", "%T", "-N").split() == ["idle"] * 4, "two idle nodes")
        return self

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}.out").open("ab") as stream:
            self.daemons.append(subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True))
        return self.daemons[-1]

    def _start_node(self, node: str) -> None:
        self.nodes[node] = self._start("slurmd", "-D", "-N", node)

    def lose(self, node: str) -> None:
        """A node goes dark with everything on it, is found missing, and comes back.

        Slurm would notice after SlurmdTimeout, five minutes; here it is told.
        """
        self.nodes[node].kill()
        for process in _processes_on(node):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._update(node, "down")
        self._start_node(node)
        self._update(node, "resume")

    def _update(self, node: str, state: str) -> None:
        subprocess.run(["scontrol", "update", f"nodename={node}", f"state={state}", "reason=lost"], check=True)

    def __exit__(self, *failure: object) -> None:
        subprocess.run(["scancel", "-u", str(os.getuid())], check=False, capture_output=True)
        deadline = time.monotonic() + 90
        while self.say("squeue", "-h").strip() and time.monotonic() < deadline:
            time.sleep(1)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait()

    def say(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def wait_for(self, condition, what: str, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"waited {seconds:.0f} s for {what}; the logs are in {self.folder}")
            time.sleep(0.3)

    def running(self) -> dict[str, str]:
        """{id of a task of ours: its node}"""
        lines = self.say("squeue", "-h", "-r", "-p", "main", "-t", "RUNNING", "-o", "%i %N").split("\n")
        return dict(line.split() for line in lines if line.strip())

    def hurry(self) -> None:
        """Slurm holds a job that was queued again for two minutes; we do not wait."""
        for task in self.say("squeue", "-h", "-r", "-p", "main", "-t", "PENDING", "-o", "%i").split():
            subprocess.run(["scontrol", "update", f"jobid={task}", "StartTime=now"], check=False, capture_output=True)


def _processes_on(node: str) -> list[int]:
    """Jobs that run on a node, and Slurm's processes that look after them."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended meanwhile
            if f"SLURMD_NODENAME={node}".encode() in environment.read_bytes().split(b"\0"):
                parent = int((environment.parent / "stat").read_text().rpartition(")")[2].split()[1])
                keeper = (Path("/proc") / str(parent) / "comm").read_text().startswith("slurmstepd")
                found += [parent, int(environment.parent.name)] if keeper else [int(environment.parent.name)]
    return found
