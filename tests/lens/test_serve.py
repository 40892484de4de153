"""The live form: who is let in, what is answered, and how it ends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import threading
from urllib.parse import urlsplit

import pytest
from lenstext import TEXT, until

import forked
from chromium import needs_chromium
from scse.lens import subject
from scse.lens.serve import LONGEST_REQUEST, MOST_LOOPS, Server


@pytest.fixture
def served(trained):
    """A server of two runs, and a way to ask it."""
    subjects = [subject(trained("scse")), subject(trained("other"))]
    with Server(subjects, "", 4) as server:
        thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.http.shutdown()
            thread.join()


def ask(server: Server, method: str, path: str, body: bytes | None = None, **headers: str):
    place = urlsplit(server.address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def look(server: Server, **wanted) -> list[dict]:
    status, text = ask(server, "POST", f"/{server.token}/look", json.dumps(wanted).encode())
    assert status == 200
    return [json.loads(line) for line in text.splitlines()]


def test_it_listens_on_the_loopback_address_alone(served):
    assert served.http.server_address[0] == "127.0.0.1"
    assert len(served.token) >= 22


def test_only_with_the_token_and_under_the_loopbacks_name(served):
    page = f"/{served.token}/"
    assert ask(served, "GET", page)[0] == 200
    for path in ("/", "/x/", page[:-1], page + "x", "/" + served.token[:-1] + "/"):
        assert ask(served, "GET", path)[0] == 404
    assert ask(served, "GET", page, Host="evil.example:80")[0] == 404
    assert ask(served, "POST", "/look", b"{}")[0] == 404
    assert ask(served, "POST", page + "look", b"{}", Host="evil.example")[0] == 404


def test_an_answer_comes_in_parts(served):
    events = look(served, text=TEXT, runs=[0], loops=3)
    assert "head" in events[0]
    rows = len(events[0]["head"]["ids"])
    assert sum(event["part"]["rows"] for event in events if "part" in event) == rows
    assert events[-2]["end"]
    assert events[-2]["attention"]["shape"][2] == 3
    assert events[-1]["seconds"] >= 0


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"text": "", "runs": [0], "loops": 3}, "type some"),
        ({"text": "a", "runs": [], "loops": 3}, "choose at least one run"),
        ({"text": "a", "runs": [2], "loops": 3}, "choose at least one run"),
        ({"text": "a", "runs": [0], "loops": MOST_LOOPS + 1}, "loops must be between 1 and 512"),
        ({"text": 5, "runs": [0], "loops": 3}, "choose at least one run"),
        ({"text": "a", "runs": [0, 1], "loops": 3}, "rows cannot stand side by side"),
    ],
)
def test_a_mistake_is_one_line(served, wanted, message):
    (event,) = look(served, **wanted)
    assert message in event["error"]


def test_requests_that_are_none(served):
    path = f"/{served.token}/look"
    assert ask(served, "POST", path, b"not json")[0] == 400
    assert ask(served, "POST", path, b"", **{"Content-Length": str(LONGEST_REQUEST + 1)})[0] == 400
    assert ask(served, "DELETE", path)[0] == 501


def test_ctrl_c_ends_the_command(trained):
    running = forked.start(["lens", trained("scse"), "--serve"])
    try:
        said = running.stdout.readline()
        assert re.match(r"lens: http://127\.0\.0\.1:\d+/[\w-]{22}/ ", said)
        running.send_signal(signal.SIGINT)
        _, complaint = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, complaint) == (0, "")


@needs_chromium
def test_typing_a_text_in_the_browser(served, tab):
    page = tab(served.address)
    assert page.locator("#controls").is_hidden(), "there is nothing to control yet"
    page.locator("#live-runs input").nth(1).uncheck()
    page.fill("#live-text", "the state <i>moves</i> again")
    page.press("#live-text", "Enter")
    until(page, "document.getElementById('live-state').textContent.startsWith('done in')")
    assert page.evaluate("lens.runs[0].known.every(row => row === 1)")
    # the facts are drawn with the next frame, which may come after the answer has ended
    until(page, "document.querySelector('[data-fact=fixed] b').textContent !== '—'")
    page.fill("#live-loops", "6")
    page.click("#live button")
    until(page, "lens.runs[0].loops === 6 && lens.runs[0].packedAttention")
    page.locator("#live-runs input").nth(1).check()
    page.click("#live button")
    until(page, "document.getElementById('live-state').textContent.includes('side by side')")
