"""The profile's rows are about what they say: more loops take longer, spread and memory are measured."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from runs import run, write_corpus
from scse.cli import main
from scse.evaluation.profile import profile
from tinymodels import tiny


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for those who move it."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr("scse.measure.time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_rows_per_depth(clock):
    model = tiny("scse", dtype=torch.float32)

    def a_second(*_):
        clock.seconds += 1.0

    model.recurrence.core.block.register_forward_hook(a_second)
    shallow, deep = profile(model, [1, 40], batch=4, length=16, repeats=3)
    assert [shallow.depth, deep.depth] == [1, 40]
    assert [shallow.latency_ms, deep.latency_ms] == [1000, 40_000]
    assert [shallow.spread_ms, deep.spread_ms] == [0, 0]
    assert [shallow.tokens_per_second, deep.tokens_per_second] == [64, 64 / 40]
    assert shallow.peak_allocated_mib > 4 * 16 * 61 * 4 / 2**20, "at least the logits"
    assert deep.peak_allocated_mib < 1.5 * shallow.peak_allocated_mib, "memory does not grow with depth"


def test_peak_memory_holds_the_weights_and_the_logits():
    """The paper's is peak allocated: with four times the weights and the same activations, it grows by the weights."""
    held = []
    for layers in (2, 8):
        model = tiny(f"unshared-{layers}", dtype=torch.float32)
        (row,) = profile(model, [1], batch=4, length=16, repeats=1)
        weights = sum(p.numel() for p in model.parameters()) * 4 / 2**20
        assert row.peak_allocated_mib > weights + 4 * 16 * 61 * 4 / 2**20
        held.append((row.peak_allocated_mib, weights))
    (few, light), (many, heavy) = held
    assert many - few == pytest.approx(heavy - light, rel=0.02)


def test_the_command(tmp_path, capsys):
    run(write_corpus(tmp_path / "corpus"), tmp_path / "run")
    folder = str(tmp_path / "run")
    assert main(["profile", folder, "--depths", "1,2", "--repeats", "1", "--batch", "2", "--json"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert "profiling: done, 12 loops in " in printed.err, "two warm-ups, one repeat and the memory, 1 + 2 loops each"
    assert [set(row) for row in rows] == [
        {"depth", "latency_ms", "spread_ms", "tokens_per_second", "peak_allocated_mib"}
    ] * 2
    assert len((tmp_path / "run" / "records.jsonl").read_text().splitlines()) == 2
    assert main(["profile", folder, "--length", "17"]) == 2
    assert "17 tokens are more than the model's 16 positions" in capsys.readouterr().err
    assert main(["profile", folder, "--repeats", "0"]) == 2
    capsys.readouterr()
    assert main(["profile", folder, "--depths", "1", "--repeats", "1", "--batch", "2", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
