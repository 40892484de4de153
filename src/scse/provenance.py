"""Where a number comes from: the code's revision and the versions it ran with."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("scse", "torch", "numpy", "safetensors", "tokenizers")


@cache
def provenance() -> dict[str, str]:
    """Git revision (with '+' when the tree has changes), Python, platform and package versions."""
    found = {"git": git_revision(), "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def git_revision(folder: Path = Path(__file__).parent) -> str:
    """The revision of the checkout this package runs from, or 'unknown' when it was installed without one."""
    try:
        revision = _git(folder, "rev-parse", "HEAD")
        return revision + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    # Without optional locks: a process killed while git refreshes its index would leave the repository locked.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
