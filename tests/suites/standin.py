"""A stand-in for Slurm's commands, for tests: one script under the names sbatch, squeue, scancel and scontrol.

Its state is a folder, one file per task: `<job>_<index>.json`. A task runs as soon as it is submitted, on this machine.
Requeueing and cancelling end it with SIGTERM, as Slurm does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ.get("STANDIN", "."))


def install(folder: Path) -> dict[str, str]:
    """Put the commands into a folder; the environment in which they are found."""
    (folder / "bin").mkdir(parents=True)
    (folder / "state").mkdir()
    script = folder / "bin" / "sbatch"
    script.write_text(f"#!{sys.executable} -S\n" + Path(__file__).read_text())
    script.chmod(0o755)
    for name in ("squeue", "scancel", "scontrol"):
        (folder / "bin" / name).symlink_to(script)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "STANDIN": str(folder / "state")}


def load(task: str) -> dict:
    try:
        return json.loads((STATE / f"{task}.json").read_text())
    except FileNotFoundError:
        sys.exit(f"slurm_load_jobs error: Invalid job id specified: {task}")


def store(task: str, **changes: object) -> None:
    path = STATE / f"{task}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.with_suffix(f".{os.getpid()}").write_text(json.dumps(known | changes))
    os.replace(path.with_suffix(f".{os.getpid()}"), path)


def sbatch(words: list[str]) -> None:
    *options, script = words
    given = dict(word[2:].partition("=")[::2] for word in options)
    if given.get("partition") == "nowhere":
        sys.exit("sbatch: error: invalid partition specified: nowhere\nsbatch: error: Batch job submission failed")
    number = 1 + max((int(path.name.split("_")[0]) for path in STATE.glob("*_*.json")), default=0)
    last = int(re.match(r"0-(\d+)", given["array"])[1])
    for index in range(last + 1):
        task = f"{number}_{index}"
        store(task, name=given["job-name"], index=index, state="RUNNING", turns=0, options=given)
        runner = [sys.executable, "-S", __file__, "turns", task, script, given["output"].replace("%a", str(index))]
        subprocess.Popen(runner, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(number)


def turns(task: str, script: str, log: str) -> None:
    """Run a task until it ends without being queued again."""
    job, index = task.split("_")
    while True:
        about = load(task)
        env = {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": index, "SLURM_RESTART_COUNT": str(about["turns"])}
        with open(log, "ab") as stream:
            child = subprocess.Popen(["bash", script], env=os.environ | env, stdout=stream, stderr=stream)
        store(task, pid=child.pid)
        if load(task)["state"] == "CANCELLED":
            child.terminate()
        code = child.wait()
        about = load(task)
        if not about.get("requeue"):
            break
        store(task, requeue=False, turns=about["turns"] + 1)
    store(task, ended=about["state"] if about["state"] == "CANCELLED" else ("FAILED" if code else "COMPLETED"))


def end(task: str, **changes: object) -> None:
    store(task, **changes)
    if pid := load(task).get("pid"):
        os.kill(pid, signal.SIGTERM)


def main(command: str, words: list[str]) -> None:
    if command == "sbatch" and words[0] == "turns":
        turns(*words[1:])
    elif command == "sbatch":
        sbatch(words[1:])
    elif command == "squeue":
        for path in sorted(STATE.glob("*_*.json")):
            about = json.loads(path.read_text())
            if "ended" not in about:
                print(f"{about['name']}|{about['index']}|{path.stem}|{about['state']}|None")
    elif command == "scancel":
        for task in words:
            end(task, state="CANCELLED")
    elif words[0] == "requeue":
        end(words[1], requeue=True)
    else:
        about = load(words[-1])
        print(f"JobId={words[-1]} JobState={about.get('ended', about['state'])} Reason=None")


if __name__ == "__main__":
    main(Path(sys.argv[0]).name, sys.argv[1:])
