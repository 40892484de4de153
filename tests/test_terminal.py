"""What every command prints, on a terminal of 80 columns: nothing too long, no name or number folded."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runs import run, write_corpus
from scse.bench.evaluation import EvaluationBench
from scse.bench.generation import DecodingBench
from scse.bench.rows import Row
from scse.bench.serving import ServingBench
from scse.bench.training import StepBench
from scse.cli import COMMANDS, main
from scse.cli.tables import print_table
from scse.cli.text import render
from scse.demo import DEPTHS, NAMES, Demo
from scse.families import FAMILIES

WIDTH = 80
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
MEASURED = ("seconds", "ms", "per_second", "rate")  # what two runs of a command time differently


@contextmanager
def terminal(monkeypatch, columns: int, stream: str = "sys.stdout") -> Iterator[list[str]]:
    """Standard output (or another stream) goes to a real pseudo-terminal; its lines are in the list afterwards."""
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    received, lines = [], []

    def receive() -> None:
        try:
            while chunk := os.read(reader, 4096):
                received.append(chunk)
        except OSError:  # the other side is closed
            pass

    thread = threading.Thread(target=receive)
    thread.start()
    screen = open(writer, "w", encoding="utf-8")  # noqa: SIM115
    try:
        with monkeypatch.context() as patch:
            patch.setattr(stream, screen)
            patch.setenv("TERM", "xterm-256color")
            patch.delenv("COLUMNS", raising=False)
            yield lines
    finally:
        screen.close()
        thread.join()
        os.close(reader)
    lines += ESCAPES.sub("", b"".join(received).decode()).replace("\r\n", "\n").splitlines()


def shown(monkeypatch, arguments: list[str], columns: int = WIDTH) -> list[str]:
    with terminal(monkeypatch, columns) as lines:
        assert main(arguments) == 0
    assert lines
    assert [line for line in lines if len(line) > columns] == []
    return lines


def leaves(data: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Every value in an answer, with the name it stands under."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, key)
    elif isinstance(data, list):
        for value in data:
            yield from leaves(value, name)
    else:
        yield name, data


def stands_whole(text: str, lines: list[str]) -> bool:
    return any(re.search(rf"(?<![\w.,-]){re.escape(text)}(?![\w-]|[.,]\d)", line) for line in lines)


def missing(answer: object, lines: list[str], without: tuple[str, ...] = ()) -> list[tuple[str, object]]:
    """The numbers and names of an answer that do not stand on one line."""
    found = []
    for name, value in leaves(answer):
        timed = any(part in name for part in MEASURED)
        if value is None or isinstance(value, bool) or timed or name in without:
            continue
        if isinstance(value, int | float) or value in FAMILIES:
            text = render(value)
            if not stands_whole(text, lines):
                found.append((name, text))
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three trained runs, one passage of LAMBADA, and their caches."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("terminal")
    corpus = write_corpus(folder / "corpus")
    for family in ("looped", "tuned-adapter", "scse"):
        run(corpus, folder / "runs" / family, family, steps=2)
    (folder / "data" / "lambada").mkdir(parents=True)
    (folder / "data" / "lambada" / "test.jsonl").write_text('{"text": "the state moves from its anchor"}\n')
    return folder


CACHE = ["--cache-dir", "cache", "--quiet"]
RECORDS = Path(__file__).parents[1] / "results" / "mini-wikitext-2" / "records.jsonl"
CASES = {
    "eval": ["eval", "runs/scse", *CACHE],
    "lambada": ["lambada", "runs/scse", "--data-dir", "data", *CACHE],
    "adaptive": ["adaptive", "runs/scse", "--budgets", "2,3", "--ceiling", "4", "--limit", "20", *CACHE],
    "pareto": [
        *("pareto", "runs/looped", "runs/tuned-adapter", "runs/scse", "--depths", "1,2"),
        *("--budgets", "2", "--ceiling", "4", "--limit", "20", *CACHE),
    ],
    "profile": ["profile", "runs/scse", "--depths", "1,2", "--batch", "2", "--repeats", "1"],
    "params": ["params", "--scale", "22m"],
    "flops": ["flops", "--family", "forcing-subtraction"],
    "suite list": ["suite", "list"],
    "suite plan": ["suite", "plan", "transfer", "cost-profile"],
    "suite status": ["suite", "status", "transfer"],
    "report": ["report", str(RECORDS), "--data", "wikitext-2-v1", "--suites", "step-film", "--out", "report"],
    "families": ["families"],
    "families NAME": ["families", "sc-cond-subtractive"],
    "theory": ["theory", "runs/looped", "--from", "1", "--to", "3", "--inputs", "2", *CACHE],
    "diagnose": ["diagnose", "runs/looped", "--steps", "3", "--batch", "4", *CACHE],
    "steering": ["diagnose", "runs/looped", "--steering", "s.svg", "--steps", "3", *CACHE],
}
# what a table for people leaves out on purpose
ONLY_IN_JSON = {
    "families": ("bodies", *(name for family in FAMILIES for name in family.options)),
    "theory": ("mean", "steps", *("forcing", "arriving", "along", "step", "loss", "harmful", "neutral", "beneficial")),
    "diagnose": ("bias_energy", "largest_anchor_energy", "expansion_residual"),
    "steering": ("summary",),
    "suite plan": ("flops",),
}


@pytest.mark.parametrize("name", CASES)
def test_everything_stands_whole_on_a_terminal_of_80_columns(name, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr("scse.suites.cost.matmul_rate", lambda *_: 2e12)
    # How near a number is to its limit, and what is drawn, matter to nobody here.
    monkeypatch.setattr("scse.diagnostics.pointwise.EXPANSION_ITERATIONS", 2)
    monkeypatch.setattr("scse.report.write.diagrams", tuple)
    monkeypatch.setattr("scse.report.page.pictures", lambda evidence: [])
    assert main([*CASES[name], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    if name in ("theory", "steering"):
        answer = answer["inputs"]
    lines = shown(monkeypatch, CASES[name])
    assert missing(answer, lines, ONLY_IN_JSON.get(name, ())) == []
    shown(monkeypatch, CASES[name], columns=120)


def test_the_demo_stands_whole(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    depths = [{"family": name} | {f"T={t}": 465.12 * i + t for t in DEPTHS} for i, name in enumerate(NAMES, 1)]
    reached = {8: {"ppl": None, "mean_depth": None}, 16: {"ppl": 106.51, "mean_depth": 15.2}}
    adaptive = [{"family": name} | {f"Adaptive {b}": cell for b, cell in reached.items()} for name in NAMES]
    chase = [{"family": name, "hops": 5} | {f"T={t}": 0.1 * t for t in (1, 3, 7)} for name in NAMES]
    exits = [{"family": name} | {f"{hops} hops": 1.1 + hops for hops in range(6)} for name in NAMES]
    anchor = [{"family": name, "R_0": 1.0, "R_47": 0.0012, "E_47": 512.25} for name in NAMES]
    texts = {1: 'self):\n\treturn "quoted"\x1b[31m', 48: "x" * 100}
    said = ["scse: best at T = 8, " + "as in the paper " * 8]
    found = Demo(chase, exits, said, depths, adaptive, anchor, said, texts, place / "index.html")
    monkeypatch.setattr("scse.demo.run_demo", lambda *_: found)
    assert main(["demo", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    with terminal(monkeypatch, 120) as lines:
        assert main(["demo"]) == 0
    assert "  │ def main(self):" in lines
    assert '  │     return "quoted"\ufffd[31m' in lines, "the model's own text, without quotes or control characters"
    found = replace(found, page="report/index.html")
    lines = shown(monkeypatch, ["demo"])
    assert missing([answer[part] for part in ("accuracy", "exits", "perplexity", "anchor")], lines) == []
    assert any("106.51 at 15.2" in line for line in lines), "an adaptive number stands beside its depth"


def test_a_mistake_breaks_at_words(monkeypatch):
    """On a terminal; in a file or a pipe it is one line."""
    with terminal(monkeypatch, 40, "sys.stderr") as lines:
        assert main(["eval", "a-run-that-is-not-there", "--depths", "1,2,3"]) == 2
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).startswith("scse: no run in a-run-that-is-not-there (config.json is missing); name")


def test_the_benchmark_stands_whole(monkeypatch, capsys):
    rows = [
        Row("time of a step against the float32 reference", 0.912, "×", "≥ 1", False, "both with one thread " * 3),
        Row("matrix-product rate", 1234567.0, "FLOP/s"),
    ]
    monkeypatch.setattr(StepBench, "run", lambda self, meter: iter(rows))
    monkeypatch.setattr(DecodingBench, "run", lambda self, meter: iter([Row("token", 1.2, "×", "≤ 1.5", True)]))
    monkeypatch.setattr(EvaluationBench, "run", lambda self, meter: iter([Row("depths", 0.6, "×", "≤ 0.45", False)]))
    monkeypatch.setattr(ServingBench, "run", lambda self, meter: iter([Row("served", 1.1, "×", "≤ 1.02", False)]))
    arguments = ["bench", "--scale", "mini", "--tokens", "256"]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["rows"]
    assert missing(answer, shown(monkeypatch, arguments)) == []


def test_generated_text_fits_and_its_depths_have_a_legend(place, monkeypatch):
    monkeypatch.chdir(place)
    base = ["generate", "runs/scse", "--prompt", "the state", "--max-new-tokens", "6", "--show-depth"]
    assert any("loops of a token:" in line for line in shown(monkeypatch, base))
    assert any("T = 3" in line for line in shown(monkeypatch, [*base, "--compare", "1,2,3,4"]))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_helps_fit_and_name_the_defaults(command, monkeypatch):
    for columns in (60, 80, 120):
        with terminal(monkeypatch, columns) as lines:
            monkeypatch.setenv("COLUMNS", str(columns))
            with pytest.raises(SystemExit) if command else contextmanager(lambda: (yield))():
                main([*filter(None, [command]), "--help"])
        assert [line for line in lines if len(line) > columns] == []
    if command == "profile":
        text = " ".join(" ".join(lines).split())
        assert "--depths T,T loop depths (default 1,8,48)" in text
        assert "--repeats N measurements after warm-up (default 7)" in text
    if command == "generate":
        assert "--seed N seed of the random draws (default 0)" in " ".join(" ".join(lines).split())


# ------------------------------------------------- the rule itself

LONG = "a title that goes on " * 6
NAMES_OF_RUNS = [f"runs/wikitext-103/a-family-with-a-long-name-{i}/seed0" for i in range(6)]
TABLES = {
    "fits": [{"depth": 1, "ppl": 465.1}, {"depth": 48, "ppl": 9.823}],
    "long headers": [{f"the_{i}th_quantity_measured": 0.5 + i for i in range(9)} for _ in range(2)],
    "many columns, few rows": [{"input": k} | {f"q{i}": 10.0**-i for i in range(20)} for k in range(2)],
    "many columns, many rows": [{"input": k} | {f"q{i}": k + 10.0**-i for i in range(20)} for k in range(30)],
    "one row": [{f"q{i}": 1.25 * i for i in range(30)}],
    "long names": [{"run": name, "ppl": 12.5, "kind": "fixed", "cost": 123_456_789} for name in NAMES_OF_RUNS],
    "two keys": [{"run": r, "T": t, **{f"q{i}": t / 3 for i in range(16)}} for r in NAMES_OF_RUNS for t in (1, 2)],
    "text": [{"name": f"n{i}", "what": LONG, "more": LONG, "number": i} for i in range(3)],
    "markup": [{"name": "[bold]x[/bold]", "value": 1.0}],
    "missing": [{"name": "a", "value": None}, {"name": "b", "value": 2.5}],
}


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_no_table_is_wider_than_the_terminal(name, columns, monkeypatch):
    with terminal(monkeypatch, columns) as lines:
        print_table(TABLES[name], title=LONG)
    assert [line for line in lines if len(line) > columns] == []
    for _, value in leaves(TABLES[name]):
        if isinstance(value, float | int):
            assert stands_whole(render(value), lines), value


def test_names_stand_whole_below_the_folder_they_share(monkeypatch):
    with terminal(monkeypatch, 60) as lines:
        print_table(TABLES["long names"])
    assert "run: in runs/wikitext-103/" in lines
    assert all(any(name.removeprefix("runs/wikitext-103/") in line for line in lines) for name in NAMES_OF_RUNS)


def test_decimal_points_stand_under_each_other(capsys):
    print_table([{"x": 465.12}, {"x": 98.234}, {"x": None}, {"x": 0.00123}, {"x": 4096}])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    ends = {re.search(r"[\d,]+|–", row).end() for row in rows}
    assert len(ends) == 1


def test_without_a_terminal_nothing_is_left_out(capsys):
    print_table(TABLES["text"], spare=["more"])
    print_table(TABLES["many columns, many rows"])
    printed = capsys.readouterr().out.splitlines()
    assert sum(LONG.strip() in line for line in printed) == 3
    assert any("q0" in line and "q19" in line for line in printed)


def test_what_a_command_can_spare_goes_first_and_is_named(monkeypatch):
    rows = [{"name": "scse", "what": "x" * 40, "paper": "y" * 30, "note": "z" * 9}] * 2
    with terminal(monkeypatch, 80) as lines:
        print_table([row | {"name": f"scse-{i}"} for i, row in enumerate(rows)], spare=["paper", "note"])
    with terminal(monkeypatch, 80) as varied:
        rows = [{"name": f"scse-{i}", "what": f"{i}" * 50, "paper": f"{i}" * 30, "note": f"{i}" * 9} for i in range(2)]
        print_table(rows, spare=["paper", "note"], elsewhere="elsewhere")
    assert not any("no room" in line for line in lines), "what is the same in every row needs no column"
    assert varied[-1] == "no room for: paper (elsewhere)"
