"""The demo end to end at a toy size, through the command."""

from __future__ import annotations

import json

from scse.cli import main
from scse.demo import DEPTHS, FAMILIES, findings


def test_demo_trains_evaluates_and_draws(tmp_path, capsys):
    arguments = [
        "demo",
        "--steps",
        "2",
        "--out",
        str(tmp_path / "demo"),
        "--cache-dir",
        str(tmp_path / "cache"),
        "--quiet",
    ]
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [row["family"] for row in first] == list(FAMILIES)
    assert all(set(row) == {"family", *(f"T={t}" for t in DEPTHS)} for row in first)
    assert all(1 < row["T=48"] < 10_000 for row in first)
    assert (tmp_path / "demo" / "depth-response.png").stat().st_size > 10_000

    before = (tmp_path / "demo" / "scse" / "metrics.jsonl").read_text()
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "Test perplexity over loop depth" in text
    assert "lowest at T = 48" in text
    assert (tmp_path / "demo" / "scse" / "metrics.jsonl").read_text() == before, "a second run trains nothing"


def test_findings_say_what_the_numbers_say():
    rows = [
        {"family": "looped", "T=1": 12.0, "T=8": 10.0, "T=48": 11.0},
        {"family": "scse", "T=1": 9.0, "T=8": 9.5, "T=48": 18.0},
    ]
    assert findings(rows) == [
        "looped: best at T = 8, +10.0% from there to T = 48",
        "scse: best at T = 1, +100.0% from there to T = 48",
        "lowest at T = 8: scse (9.5)",
        "lowest at T = 48: looped (11.0)",
    ]
