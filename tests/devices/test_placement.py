"""Every path of every family on a device that is not the host: nothing is mixed, and the numbers are the host's."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from fakedevice import DEVICE, Mixed, Remote, accelerator
from runs import config_for, final_tensors, options, run, write_corpus
from scse.config import data_config
from scse.config.use import ExitTraining
from scse.data import Sequences, open_corpus
from scse.diagnostics import diagnose
from scse.diagnostics.steering import steer
from scse.diagnostics.theory import theory
from scse.evaluation.accuracy import right_answers, settling
from scse.evaluation.adaptive import offline, online
from scse.evaluation.calibration import trace
from scse.evaluation.completion import Completion, complete
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.profile import profile
from scse.evaluation.rules import RULES, Stopping
from scse.evaluation.tokenwise import tokenwise
from scse.generation import Depth, Generation, Sampling
from scse.generation.generate import stream
from scse.generation.quality import cached_perplexity
from scse.lens.compute import readings
from scse.lens.compute import trace as lens_trace
from scse.processes import World
from scse.progress import SILENT
from scse.serve.engine import Engine
from scse.serve.limits import Limits
from scse.serve.sequence import Sequence, Wanted
from scse.training.exits import train_gate
from scse.training.objectives import TERMS, Objective
from scse.training.trainer import Trainer
from tinymodels import NAMES, SHAPES, TINY, anchored, some_ids, tiny

ANCHORED = [name for name in NAMES if anchored(name)]
TOKENS = np.random.default_rng(0).integers(0, TINY.vocabulary, 16 * 2 + 6).astype(np.uint16)
UPDATE = RULES.find("update")


@pytest.fixture(autouse=True)
def _never_behind(monkeypatch):
    """The device does at once what it is given."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


def both(work, family, **options):
    """What a piece of work gives on the host and on the device."""
    model = tiny(family, spread=0.08, **options)
    here = work(model)
    with accelerator():
        there = work(copy.deepcopy(model).to(DEVICE))
    return here, there


def assert_same(here, there):
    """Equal but for how a sum rounds; nothing of the device is left in a result."""
    if isinstance(here, torch.Tensor):
        torch.testing.assert_close(there.host if isinstance(there, Remote) else there, here)
    elif isinstance(here, np.ndarray):
        np.testing.assert_allclose(there, here, rtol=1e-9)
    elif isinstance(here, list | tuple):
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
    elif hasattr(here, "__dataclass_fields__"):
        assert_same(
            [v for k, v in vars(here).items() if k != "seconds"], [v for k, v in vars(there).items() if k != "seconds"]
        )
    elif isinstance(here, dict):
        assert_same(list(here.items()), list(there.items()))
    else:
        assert there == (pytest.approx(here, rel=1e-9, nan_ok=True) if isinstance(here, float) else here)


def test_a_mixture_is_seen():
    with accelerator() as watch:
        there = torch.zeros(3, device=DEVICE)
        assert isinstance(there, Remote)
        assert there.device == DEVICE
        assert (there + torch.zeros(())).device == DEVICE, "a number may come from the host"
        for mistake in (
            lambda: there + torch.zeros(3),
            lambda: torch.cat([there, torch.zeros(3)]),
            lambda: there[torch.tensor([0, 1])],
            lambda: torch.empty_like(there).normal_(generator=torch.Generator()),
            lambda: there.numpy(),
            lambda: np.asarray(there),
        ):
            with pytest.raises(Mixed):
                mistake()
        assert not watch.waits
        assert there.sum().item() == 0
        assert not (there > 0).any()
        there[there > 0].cpu()
        assert {what for what, _ in watch.waits} == {"a number", "a mask", "a copy"}


def trained(model):
    """Losses and gradients, with and without what counts nothing, with and without recomputation."""
    ids, targets = some_ids(2, 9), some_ids(2, 9, seed=6)
    targets[0, :4] = -1
    found = []
    for recompute in (False, True):
        # What is drawn on a device differs from what a host draws, so nothing is.
        objective = Objective(model, recompute=recompute).eval()
        model.zero_grad(set_to_none=True)
        loss = objective(*model.place(ids, targets), 3)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([loss.detach(), *gradients])
    return found


def test_training(family):
    assert_same(*both(trained, family))


def test_every_term_of_an_objective_and_depths_of_their_own():
    """The objective is what DDP and FSDP wrap."""

    def work(model):
        batch = model.place(some_ids(3, 9), some_ids(3, 9, seed=6))
        found = []
        # One draws a direction on the device, the other is for families that halt.
        usual = [term for term in TERMS.names() if term not in ("expansion", "ponder")]
        for name in usual if model.config.family == "scse" else ["ponder"]:
            loss = Objective(model, name, backprop=2).eval()(*batch, np.array([3, 1, 3]))
            loss.backward()
            found.append(loss.detach())
        Objective(model, "expansion")(*batch, 2).backward()
        return found

    assert_same(*both(work, "scse", shape=replace(TINY, gate=True, coda=1)))
    assert_same(*both(work, "universal"))


def test_a_gate_is_trained(tmp_path):
    config, how = config_for(write_corpus(tmp_path / "corpus"), steps=2), options(tmp_path / "cache")
    text = open_corpus(data_config(config, how), progress=False)
    shape = replace(TINY, context=config.model.shape.context, vocabulary=config.model.shape.vocabulary)

    def work(model):
        gate, score = train_gate(model, text, config, ExitTraining(steps=2, batch=2, ceiling=3))
        return score, [p.detach() for p in gate.parameters()]

    assert_same(*both(work, "scse", shape=shape, dtype=torch.float32))


class Answer:
    """What a sequence of the server is told."""

    def __init__(self):
        self.told = []

    def prompt(self, scored):
        self.told += scored

    def token(self, new):
        self.told.append((new.id, new.loops))

    def end(self, reason, message=""):
        self.told.append(reason)


@pytest.mark.parametrize("shape", ["block", "everything"])
def test_serving(shape):
    def work(model):
        engine, answers = Engine(model, Limits(lanes=2, chunk=4, prefill=8, loops=4)), []
        for prompt, loops, threshold in (((3, 1, 4), 3, None), ((1, 5, 9, 2, 6), 4, 0.5), ((5,), 2, None)):
            wanted = Wanted(prompt, 3, loops, threshold, logprobs=2, scores=True)
            engine.submit([Sequence(wanted, (answer := Answer()), object())])
            answers.append(answer)
        with torch.no_grad():
            while Engine.tick.__wrapped__(engine):  # without inference mode, which knows no tensors of other kinds
                pass
        return [answer.told for answer in answers]

    assert_same(*both(work, "scse", shape=SHAPES[shape]))


def test_dropout_and_noise_are_drawn_on_the_device():
    model = tiny("huginn").train()
    with accelerator():
        there = model.to(DEVICE)
        loss = there.nll(*there.place(some_ids(2, 9), some_ids(2, 9, seed=6)), 3, recompute=True)
        loss.backward()
        assert loss.isfinite()


@torch.no_grad()
def seen(model):
    (ids,) = model.place(some_ids(2, 9))
    parts = ["states", "updates", "predictions", *(["deviations"] if anchored(model.config.family) else [])]
    walked = model.trajectory(ids, 3, parts)
    traced = lens_trace(model, some_ids(1, 7)[0].numpy(), 3)
    read = list(readings(model, traced, some_ids(1, 7, seed=2)[0].numpy()))
    return model(ids, 3), [getattr(walked, part) for part in parts], traced.arrays, [one.arrays for one in read]


def test_forward_trajectory_and_lens(family):
    assert_same(*both(seen, family))


def evaluated(model):
    stopping = Stopping(UPDATE, 3, 2)
    statistics = trace(model, TOKENS, stopping, with_nll=True)
    middle = float(np.median(statistics.statistics))
    return [
        perplexity_over_depths(model, TOKENS, [1, 3], batch=2),
        statistics,
        offline(model, TOKENS, stopping, [middle, middle / 2]),
        online(model, TOKENS, stopping, middle),
        tokenwise(model, TOKENS, stopping, middle),
    ]


def test_fixed_and_adaptive_depth(family):
    assert_same(*both(evaluated, family))


def written(model):
    prompts, found = [[3, 1, 4], [1, 5, 9, 2, 6], [5]], []
    for depth, sampling in ((Depth((2, 3, 1)), Sampling(0.9, 0.8)), (Depth(3, 0.5), Sampling(0))):
        wanted = Generation(depth, 2, sampling, stop=7)
        found += [(token.row, token.id, token.loops) for new in stream(model, prompts, wanted) for token in new]
    return found


def test_generation(family):
    here, there = both(written, family)
    assert here == there


def test_cached_perplexity_with_everything_in_the_shape():
    def work(model):
        return cached_perplexity(model, TOKENS[:9], 2, "exact", 2, None, SILENT), written(model)

    assert_same(*both(work, "scse", shape=SHAPES["everything"]))


def test_answers_and_completion():
    targets = some_ids(4, 16, seed=3).numpy()
    targets[:, ::2] = -1
    data = Sequences(some_ids(4, 16).numpy(), targets, np.ones_like(targets))
    examples = [Completion(some_ids(1, length, seed=length)[0].tolist(), 2) for length in (5, 9, 12)]

    def work(model):
        answers = right_answers(model, data, [1, 3], 3, None), settling(model, data, 4, 3, None)
        return *answers, complete(model, examples, [1, 3], 2, SILENT)

    assert_same(*both(work, "scse"))


@pytest.mark.parametrize("family", ANCHORED)
def test_diagnostics(family, monkeypatch):
    monkeypatch.setattr("scse.diagnostics.pointwise.EXPANSION_ITERATIONS", 1)

    def work(model):
        found = diagnose(model, TOKENS, 1, 2, 1, [0], SILENT)
        turned = steer(model, TOKENS, 1, 1, 1, SILENT)
        return found, turned.paths, turned.forcing

    assert_same(*both(work, family))


@pytest.mark.parametrize("family", ANCHORED)
def test_theory(family):
    def work(model):
        (found,) = theory(model, TOKENS, 1, 2, 1, SILENT, order=1)
        return found.arriving, found.along, found.loss, found.beta, found.contraction

    assert_same(*both(work, family))


@torch.no_grad()
def test_the_shell_of_transformers(family):
    from scse.hf import ScseConfig, ScseForCausalLM

    model = tiny(family, spread=0.08)
    shell = ScseForCausalLM(ScseConfig.of(model.config, 3, eos_token_id=60, pad_token_id=60)).eval()
    shell.model = model
    ids, mask = some_ids(2, 5), torch.ones(2, 5, dtype=torch.long)
    mask[0, :2] = 0
    labels = ids.masked_fill(mask == 0, -100)

    def work(place):
        given, real = place(ids), place(mask)
        plain = shell(given, attention_mask=real, labels=place(labels))
        more = shell.generate(given, attention_mask=real, max_new_tokens=3, do_sample=False, num_loops=2)
        return plain.loss, plain.logits, more

    here = work(lambda x: x)
    with accelerator():
        shell.to(DEVICE)
        assert_same(here, work(lambda x: x.to(DEVICE)))


def test_profile_waits_for_the_device_and_asks_it_for_its_peak(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    model = tiny("scse")
    with accelerator():
        (row,) = profile(model.to(DEVICE), [2], batch=2, length=8, repeats=1)
    assert row.peak_allocated_mib == 3
    assert len(asked) >= 3 + 1 + 1, "before every measurement, after those that count, and after that of the memory"
    assert set(asked) == {DEVICE}


def test_a_run_trains_and_goes_on_as_on_the_host(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    changes = {"dropout": 0.0, "micro_batches": 2, "steps": 4}
    run(corpus, tmp_path / "here", "step-adapter", **changes)
    config, how = config_for(corpus, "step-adapter", **changes), options(tmp_path / "cache")
    text = open_corpus(data_config(config, how), progress=False)
    plainly = Trainer._step

    def until_killed(trainer, step, meter):
        if step == 3:
            raise KeyboardInterrupt
        return plainly(trainer, step, meter)

    with accelerator():
        monkeypatch.setattr(Trainer, "_step", until_killed)
        with pytest.raises(KeyboardInterrupt):
            Trainer(config, how, tmp_path / "there", text, World(0, 1, DEVICE)).run()
        monkeypatch.setattr(Trainer, "_step", plainly)
        assert Trainer(config, how, tmp_path / "there", text, World(0, 1, DEVICE)).run().finished
    for here, there in zip(final_tensors(tmp_path / "here"), final_tensors(tmp_path / "there"), strict=True):
        assert here.keys() == there.keys()
        for name in here:
            torch.testing.assert_close(there[name], here[name], rtol=1e-5, atol=1e-7)
