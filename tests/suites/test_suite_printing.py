"""What the suite command prints, and how clusters and threads are served, in this process."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from toysuites import SUITE, line

from runs import run, write_corpus
from scse.cli import main
from scse.cli.text import duration
from scse.runs import open_run
from scse.suites import SUITES, member
from scse.suites.needed import unavailable_columns
from scse.suites.presets import find_preset
from scse.suites.suite import Column
from scse.tasks import TASKS, Selection


@pytest.fixture
def known_speed(monkeypatch):
    """A machine that multiplies at 2 TFLOP/s, of which training is taken to reach half."""
    monkeypatch.setattr("scse.suites.cost.matmul_rate", lambda *_: 2e12)


def table(printed: str) -> list[list[str]]:
    """The cells of a printed table, the head first."""
    lines = [line.replace("┃", "│") for line in printed.splitlines()]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


def in_process(place: Path, action: str, *names: str, **options: object) -> int:
    return main(line(place, action, *names, **options)[1:-1])


def test_the_list_names_every_suite_with_its_size(capsys):
    assert main(["suite", "list"]) == 0
    head, *rows = table(capsys.readouterr().out)
    assert head == ["suite", "rows", "runs", "title"]
    assert [row[0] for row in rows] == SUITES.names()
    assert [SUITE, "4", "14"] in [row[:3] for row in rows]


def test_the_plan_and_the_status_are_tables_for_people(place, known_speed, capsys, monkeypatch):
    monkeypatch.delenv("SCSE_DATA", raising=False)
    chosen = {"only": "scse-22m", "seeds": "0,1", "runs": "unplanned", "steps": 2000}
    assert in_process(place, "plan", "transfer", **chosen) == 0
    printed = capsys.readouterr().out
    head, first, second = table(printed)
    assert head == ["run", "row", "trained", "evaluated", "flops", "time", "speed"]
    assert [first[i] for i in (1, 2, 3, 6)] == ["scse-22m", "0 of 2,000", "0 of 2", "estimated"]
    assert (first[0][-5:], second[0][-5:]) == ("seed0", "seed1")
    assert first[4].endswith("e+13")
    assert float(first[5].removesuffix(" s")) == pytest.approx(float(first[4]) / 0.5e12, abs=2), (
        "a quarter of the rate at width 128"
    )
    assert "2 runs, 0 trained; " in printed
    absent = "not available at this size, or not at hand: transfer: C4 T=8, transfer: C4 T=48\n"
    assert printed.endswith(absent)

    assert in_process(place, "status", "transfer", **chosen) == 0
    printed = capsys.readouterr().out
    assert table(printed) == [
        ["suite", "row", "seeds", "trained", "evaluated", "state"],
        ["transfer", "scse-22m", "0,1", "0 of 2", "0 of 4", "missing"],
    ]
    assert printed.endswith(absent)


def test_the_status_leaves_out_rows_without_the_seeds_asked_for(place, capsys):
    rows = {"only": "looped-50m,scse-50m", "seeds": "4", "runs": "unplanned"}
    assert in_process(place, "status", "step-conditioned", **rows) == 0
    assert [row[1] for row in table(capsys.readouterr().out)[1:]] == ["scse-50m"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40, "40 s"), (119, "119 s"), (120, "2 min"), (7_199, "120 min"), (12_600, "3.5 h"), (172_800, "2.0 d")],
)
def test_durations_are_in_the_unit_that_people_use(seconds, text):
    assert duration(seconds) == text


def test_a_plan_follows_the_speed_of_whole_runs_and_passes_over_the_rest(tmp_path, known_speed, capsys):
    runs = tmp_path / "runs"
    arguments = ["suite", "plan", SUITE, "--runs", str(runs), "--only", "scse", "--seeds", "0", "--json"]

    def planned() -> tuple[str, int]:
        assert main(arguments) == 0
        (row,) = json.loads(capsys.readouterr().out)["members"]
        return row["speed"], row["seconds"]

    for name, content in {"empty": None, "damaged": "{"}.items():
        (runs / name / "seed0").mkdir(parents=True)
        if content is not None:
            (runs / name / "seed0" / "config.json").write_text(content)
            (runs / name / "seed0" / "metrics.jsonl").write_text("")
    estimated = planned()
    assert estimated[0] == "estimated"

    corpus = write_corpus(tmp_path / "corpus", words=4000)
    mini = {"width": 128, "heads": 4, "ff_width": 512, "context": 128, "tokenizer": "bpe-4096", "batch": 1, "steps": 1}
    run(corpus, runs / "whole" / "seed0", **mini)
    measured = planned()
    assert measured[0] == "measured"
    with (runs / "whole" / "seed0" / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 2, "seco')
    assert planned() == measured


def broken(*_):
    raise ZeroDivisionError("division by zero")


def test_a_fault_of_the_program_fails_the_members_and_is_told(place, monkeypatch, capsys, caplog):
    monkeypatch.setattr(member, "train", broken)
    assert in_process(place, "run", runs="faulty") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "0 of 2 runs are trained and evaluated"
    assert [text.split(": ", 2)[2] for text in printed[1:]] == ["ZeroDivisionError: division by zero"] * 2
    assert "failed unexpectedly" in caplog.text
    assert "in broken" in caplog.text, "with the place of the fault"


def test_a_suite_can_be_run_from_a_thread(place, monkeypatch, capsys):
    """Signals are the main thread's affair; the work is the same without them."""
    codes = []
    arguments = {"runs": "threaded", "only": "scse", "depths": "8"}
    thread = threading.Thread(target=lambda: codes.append(in_process(place, "run", **arguments)))
    thread.start()
    thread.join()
    assert codes == [0]
    assert "1 of 1 runs are trained and evaluated" in capsys.readouterr().out


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """A trained run, and a passage of LAMBADA beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    run(write_corpus(folder / "corpus"), folder / "run", steps=1)
    (folder / "data" / "lambada").mkdir(parents=True)
    (folder / "data" / "lambada" / "test.jsonl").write_text('{"text": "the state moves from its anchor"}\n')
    return folder


@pytest.mark.parametrize(
    ("task", "depths"),
    [("completion", [4, 2]), ("steering", [5]), ("profile", [1, 2]), ("size", [None])],
    ids=lambda value: str(value),
)
def test_a_suite_gets_its_columns_from_one_evaluation(tiny_run, task, depths):
    columns = [Column(f"{task} {depth}", task, depth=depth) for depth in depths]
    selection = Selection(limit=1, data_dir=str(tiny_run / "data"), cache_dir=str(tiny_run / "cache"), show=False)
    found = TASKS.find(task).evaluate(open_run(tiny_run / "run"), selection, columns)
    assert [(record.identity["task"], record.depth) for record in found.records] == [(task, depth) for depth in depths]


def test_a_column_that_the_chosen_rows_do_not_have_is_not_called_unavailable():
    rivals, preset = SUITES.find("rivals"), find_preset("mini", None, None)
    assert any(column.protocols == ("pointer-chase",) for column in rivals.columns)
    on_text = replace(rivals, arms=tuple(replace(arm, kept=arm.protocol != "wikitext-2") for arm in rivals.arms))
    assert unavailable_columns([on_text], preset) == []
    elsewhere = Column("C4", data="c4", protocols=("wikitext-2",))
    assert unavailable_columns([replace(on_text, columns=(elsewhere,))], preset) == ["rivals: C4"]
