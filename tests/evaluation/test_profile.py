"""The profile's rows are about what they say: more loops take longer, spread and memory are measured."""

from __future__ import annotations

import json

import pytest
import torch

from runs import run, write_corpus
from scse.cli import main
from scse.evaluation.profile import profile
from tinymodels import tiny


def test_rows_per_depth():
    torch.set_num_threads(1)
    rows = profile(tiny("scse", dtype=torch.float32), [1, 40], batch=4, length=16, repeats=3)
    assert [row.depth for row in rows] == [1, 40]
    shallow, deep = rows
    assert deep.latency_ms > 3 * shallow.latency_ms
    assert deep.tokens_per_second < shallow.tokens_per_second
    assert deep.peak_allocated_mib < 1.5 * shallow.peak_allocated_mib, (
        "without gradients memory does not grow with depth"
    )


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
