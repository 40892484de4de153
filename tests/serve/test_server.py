"""What a server does with those who make mistakes, leave, or ask too much; and what it says about itself."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
import torch
from liveserver import ask, running

from runs import SCSE, run, write_corpus
from scse.cli import main
from scse.cli.serve import chosen_loops
from scse.errors import UserError
from scse.serve.app import Settings
from scse.serve.ask import Defaults
from scse.serve.head import read
from scse.serve.limits import Limits
from scse.serve.load import Load, run_load
from scse.serve.served import Chat, open_served
from scse.serve.server import listen
from scse.serve.wire import Place

GOOD = {"model": "tiny", "prompt": "the state", "max_tokens": 4, "temperature": 0}


def until(true, seconds=60):
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": "\\ud800"}', "half a character"),
        (b'{"prompt": "a", "temperature": NaN}', "not JSON"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [1, "a"]}, "prompt must be a text"),
        ({"prompt": [[1], []]}, "prompt must be a text"),
        ({"prompt": [10**6]}, "outside the vocabulary"),
        ({"prompt": None}, "prompt must be a text"),
        ({"max_tokens": 0}, "nothing to answer"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"max_tokens": 100}, "do not fit into the model's 48 positions"),
        ({"loops": 0}, "loops must be a whole number of at least 1"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"loops": 65}, "loops must be between 1 and 64"),
        ({"loops": 10**7}, "loops must be a whole number between 1 and 1,048,576"),
        ({"exit_rule": "upddate", "exit_threshold": 1}, "did you mean 'update'"),
        ({"exit_rule": "kl"}, "needs an exit_threshold"),
        ({"exit_treshold": 1}, "did you mean 'exit_threshold'"),
        ({"temperature": -1}, "temperature must be a number between 0 and 100"),
        ({"top_p": 0}, "top_p must be a number"),
        ({"n": 1000}, "n must be a whole number between 1 and 128"),
        ({"n": 100, "prompt": ["a", "b"]}, "200 answers are more than 128"),
        ({"stop": [""]}, "stop must be"),
        ({"stream": 1}, "stream must be true or false"),
        ({"logit_bias": {"5": 100}}, "logit_bias is not supported"),
        ({"budget": 0.5}, "budget must be a number of at least 1"),
        ({"exit_rule": "gate", "exit_threshold": 0.5}, "this model has no exit gate"),
        ({"prompt": [-1], "echo": True}, "token -1 of the prompt is outside the vocabulary"),
        ({"prompt": [[1], [10**30]], "echo": True}, "is outside the vocabulary"),
        ({"exit_threshold": 10**400}, "exit_threshold must be a number"),
    ],
)
def test_a_mistake_is_one_line(live, change, message):
    body = change if isinstance(change, bytes) else {**GOOD, **change}
    status, answer = ask(live, "/v1/completions", body)
    assert status == 400
    assert message in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]


def test_what_is_not_there(live):
    assert ask(live, "/v1/completions", {**GOOD, "model": "tinny"})[0] == 404
    assert ask(live, "/v1/models/other")[0] == 404
    assert ask(live, "/v2")[0] == 404
    assert ask(live, "/v1/completions")[0] == 405
    for messages in ([], [{"role": "robot", "content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}]):
        status, answer = ask(live, "/v1/chat/completions", {"messages": messages})
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def test_only_under_the_loopbacks_name(live):
    for name in ("evil.example", "127.0.0.1.evil.example:80", "["):
        status, answer = ask(live, "/v1/models", Host=name)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert ask(live, "/v1/models", Host="[::1]:8000")[0] == 200
    assert ask(live, "/v1/models", Host="localhost:1")[0] == 200


def test_pages_from_elsewhere_may_not_ask(live, served):
    assert ask(live, "/v1/models", Origin="http://localhost:3000")[0] == 200
    for elsewhere in ("https://evil.example", "null", "http://[", "http://127.0.0.1.evil.example"):
        status, answer = ask(live, "/v1/completions", GOOD, Origin=elsewhere)
        assert (status, answer["error"]["type"]) == (403, "permission_error")
    with running(served, settings=Settings(api_key="k")) as server:
        assert ask(server, "/v1/models", Origin="https://a.page", Authorization="Bearer k")[0] == 200


def test_the_address_it_was_told_to_listen_on_is_one_of_its_names(served):
    with running(served, settings=Settings(host="127.0.0.2")) as server:
        assert ask(server, "/v1/models", Host="127.0.0.2:80")[0] == 200
        assert ask(server, "/v1/models", Host="127.0.0.3:80")[0] == 400


def test_addresses_of_six_parts_are_written_in_brackets():
    assert Place.of("http://[::1]:81").name == "[::1]:81"
    assert Place.of("localhost:80").name == "localhost:80"


def test_more_alternatives_than_words_are_all_words():
    scores = torch.zeros(1, 3)
    (found,) = read(scores, [1], [4], 20)
    assert {name for name, _ in found.top} == {0, 1, 2}


def test_a_method_that_is_not_there_and_a_key_that_is_missing_say_what_would_do(live, served):
    place = urlsplit(live.address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.request("GET", "/v1/completions")
    assert connection.getresponse().headers["allow"] == "POST"
    connection.close()
    with running(served, settings=Settings(api_key="schlüssel")) as server:
        assert ask(server, "/v1/models", Authorization="Bearer schlüssel".encode())[0] == 200
        place = urlsplit(server.address)
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().headers["www-authenticate"] == "Bearer"
        connection.close()


def test_fields_that_ask_for_nothing_are_taken(live):
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "best_of": 1, "user": "someone", "suffix": None}
    assert ask(live, "/v1/completions", {**GOOD, **neutral})[0] == 200


def test_health_and_metrics(live):
    assert ask(live, "/v1/completions", {**GOOD, "loops": 6, "exit_threshold": 1e9, "max_tokens": 5})[0] == 200
    assert ask(live, "/health") == (200, {"status": "ok"})
    _, text = ask(live, "/metrics")
    numbers = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    assert float(numbers["scse_new_tokens_total"]) >= 5
    assert float(numbers["scse_flop_bound"]) > 1
    assert float(numbers["scse_flop_bound_share"]) > 0
    assert float(numbers["scse_tokens_per_second"]) > 0
    assert float(numbers["scse_time_to_first_token_seconds_count"]) >= 1
    assert float(numbers['scse_time_to_first_token_seconds_bucket{le="+Inf"}']) >= 1
    assert float(numbers["scse_cache_used_bytes"]) == 0
    names = set(re.findall(r"^# TYPE (\w+)", text.decode(), re.MULTILINE))
    assert all(re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) in names for name in numbers)


def test_a_key_a_short_body_and_a_deadline(served):
    settings = Settings(api_key="secret", max_body=200, body_seconds=0.2)
    with running(served, settings=settings, defaults=Defaults(4, deadline=0.0)) as server:
        assert ask(server, "/v1/models")[0] == 401
        assert ask(server, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert ask(server, "/health")[0] == 200
        key = {"Authorization": "Bearer secret"}
        assert ask(server, "/v1/models", Host="behind.a.proxy", **key)[0] == 200
        assert ask(server, "/v1/completions", {**GOOD, "prompt": "x" * 300}, **key)[0] == 413
        assert ask(server, "/v1/completions", b"{", **key, **{"Content-Length": "100"})[0] == 408
        assert ask(server, "/v1/completions", GOOD, **key)[0] == 504
        status, stream = ask(server, "/v1/completions", {**GOOD, "stream": True}, **key)
        assert status == 200
        assert json.loads(stream.split(b"\n\n")[-3].removeprefix(b"data: "))["error"]["code"] == 504
        assert stream.endswith(b"data: [DONE]\n\n")


def test_a_full_queue_is_the_clients_to_wait_for(served):
    with running(served, Limits(lanes=1, queue=2)) as server:
        assert ask(server, "/v1/completions", {**GOOD, "n": 3})[0] == 400
        assert ask(server, "/v1/completions", {**GOOD, "n": 2})[0] == 200
        server.engine._reception.waiting += 2  # as if others had come
        status, answer = ask(server, "/v1/completions", GOOD)
        server.engine._reception.waiting -= 2
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        assert b"scse_refused_total 1\n" in ask(server, "/metrics")[1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_forgotten(served, stream):
    with running(served, Limits(lanes=2)) as server:
        place = urlsplit(server.address)
        body = json.dumps({**GOOD, "n": 8, "max_tokens": 40, "loops": 64, "stream": stream}).encode()
        with socket.create_connection((place.hostname, place.port)) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            until(lambda: server.engine.running)
        until(lambda: not server.engine.running and not server.engine.waiting)
        assert server.engine.counters.ended.get("cancelled", 0) >= 1
        until(lambda: server.engine.cache.used_bytes == 0)


def send(server, raw, most=1 << 16):
    """What comes back for some bytes until the server closes the connection."""
    place = urlsplit(server.address)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(raw)
        found = b""
        while piece := connection.recv(most):
            found += piece
        return found


def head_of(length):
    return f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def test_a_client_that_leaves_in_its_body_is_one_line_of_the_log(served, caplog):
    with caplog.at_level(logging.INFO), running(served) as server:
        place = urlsplit(server.address)
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(head_of(100) + b"{")
            time.sleep(0.05)
        until(lambda: any('"status": 499' in record.getMessage() for record in caplog.records))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_body_that_says_it_is_too_long_is_not_waited_for(live):
    assert b" 413 " in send(live, head_of(10**12))
    assert b" 400 " in send(live, head_of("9" * 5000))


@pytest.mark.parametrize("beginning", [b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGE"])
def test_a_head_that_does_not_come_is_not_waited_for(served, monkeypatch, beginning):
    monkeypatch.setattr("scse.serve.connection.HEAD_SECONDS", 0.1)
    with running(served) as server:
        found = send(server, beginning)  # returns once the server has closed
        assert found.startswith(b"HTTP/1.1 200") == beginning.startswith(b"GET")
        assert ask(server, "/health")[0] == 200


@pytest.mark.parametrize(
    "change", [{"model": "k" * 9999}, {"k" * 9999: 1}, {"exit_rule": "k" * 9999, "exit_threshold": 1}]
)
def test_a_line_stays_short_whatever_it_quotes(live, change):
    status, answer = ask(live, "/v1/completions", {**GOOD, **change})
    assert 400 <= status < 500
    assert len(answer["error"]["message"]) < 400


def test_logs_say_nothing_of_what_was_said(live, caplog):
    secret = "anchor anchor anchor"
    with caplog.at_level(logging.INFO, logger="scse.serve.requests"):
        status, answer = ask(live, "/v1/completions", {**GOOD, "prompt": secret})
        assert status == 200
        ask(live, "/v1/completions", {**GOOD, "prompt": secret, "loops": 0})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "scse.serve.requests"]
    assert [line["status"] for line in lines] == [200, 400]
    assert lines[0]["completion_tokens"] == 4
    assert lines[0]["mean_loops"] == 4.0
    assert not [text for text in (secret, answer["choices"][0]["text"]) if text.strip() and text in caplog.text]


def test_what_is_under_way_is_finished_before_the_end(served):
    with running(served) as server:
        place = urlsplit(server.address)
        body = json.dumps({**GOOD, "max_tokens": 40, "loops": 16, "stream": True}).encode()
        with socket.create_connection((place.hostname, place.port)) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            until(lambda: server.engine.running or server.engine.counters.ended)
            server.stop()
            read = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"data: [DONE]" in read
    assert read.count(b'"loops"') >= 40


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_finished_in_time_is_told_so(served, caplog, stream):
    body = json.dumps({**GOOD, "max_tokens": 40, "loops": 64, "n": 128, "stream": stream}).encode()
    with running(served, Limits(lanes=1), grace=0) as server:
        place = urlsplit(server.address)
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(head_of(len(body)) + body)
            until(lambda: server.engine.running)
            server.stop()
            read = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"told to stop" in read
    assert not [record for record in caplog.records if "Exception" in record.getMessage()]


def test_the_load_test_finds_no_fault(live):
    load = Load(60, rate=200.0, depths=(1, 3), max_tokens=6, patience=60)
    report = run_load(Place.of(live.address), load)
    assert report["errors"] == {}
    assert report["requests"] == 60
    assert set(report["kinds"]) == {"plain", "stream", "leaves", "slow", "malformed"}
    assert report["answered"] == sum(report["kinds"][kind] for kind in ("plain", "stream", "slow"))
    assert 1 <= report["mean_loops"] <= 3
    assert report["request_seconds"]["p50"] <= report["request_seconds"]["p99"]
    until(lambda: not live.engine.running and not live.engine.waiting)
    assert live.engine.cache.used_bytes == 0


def test_the_load_test_runs_where_an_event_loop_does(live):
    async def notebook():
        return run_load(Place.of(live.address), Load(3, rate=100.0, depths=(1,), max_tokens=2, patience=60))

    with ThreadPoolExecutor(1) as alone:  # another test's browser may have left a loop running here
        report = alone.submit(lambda: asyncio.run(notebook())).result()
    assert report["errors"] == {}


def test_the_load_test_would_find_one(served, monkeypatch):
    monkeypatch.setattr("scse.serve.app.parse", lambda raw: 1 / 0)
    with running(served) as server:
        load = Load(8, rate=500.0, kinds=("plain", "malformed"), patience=60)
        report = run_load(Place.of(server.address), load)
    assert set(report["errors"]) == {"status 500", "a malformed body was answered with 500"}
    assert sum(report["errors"].values()) == 8


def test_the_command_asks_this_machine_alone(live, capsys):
    assert main(["load-test", "http://192.0.2.1:80"]) == 2
    assert "is not this machine" in capsys.readouterr().err
    assert main(["load-test", "http://127.0.0.1:9", "--requests", "1"]) == 2
    assert "start one with 'scse serve RUN'" in capsys.readouterr().err
    assert main(["load-test", live.address, "--requests", "5", "--rate", "100", "--max-tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 5


def test_a_port_in_use_is_one_line(live):
    with pytest.raises(UserError, match="cannot listen on"):
        listen("127.0.0.1", live.socket.getsockname()[1])
    with pytest.raises(UserError, match="between 0 and 65535"):
        listen("127.0.0.1", 70_000)


TEMPLATE = "{% for m in messages %}<|endoftext|>{{ m.role }}:{{ m.content }}{% endfor %}{% if x %}{{ y }}{% endif %}"


def test_a_template_of_the_tokenizers(served):
    chat = Chat(replace(served, template=TEMPLATE))
    ids = chat.encode([{"role": "user", "content": "the state"}])
    assert ids == [served.tokenizer.eot_id, *served.tokenizer.encode("user:the state")]
    with pytest.raises(UserError, match="spells out the special token"):
        chat.encode([{"role": "user", "content": "<|endoftext|>"}])
    for template, message in (("{% for %}", "is damaged"), ("{{ raise_exception('no') }}", "no")):
        with pytest.raises(UserError, match=message):
            Chat(replace(served, template=template)).encode([{"role": "user", "content": "a"}])
    with pytest.raises(UserError, match="refuses these messages"):
        Chat(replace(served, template="{{ ''.__class__.__mro__[1].__subclasses__() }}")).encode(
            [{"role": "user", "content": "a"}]
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    base = tmp_path_factory.mktemp("serve")
    run(write_corpus(base / "corpus", 600), base / "run", steps=1)
    return base / "run"


def test_the_command_serves_a_run_until_it_is_told_to_stop(trained):
    with subprocess.Popen(
        [SCSE, "serve", str(trained), "--port", "0", "--loops", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running_command:  # fmt: skip
        try:
            said = running_command.stdout.readline()
            port = int(re.match(r"serve: http://127\.0\.0\.1:(\d+)/v1 .*this machine only", said)[1])

            class Elsewhere:
                address = f"http://127.0.0.1:{port}"

            status, answer = ask(Elsewhere, "/v1/completions", {"prompt": "the state", "max_tokens": 3})
            assert (status, answer["usage"]["mean_loops"]) == (200, 2.0)
            running_command.send_signal(signal.SIGTERM)
            _, log = running_command.communicate(timeout=60)
        finally:
            running_command.kill()
    assert running_command.returncode == 0
    assert json.loads(log)["completion_tokens"] == 3


def test_mistakes_on_the_command_line(trained, capsys):
    for arguments, message in (
        (["nowhere"], "no run in nowhere"),
        ([str(trained), "--port", "70000"], "--port must be between"),
        ([str(trained), "--max-batch", "0"], "--max-batch must be at least 1"),
        ([str(trained), "--exit-rule", "upddate"], "did you mean 'update'"),
        ([str(trained), "--api-key", ""], "--api-key is empty"),
        ([str(trained), "--loops", "8", "--max-loops", "4"], "--loops 8 is more than --max-loops 4"),
        ([str(trained), "--exit-threshold", "-1"], "--exit-threshold must not be negative"),
        ([str(trained), "--exit-rule", "gate", "--exit-threshold", "0.5"], "this model has no exit gate"),
    ):
        assert main(["serve", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_the_most_loops_bound_the_usual_ones():
    assert chosen_loops(None, 8, None) == (8, Limits.loops)
    assert chosen_loops(100, 8, None) == (100, 100)
    assert chosen_loops(None, 8, 4) == (4, 4), "an export's own depth gives way"
    assert chosen_loops(3, 8, 4) == (3, 4)


def test_an_export_is_served_with_its_depth_and_template(trained, tmp_path):
    from scse.hf.export import _write
    from scse.runs import open_run

    opened = open_run(trained)
    _write(opened, tmp_path, 5)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    found = open_served(str(tmp_path))
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match="cannot load the model in"):
        open_served(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="holds a 'gpt2', not a model of ours"):
        open_served(str(tmp_path))
    assert (found.loops, found.template, found.tokenizer.digest) == (5, TEMPLATE, opened.tokenizer.digest)
    assert found.model.config == opened.model.config
