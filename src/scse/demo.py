"""The comparison in miniature: train three families on the embedded corpus, then turn the depth knob."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scse.data import DataConfig, load_tokenizer, open_corpus
from scse.evaluation import perplexity_over_depths
from scse.persistence import load_model
from scse.progress import progress
from scse.report.figures import depth_response
from scse.training import RunOptions, assemble, protocol
from scse.training.trainer import train

FAMILIES = ("looped", "tuned-adapter", "scse")
DEPTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48)
TEST_WINDOWS = 128


def run_demo(folder: Path, steps: int | None, cache_dir: str | None, quiet: bool) -> list[dict[str, object]] | None:
    """Rows {family, T=1, …, T=48} of test perplexities, or None when a run was asked to stop.

    Runs that are already there are used as they are, and interrupted ones continue.
    """
    settings = protocol("mini") | ({} if steps is None else {"steps": steps})
    options = RunOptions(cache_dir=cache_dir, quiet=quiet)
    for family in FAMILIES:
        if not train(assemble(family, settings), folder / family, options).finished:
            return None
    rows = []
    with progress("evaluating over depths", len(FAMILIES), "models", enabled=not quiet) as meter:
        for family in FAMILIES:
            rows.append({"family": family, **depth_row(folder / family, cache_dir, DEPTHS)})
            meter.advance()
    return rows


def depth_row(run: Path, cache_dir: str | None, depths: Sequence[int]) -> dict[str, object]:
    """Perplexity on the first windows of the test split at each depth, all from one unroll."""
    tokenizer = load_tokenizer(run / "model")
    corpus = open_corpus(DataConfig(cache_dir=cache_dir), progress=False, tokenizer=tokenizer)
    results = perplexity_over_depths(load_model(run / "model"), corpus.split("test").tokens, depths, limit=TEST_WINDOWS)
    return {f"T={result.depth}": round(result.ppl, 2) for result in results}


def draw(rows: Sequence[dict[str, object]], path: Path) -> None:
    """The depth response of all families as a picture."""
    title = "Test perplexity on the sources of Python's standard library, mini scale, one seed"
    depth_response({str(row["family"]): curve_of(row) for row in rows}, path, title=title)


def curve_of(row: dict[str, object]) -> dict[int, float]:
    """{'family': …, 'T=8': 194.1, …} -> {8: 194.1, …}"""
    return {int(name[2:]): float(str(value)) for name, value in row.items() if name.startswith("T=")}


def findings(rows: Sequence[dict[str, object]]) -> list[str]:
    """What the table says, in plain sentences; nothing is said that the numbers do not show."""
    sentences = []
    for row in rows:
        curve = curve_of(row)
        best = min(curve, key=lambda depth: curve[depth])
        deepest = max(curve)
        change = curve[deepest] / curve[best] - 1
        sentences.append(f"{row['family']}: best at T = {best}, {change:+.1%} from there to T = {deepest}")
    trained, deep = "T=8", f"T={DEPTHS[-1]}"
    for name in (trained, deep):
        ordered = sorted(rows, key=lambda row: float(str(row[name])))
        sentences.append(f"lowest at {name.replace('=', ' = ')}: {ordered[0]['family']} ({ordered[0][name]})")
    return sentences
