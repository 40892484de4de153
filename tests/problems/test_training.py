"""Training on answers: which positions count, targets that follow the depth, and exact continuation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chases import SMALL, settings, train_small

from forked import two_processes
from runs import final_tensors
from scse.config import assemble, protocol
from scse.config.training import TrainConfig
from scse.data import UNCOUNTED, ProblemCorpus
from scse.errors import UserError
from scse.problems import PROBLEMS, make_problem
from scse.training import trainer
from scse.training.batches import batch_source
from tinymodels import some_ids, tiny


def assert_runs(left, right, compare):
    for ours, theirs in zip(final_tensors(left), final_tensors(right), strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            compare(ours[name], theirs[name])


def test_positions_that_do_not_count_change_nothing():
    model = tiny("scse").eval()
    ids = some_ids(2, 6)
    targets = ids.roll(-1, 1).clone()
    targets[:, ::2] = UNCOUNTED
    logits = model(ids, 3)
    counted = targets != UNCOUNTED
    expected = torch.nn.functional.cross_entropy(logits[counted], targets[counted], reduction="sum")
    torch.testing.assert_close(model.nll(ids, targets, 3), expected)
    losses = model.token_nll(model.hidden(ids, 3), targets).view(targets.shape)
    assert (losses[~counted] == 0).all()
    torch.testing.assert_close(losses.sum(), expected)


def test_targets_follow_the_depth_of_the_step():
    config = assemble("scse", settings(nodes=8, hops=4))
    corpus = ProblemCorpus(make_problem("pointer-chase", config.problem))
    source = batch_source(corpus, config)
    (ids, one), (same, two), (_, deep) = (source.batch(3, loops) for loops in (1, 2, 4))
    assert torch.equal(ids, same)
    assert not torch.equal(one, two)
    asked = (one != UNCOUNTED).sum()
    assert asked == source.counted == config.batch * 8
    solved = np.stack([corpus.problem.solve(row) for row in ids.numpy()])
    assert np.array_equal(deep[:, corpus.problem.asked].numpy(), solved)


def test_a_run_that_is_interrupted_ends_as_one_that_was_not(tmp_path, monkeypatch):
    train_small(tmp_path / "whole")

    class Killed(Exception):
        pass

    real = trainer.Trainer._step

    def dies(self, step, meter):
        if step == 4:
            raise Killed
        return real(self, step, meter)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_step", dies)
        with pytest.raises(Killed):
            train_small(tmp_path / "parts")
    assert train_small(tmp_path / "parts").finished

    def same(ours, theirs):
        assert torch.equal(ours, theirs)

    assert_runs(tmp_path / "whole", tmp_path / "parts", same)


def test_micro_batches_are_parts_of_the_same_step(tmp_path):
    train_small(tmp_path / "one")
    train_small(tmp_path / "two", micro_batches=2)

    def close(ours, theirs):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)

    assert_runs(tmp_path / "one", tmp_path / "two", close)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_what_one_trains(tmp_path, strategy):
    train_small(tmp_path / "one", micro_batches=2)
    sets = [part for name, value in SMALL.items() if name != "steps" for part in ("--set", f"{name}={value}")]
    line = ["train", "--family", "scse", "--protocol", "pointer-chase", "--steps", str(SMALL["steps"]), *sets]
    line += ["--set", "micro_batches=2", "--precision", "float32", "--checkpoint-every", "3", "--quiet"]
    result = two_processes([*line, "--strategy", strategy, "--out", tmp_path / "two"])
    assert result.returncode == 0, result.stderr[-3000:]
    assert "steps done, validation perplexity of the answers" in result.stdout

    def close(ours, theirs):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)

    assert_runs(tmp_path / "one", tmp_path / "two", close)


@pytest.mark.parametrize("name", PROBLEMS.names())
def test_every_problem_has_a_protocol(name):
    config = assemble("looped", protocol(name))
    problem = make_problem(name, config.problem)
    assert config.corpus == name
    assert config.problem == problem.options
    assert config.model.shape.context == problem.length
    assert config.model.shape.vocabulary == problem.vocabulary + 1
    assert config.max_loops == problem.hardest + 2
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_a_run_on_text_is_written_as_before():
    assert "problem" not in assemble("scse", {"steps": 3}).to_dict()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodez": 3}, "did you mean 'nodes'"),
        ({"hops": 9}, "hops must be between 1 and 5"),
        ({"context": 99}, "a sequence of pointer-chase has 12 tokens"),
        ({"tokenizer": "bpe-300"}, "words of its own"),
    ],
)
def test_mistakes_are_one_line(changes, said):
    with pytest.raises(UserError, match=said):
        assemble("scse", settings(**changes))
