"""SIGTERM and Ctrl-C: raised, or asked for, and never without a handler once a command has begun."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from scse import cli
from scse.signals import Terminated, stops_ask, stops_raise, time_is_up

EXCEPTIONS = {signal.SIGTERM: Terminated, signal.SIGINT: KeyboardInterrupt, signal.SIGUSR2: Terminated}


@pytest.fixture(autouse=True)
def _handlers_are_put_back():
    before = [signal.getsignal(number) for number in EXCEPTIONS]
    yield
    assert [signal.getsignal(number) for number in EXCEPTIONS] == before


@pytest.fixture
def hosted():
    """A program with plans of its own for SIGTERM."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", EXCEPTIONS)
def test_a_signal_raises(number):
    with pytest.raises(EXCEPTIONS[number]), stops_raise():
        signal.raise_signal(number)


@pytest.mark.parametrize("number", EXCEPTIONS)
def test_the_first_signal_asks(number):
    with stops_raise():
        with stops_ask() as stop:
            assert not stop.requested
            signal.raise_signal(number)
            assert stop.requested
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        with pytest.raises(EXCEPTIONS[number]):
            signal.raise_signal(number)


def test_schedulers_may_repeat_themselves_while_work_is_saved():
    """A launcher passes on what its processes also get from the scheduler, and a warning is followed by SIGTERM."""
    with stops_ask() as stop:
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
    assert stop.requested
    assert time_is_up()


def test_the_handlers_of_a_program_are_left_alone_unless_there_is_something_to_save(hosted):
    with stops_raise():
        signal.raise_signal(signal.SIGTERM)
    with stops_ask() as stop:
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Terminated), stops_raise(over_others=True):
        signal.raise_signal(signal.SIGTERM)
    assert hosted == [signal.SIGTERM]
    assert stop.requested
    signal.raise_signal(signal.SIGTERM)
    assert len(hosted) == 2


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stops_raise(over_others=True), stops_ask() as stop:
            signal.raise_signal(signal.SIGINT)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_set_no_handlers():
    found = []

    def work():
        with stops_raise(), stops_ask() as stop:
            found.extend([signal.getsignal(number) for number in EXCEPTIONS])
            found.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [*(signal.getsignal(number) for number in EXCEPTIONS), False]


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_command_answers_from_its_first_line_on(monkeypatch, capsys, number, code, said):
    monkeypatch.setattr(cli, "dispatch", lambda arguments: signal.raise_signal(number))
    assert cli.main(["families"]) == code
    assert capsys.readouterr().err == f"scse: {said}\n"


def test_uncaught_it_ends_the_process_quietly_with_143():
    script = "import signal, scse.signals as s\nwith s.stops_raise(): signal.raise_signal(signal.SIGTERM)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "")
