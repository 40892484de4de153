from __future__ import annotations

import io
import re
import sys

import pytest

from scse import progress as module
from scse.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_silent_when_not_enabled(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 10, "steps", enabled=False) as meter:
        meter.advance(10)
        meter.describe("other")
    assert capsys.readouterr() == ("", "")


def test_lines_are_sparse_and_end_with_the_outcome(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    with progress("work", 2000, "steps") as meter:
        for _ in range(12):
            meter.advance(100)
        meter.describe("rest")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "work: 500 of 2.0k steps (25%), 100 steps/s, 15 s left",
        "work: 1.0k of 2.0k steps (50%), 100 steps/s, 10 s left",
        "rest: done, 1.2k steps in 13.0 s",
    ]


def test_unknown_total(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0)
    with progress("work", None, "B") as meter:
        meter.advance(1_500_000)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("work: 1.5M B, ")
    assert last.startswith("work: done, 1.5M B in ")


def test_failure_says_stopped_and_passes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with progress("work", 5, "steps") as meter:
            meter.advance()
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert capsys.readouterr().err.startswith("work: stopped, 1 steps in ")


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_work_that_never_began_leaves_no_trace(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = stream()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    with pytest.raises(RuntimeError), progress("work", 5, "steps"):
        raise RuntimeError("boom")
    last = shown.getvalue().rpartition("\x1b[2K")[2]  # after the line is erased
    assert "work" not in last
    assert "\n" not in last


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("work", 1000, "steps") as meter:
        meter.advance(1000)
        meter.describe("finished work")
    shown = terminal.getvalue()
    assert "finished work" in shown
    assert "1.0k of 1.0k steps" in shown
    assert "done," not in shown


def test_a_line_of_training_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "forcing-subtraction 4999/5000 loss 4.123 T=8 38% peak"
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal)
    clock = iter(range(100))
    monkeypatch.setattr("rich.console.monotonic", lambda: float(next(clock)))
    with progress("training", 5000 * 4096, "tok", amounts=False) as meter:
        for _ in range(3):
            meter.advance(8192)
        meter.describe(text)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()))
    last = next(line for line in reversed(lines) if text in line)
    assert len(last) <= 80
    assert re.fullmatch(text + r" [━╸╺]+ 8\.2k tok/s 0:41:37", last)


def test_amounts_can_be_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    with progress("work 5/20", 2000, "tok", amounts=False) as meter:
        for _ in range(5):
            meter.advance(100)
    assert capsys.readouterr().err.splitlines()[0] == "work 5/20: 100 tok/s, 15 s left"
