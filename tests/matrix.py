"""`make test-matrix`: the whole suite under every condition it must not depend on, in four runs that cover them all.

    python tests/matrix.py                                   all four runs
    python tests/matrix.py --only again,user tests/data      some of them, some of the tests

Each run prints one line and keeps its log; a table of conditions and outcomes follows. The last commit is tested.
"""

from __future__ import annotations

import argparse
import os
import platform
import pwd
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLAIN_USER = "nobody"
CORES = os.cpu_count() or 1

# Traits of a run besides its variables. "alone" is a clone in an empty folder, kept for all runs that have the trait.
ALONE = "without ../shared"
AGAIN = "a second time in one clone"
SHUFFLED = "random order"
BUSY = "all cores kept busy by something else"
ROOT_USER = "as root"
USER = "as a plain user"


@dataclass(frozen=True)
class Run:
    name: str
    traits: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def conditions(self) -> list[str]:
        return [*(f"{name}={value}" for name, value in self.variables.items()), *self.traits]


# Threads of two workers that wait for each other by spinning take a run from minutes to hours on two cores.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}

RUNS = (
    Run(
        "first",
        (ALONE, ROOT_USER),
        {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "SCSE_PRECISION": "float32"},
    ),
    Run(
        "again",
        (ALONE, AGAIN, SHUFFLED, ROOT_USER),
        {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2", "SCSE_PRECISION": "bfloat16", **PATIENT},
    ),
    Run(
        "limited",
        (SHUFFLED, ROOT_USER),
        {"OMP_NUM_THREADS": "4", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", **PATIENT},
    ),
    Run("user", (USER, SHUFFLED, BUSY), {"OMP_NUM_THREADS": "1"}),
)


@dataclass(frozen=True)
class Outcome:
    run: Run
    code: int
    said: str
    missed: tuple[str, ...]  # conditions that this machine did not allow

    @property
    def word(self) -> str:
        return "green" if self.code == 0 else "RED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(run.name for run in RUNS), help="names of runs, with commas")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="for the random orders")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "scse-matrix", metavar="DIR")
    args, tests = parser.parse_known_args()
    chosen = [run for run in RUNS if run.name in args.only.split(",")]
    if len(chosen) != len(args.only.split(",")):
        parser.error(f"--only takes names among {', '.join(run.name for run in RUNS)}")
    args.logs.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        print("there are changes that are not committed; they are not tested")
    print(f"{machine()}; random orders from seed {args.seed}; logs in {args.logs}", flush=True)

    outcomes = []
    with tempfile.TemporaryDirectory(prefix="scse-matrix-") as folder:
        Path(folder).chmod(0o755)  # a plain user passes through it
        for number, run in enumerate(chosen, start=1):
            begin = time.monotonic()
            outcomes.append(suite(run, Path(folder), args.logs / f"{run.name}.log", args.seed + number, tests))
            minutes = (time.monotonic() - begin) / 60
            last = outcomes[-1]
            print(f"[{number}/{len(chosen)}] {run.name}: {last.word}, {last.said} ({minutes:.0f} min)", flush=True)
            for missed in last.missed:
                print(f"      not covered here: {missed}", flush=True)
    print(f"\n{table(outcomes)}")
    return max(outcome.code for outcome in outcomes)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{CORES} × {names[0] if names else platform.machine()}, Python {platform.python_version()}"


def suite(run: Run, folder: Path, log: Path, seed: int, tests: list[str]) -> Outcome:
    """One run of the tests: where, as whom, with which variables, beside what."""
    where = clone(folder / ("alone" if ALONE in run.traits else run.name))
    beside, home = ROOT.parent / "shared", folder / f"home-{run.name}"
    if ALONE not in run.traits and beside.exists():
        (where.parent / "shared").symlink_to(beside)
    home.mkdir()
    command = [sys.executable, "-m", "pytest", "-n", "3", *(["--shuffle", str(seed)] if SHUFFLED in run.traits else [])]
    missed = []
    if AGAIN in run.traits and not (where / ".pytest_cache").exists():
        missed.append(f"{AGAIN}: the run before it was left out")
    if ROOT_USER in run.traits and os.geteuid() != 0:
        missed.append(f"{ROOT_USER}: this is another user")
    if USER in run.traits and os.geteuid() == 0:
        prefix = becoming_a_plain_user([where, home], folder)
        command = [*prefix, *command]
        if not prefix:
            missed.append(f"{USER}: that needs setpriv and unshare")
    with ExitStack() as stack:
        if BUSY in run.traits:
            stack.enter_context(busy())
        out = stack.enter_context(log.open("w"))
        variables = environment(run, where, home)
        done = subprocess.run([*command, *tests], cwd=where, env=variables, stdout=out, stderr=out, check=False)
    return Outcome(run, done.returncode, last_line(log), tuple(missed))


def becoming_a_plain_user(owned: list[Path], folder: Path) -> list[str]:
    """What to put before a command; the user then owns these folders. Nothing where that cannot be done."""
    account = pwd.getpwnam(PLAIN_USER)
    if not (shutil.which("setpriv") and shutil.which("unshare")):
        return []
    for path in owned:
        subprocess.run(["chown", "-R", f"{account.pw_uid}:{account.pw_gid}", path], check=True)
    ids = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    return [*opening([Path(sys.prefix), Path(sys.base_prefix)], folder), "setpriv", *ids]


def opening(needed: list[Path], folder: Path) -> list[str]:
    """Before a command: in its view of the files alone, folders on the way to `needed` that are closed to others are
    replaced by open ones which hold nothing else (a Python that lies in root's home, say).
    """
    on_the_way = {parent for path in needed for parent in path.parents}
    closed = sorted(parent for parent in on_the_way if not parent.stat().st_mode & 0o001)
    behind = [path for path in needed if any(parent in closed for parent in path.parents)]
    kept = {path: folder / f"kept-{number}" for number, path in enumerate(behind)}
    lines = ["set -e", *(f"mkdir -p '{aside}'; mount --bind '{path}' '{aside}'" for path, aside in kept.items())]
    lines += [f"mkdir -p '{parent}'; mount -t tmpfs -o mode=755 none '{parent}'" for parent in closed]
    lines += [f"mkdir -p '{path}'; mount --bind '{aside}' '{path}'" for path, aside in kept.items()]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh"] if closed else []


def environment(run: Run, where: Path, home: Path) -> dict[str, str]:
    """Ours without what a run may set, and with a home of its own."""
    set_somewhere = {name for other in RUNS for name in other.variables} | {"SCSE_DATA", "SCSE_CACHE", "PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in set_somewhere}
    sources = os.pathsep.join([str(where / "src"), str(where / "tests")])
    return {**kept, "HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": sources, **run.variables}


def clone(place: Path) -> Path:
    """The last commit in a folder of its own, with nothing beside it but other clones' folders."""
    where = place / "scse"
    if not where.exists():
        place.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, where], check=True)
    return where


@contextmanager
def busy():
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CORES)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip("= ") if lines else "nothing was printed"


def table(outcomes: list[Outcome]) -> str:
    """Every condition with the runs that met it, for docs/operations.md."""
    rows: dict[str, list[str]] = {}
    for outcome in outcomes:
        for condition in outcome.run.conditions:
            missed = any(text.startswith(condition) for text in outcome.missed)
            rows.setdefault(condition, []).append(f"{outcome.run.name}: {'not possible' if missed else outcome.word}")
    lines = [f"| {condition} | {', '.join(cells)} |" for condition, cells in sorted(rows.items())]
    runs = [f"| {outcome.run.name} | {outcome.word}, {outcome.said} |" for outcome in outcomes]
    return "\n".join(["| run | what it gave |", "|---|---|", *runs, "", "| condition | runs |", "|---|---|", *lines])


if __name__ == "__main__":
    sys.exit(main())
