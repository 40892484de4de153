"""Suites at a size for tests: which, on what text, and their command line."""

from __future__ import annotations

from pathlib import Path

from runs import SCSE

SUITE = "anchor-design"
# Never in this process: it changes the presets for good.
SMALLER = ("--import", str(Path(__file__).with_name("toypreset.py")))
ARMS = ("scse", "scse-initial")


def line(place: Path, action: str, *names: str, runs: str = "runs", **options: object) -> list[str]:
    chosen = {"data": place / "corpus", "cache-dir": place / "cache", "runs": place / runs}
    chosen |= {"only": ",".join(ARMS), "seeds": "0", "steps": 4, "limit": 2}
    chosen |= {name.replace("_", "-"): value for name, value in options.items()}
    flags = [part for name, value in chosen.items() if value is not None for part in (f"--{name}", str(value))]
    return [str(SCSE), "suite", action, *(names or (SUITE,)), *flags, "--json"]
