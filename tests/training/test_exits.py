"""A gate trained on a finished model: it learns what can be learnt, is kept beside the run, and commands take it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from runs import run, write_corpus
from scse import cli
from scse.config.use import ExitTraining
from scse.errors import UserError
from scse.recurrence.reading import MotionGate
from scse.runs import open_run
from scse.runs.exits import ABOUT_FILE, FOLDER, GATE_FILE
from scse.training.batches import batch_source
from scse.training.exits import _loss, loop_gains, train_gate
from tinymodels import TINY, some_ids, tiny


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    out = tmp_path_factory.mktemp("exits") / "run"
    run(corpus, out)
    return out


@pytest.fixture
def gated(finished, tmp_path, capsys, corpus):
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    line = ["train-exit", str(copy), "--steps", "6", "--batch", "2", "--ceiling", "4", "--json", "--quiet"]
    assert cli.main([*line, "--cache-dir", str(corpus.parent / "cache")]) == 0
    return copy, json.loads(capsys.readouterr().out)


def test_the_gains_are_what_each_loop_took_off_the_loss():
    model, ids = tiny("scse"), some_ids(2, 9)
    states, gains = loop_gains(model, ids[:, :-1], ids[:, 1:], 4)
    losses = [
        torch.nn.functional.cross_entropy(model(ids[:, :-1], t).transpose(1, 2), ids[:, 1:], reduction="none")
        for t in (1, 2, 3, 4)
    ]
    assert len(states) == 5
    torch.testing.assert_close(gains, torch.stack([losses[t] - losses[t + 1] for t in range(3)]))


def test_a_gate_learns_when_a_loop_pays():
    """Loops help until the state hardly moves: how far it moved says it all, and the gate must find that out."""
    torch.manual_seed(0)
    gate = MotionGate(TINY)
    torch.nn.init.zeros_(gate.proj.weight)
    optimiser = torch.optim.Adam(gate.parameters(), lr=0.05)
    right = []
    for _ in range(150):
        start = torch.randn(4, 6, TINY.width)
        rates = torch.rand(4, 6, 1)
        states = [start]
        for t in range(6):
            states.append(states[-1] + rates**t * torch.nn.functional.normalize(torch.randn_like(start), dim=-1))
        moved = torch.stack([(states[t] - states[t - 1]).norm(dim=-1) / states[t].norm(dim=-1) for t in range(1, 6)])
        loss, sums = _loss(gate, states, moved - 0.05, torch.ones(4, 6, dtype=torch.bool))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        right.append(float(sums[1] / sums[3]))
    assert sum(right[-20:]) / 20 > 0.97
    assert gate.motion.item() < 0, "the less it moved, the more it stops"


def test_the_model_stays_as_it_is(finished, gated):
    folder, said = gated
    assert {"loss", "right", "always", "motion"} <= said.keys()
    before, after = open_run(finished), open_run(folder)
    assert before.model.recurrence.exit is None
    assert after.model.recurrence.exit is not None
    ids = some_ids(2, 8)
    assert torch.equal(before.model(ids, 3), after.model(ids, 3))
    assert before.config == after.config


def test_every_command_that_takes_a_rule_takes_the_gate(gated, capsys, corpus):
    folder, _ = gated
    about = [
        *("--rule", "gate", "--ceiling", "4", "--limit", "4", "--json", "--quiet"),
        "--cache-dir",
        str(corpus.parent / "cache"),
    ]
    assert cli.main(["adaptive", str(folder), "--budgets", "2", "--calibrate", "4", *about]) in (0, 2)
    rows = capsys.readouterr()
    assert "no threshold" in rows.err or json.loads(rows.out)[0]["budget"] == 2
    assert cli.main(["pareto", str(folder), "--depths", "1", "--budgets", "2", *about]) == 0
    capsys.readouterr()
    assert cli.main(["generate", str(folder), "--prompt", "the state", "--rule", "gate", "--adaptive", "0.5",
                     "--loops", "4", "--max-new-tokens", "3", "--json"]) == 0  # fmt: skip


def test_another_seed_is_another_order_of_the_text(finished, corpus):
    opened = open_run(finished)
    data = opened.corpus(None, None, str(corpus.parent / "cache"), progress=False)
    first, again, other = (batch_source(data, opened.config, seed).batch(0, 1)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_gate_reads_as_many_sequences_as_it_says(finished, corpus, monkeypatch):
    opened = open_run(finished)
    data = opened.corpus(None, None, str(corpus.parent / "cache"), progress=False)
    seen = []

    def counted(model, ids, *rest):
        seen.append(len(ids))
        return loop_gains(model, ids, *rest)

    monkeypatch.setattr("scse.training.exits.loop_gains", counted)
    wanted = ExitTraining(steps=2, batch=opened.config.batch + 3, ceiling=3)
    train_gate(opened.model, data, opened.config, wanted)
    assert seen == [opened.config.batch + 3] * 2


def test_an_export_holds_the_gate(gated, tmp_path):
    pytest.importorskip("transformers")
    from scse.hf import ScseForCausalLM
    from scse.hf.export import export

    folder, _ = gated
    opened = open_run(folder)
    export(opened, tmp_path / "hf", 3, None, None, show=False)
    shell = ScseForCausalLM.from_pretrained(tmp_path / "hf")
    assert torch.equal(shell.model.recurrence.exit.motion, opened.model.recurrence.exit.motion)
    ids = some_ids(1, 5)
    made = shell.generate(ids, num_loops=4, exit_threshold=0.5, exit_rule="gate", max_new_tokens=2, do_sample=False)
    assert made.shape == (1, 7)


def test_a_gate_of_other_weights_is_left_out(gated, finished, corpus, tmp_path, caplog):
    folder, _ = gated
    run(corpus, tmp_path / "other", seed=1)
    shutil.copytree(folder / FOLDER, tmp_path / "other" / FOLDER)
    assert open_run(tmp_path / "other").model.recurrence.exit is None
    assert "was trained on other weights" in caplog.text


def test_a_damaged_gate_is_one_line(gated):
    folder, _ = gated
    file = folder / FOLDER / GATE_FILE
    file.write_bytes(file.read_bytes()[:-4] + b"\0\1\2\3")
    with pytest.raises(UserError, match="is damaged; train it again: scse train-exit"):
        open_run(folder)
    (folder / FOLDER / ABOUT_FILE).unlink()
    assert open_run(folder).model.recurrence.exit is None


def test_unshared_layers_have_nothing_to_decide(corpus, tmp_path):
    run(corpus, tmp_path / "run", "unshared-2")
    opened = open_run(tmp_path / "run")
    data = opened.corpus(None, None, str(corpus.parent / "cache"), progress=False)
    with pytest.raises(UserError, match="a fixed depth, so there is nothing to decide"):
        train_gate(opened.model, data, opened.config, ExitTraining(steps=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps must be at least 1"),
        (["--ceiling", "1"], "at least 2 loops"),
        (["--lr", "0"], "positive"),
    ],
)
def test_mistakes_are_one_line(finished, capsys, options, message):
    assert cli.main(["train-exit", str(finished), *options]) == 2
    assert message in capsys.readouterr().err
