"""What each unit of the other projects' families is for, and the identities between them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from reference import Reference, rms
from scse import LoopedLM, deviation_map, model_config
from scse.errors import UserError
from scse.evaluation.completion import Completion, complete
from scse.recurrence.starts import hashed_normal
from test_identities import same_weights
from tinymodels import SHAPES, TINY, some_ids, tiny


def test_noise_is_truncated_normal_and_knows_only_seed_position_and_channel():
    noise = hashed_normal(3, torch.arange(200), 50)
    assert float(noise.abs().max()) < 3
    assert float(noise.mean()) == pytest.approx(0, abs=0.03)
    assert float(noise.std()) == pytest.approx(0.9866, abs=0.03)  # of a normal distribution cut off at 3
    assert torch.equal(hashed_normal(3, torch.tensor([[7], [150]]), 50)[:, 0], noise[[7, 150]])
    assert not torch.equal(hashed_normal(4, torch.arange(200), 50), noise)
    neighbours = np.corrcoef(noise[:-1].flatten(), noise[1:].flatten())[0, 1]
    assert abs(neighbours) < 0.05


def test_noise_is_drawn_anew_while_training():
    start = tiny("huginn").recurrence.start
    e = torch.zeros(3, 4, 24)
    assert torch.equal(start(e), start(e))
    start.train()
    torch.manual_seed(0)
    first, second = start(e), start(e)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert float(first.abs().max()) < 3 * TINY.init_std


@pytest.mark.parametrize(("start", "check"), [
    ("zero", lambda h, e: not h.any()),
    ("embedding", torch.equal),
    ("projected", lambda h, e: not torch.equal(h, e)),
])  # fmt: skip
def test_other_starts(start, check):
    model = tiny("parcae", start=start)
    frame = model.recurrence.begin(model.embed(some_ids()))
    assert check(frame.start, frame.embedding)
    with pytest.raises(UserError, match="did you mean 'noise'"):
        tiny("parcae", start="nose")


def test_decay_starts_at_a_half_and_injection_from_the_normalised_input():
    model = LoopedLM(model_config("parcae", TINY)).double().eval()
    drive, e = model.recurrence.drive, model.embed(some_ids())
    z = torch.randn(e.shape, dtype=torch.float64)
    delta = float(np.log(2))
    wanted = 0.5 * z + delta * e / e.pow(2).mean(-1, keepdim=True).add(TINY.norm_eps).sqrt()
    torch.testing.assert_close(drive(0, z, drive.prepare(e, None)), wanted, rtol=0, atol=1e-6)
    assert torch.equal(model.recurrence.read(z), z)


def test_orthogonal_injection_starts_each_step_at_u_along_u():
    model = tiny("orthogonal-injection")
    drive, e = model.recurrence.drive, model.embed(some_ids())
    u = drive.prepare(e, None)
    x = drive(0, torch.randn_like(u), u)
    torch.testing.assert_close((x * u).sum(-1), u.pow(2).sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rival", ["parcae", "orthogonal-injection", "huginn"])
@torch.no_grad()
def test_a_centred_rival_is_the_rival_without_its_forcing(rival):
    """Δ' = T(Δ) − T(0) with the T of the rival itself, the trajectory of the counterfactual theory."""
    plain, centred = tiny(rival), tiny(f"centred-{rival}", anchor="embedding")
    same_weights(plain, centred)
    ids = some_ids()
    frame = plain.recurrence.begin(plain.embed(ids))
    delta = next(iter(centred.unroll(ids))).deviation
    forcing = deviation_map(plain.recurrence, 0, torch.zeros_like(delta), frame)
    assert forcing.any()
    for state in islice(centred.unroll(ids), 5):
        torch.testing.assert_close(state.z, delta, rtol=0, atol=1e-9)
        delta = deviation_map(plain.recurrence, state.t, delta, frame) - forcing


def plain_parcae(r, ids, loops):
    """h' = x + s·B(x), x = λ ⊙ h + u, from e, with each part that can be switched off written out."""
    e = r.embed(ids)
    source = rms(e) if r.o["normalise_input"] else e
    h, u, kept = e, torch.zeros_like(e), torch.ones(())
    if r.o["recall"]:
        delta = torch.log1p(torch.exp(r.w["recurrence.drive.step_size"]))
        u = delta * (source @ r.w["recurrence.drive.proj.weight"].T)
        if r.o["decay"]:
            kept = torch.exp(-delta * torch.exp(r.w["recurrence.drive.log_rate"]))
    else:
        h = source
        if r.o["decay"]:
            kept = 1 / (1 + torch.exp(r.w["recurrence.drive.keep.rate"]))
    for _ in range(loops):
        x = kept * h + u
        h = x + r.o["step_scale"] * r.core()(x)
        h = rms(h) if r.o["state_norm"] else h
    return r.readout(h @ r.w["recurrence.read.proj.weight"].T)


@pytest.mark.parametrize("changes", [
    {}, {"normalise_input": False}, {"decay": False}, {"recall": False}, {"recall": False, "decay": False},
    {"recall": False, "normalise_input": False}, {"step_scale": 0.5}, {"state_norm": True},
], ids=str)  # fmt: skip
@torch.no_grad()
def test_parcae_taken_apart(changes):
    model, ids = tiny("parcae", start="embedding", **changes), some_ids()
    r = Reference(model.state_dict(), model.config.shape, model.config.options)
    for loops in (1, 5):
        torch.testing.assert_close(model(ids, loops), plain_parcae(r, ids, loops), rtol=0, atol=1e-10)


def test_without_recall_the_start_must_hold_the_input():
    for start in ("noise", "zero"):
        with pytest.raises(UserError, match="never shows the model its input; set start=embedding"):
            tiny("parcae", recall=False, start=start)


@torch.no_grad()
def test_recall_is_as_loud_as_the_state_and_orthogonal_to_the_anchor():
    model = tiny("scse-recall")
    recurrence, e = model.recurrence, model.embed(some_ids())
    frame = recurrence.begin(e)
    z = torch.randn_like(e)
    seen = recurrence.drive(0, z, frame.drive)
    added = (seen - z) / recurrence.drive.gain
    torch.testing.assert_close(added.pow(2).mean(-1), z.pow(2).mean(-1), rtol=1e-4, atol=0)
    torch.testing.assert_close(
        (added * frame.hidden_anchor).sum(-1), torch.zeros(e.shape[:2]).double(), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(recurrence.drive(0, 1e3 * z, frame.drive), 1e3 * seen, rtol=0, atol=1e-2)
    assert not recurrence.drive(0, torch.zeros_like(z), frame.drive).any()
    with pytest.raises(UserError, match="did you mean 'plain'"):
        tiny("scse-recall", recall="plan")


@pytest.mark.parametrize("changes", [
    {"recall": "plain"}, {"decay": False}, {"state_norm": True}, {"normalise_source": True},
    {"normalise_source": True, "anchor": "embedding"},
], ids=str)  # fmt: skip
@torch.no_grad()
def test_every_part_of_scse_with_recall_keeps_the_anchor_fixed(changes):
    model, ids = tiny("scse-recall", **changes), some_ids()
    frame = model.recurrence.begin(model.embed(ids))
    assert model.recurrence.zero_preserving
    assert not deviation_map(model.recurrence, 0, torch.zeros_like(frame.embedding), frame).any()
    assert frame.start.any()
    if changes.get("normalise_source"):
        size = frame.hidden_anchor.pow(2).mean(-1)
        assert float(size.min()) > 0.5, "the source has unit rms, the embedding has not"
        if changes.get("anchor") == "embedding":
            torch.testing.assert_close(frame.hidden_anchor, rms(frame.embedding), rtol=0, atol=1e-9)
    if changes.get("state_norm"):
        state = next(islice(model.unroll(ids), 2, None))
        torch.testing.assert_close(state.z.pow(2).mean(-1), torch.ones(ids.shape).double(), rtol=1e-3, atol=0)


@torch.no_grad()
def test_halting_at_once_and_never():
    ids = some_ids()
    soon, never = tiny("universal"), tiny("universal")
    for model, bias in ((soon, 1000.0), (never, -1000.0)):
        model.recurrence.halting.proj.bias.fill_(bias)
    assert torch.equal(soon(ids, 1), soon(ids, 7))
    states = list(islice(never.unroll(ids), 4))
    h = states[3].z[..., :24]
    torch.testing.assert_close(states[3].hidden, h, rtol=0, atol=1e-12)
    assert not torch.equal(never(ids, 1), never(ids, 3))
    assert torch.equal(soon(ids, 1), never(ids, 1)), "one loop is one loop"


@torch.no_grad()
def test_weights_of_halting_add_up_to_one():
    """Where every state is the same, so is what is read of them, whatever the probabilities."""
    model = tiny("universal")
    unit, h = model.recurrence.halting, torch.randn(2, 3, 24, dtype=torch.float64)
    z = model.recurrence.coordinates.enter(h, None)
    for _ in range(12):
        z = unit(z, h)
        torch.testing.assert_close(model.recurrence.coordinates.hidden(z, None), h, rtol=0, atol=1e-12)


@torch.no_grad()
def test_layers_that_are_told_the_time_start_as_the_identity():
    model = LoopedLM(model_config("loopformer", TINY)).eval()
    assert torch.equal(model(some_ids(), 1), model(some_ids(), 9))
    told = tiny("loopformer", time_steps=4)
    steps = [told.recurrence.core.modulations(t)[0].mlp_scale for t in (2, 3, 4, 9)]
    assert not torch.equal(steps[0], steps[1])
    assert torch.equal(steps[1], steps[2])
    assert torch.equal(steps[1], steps[3]), "beyond the last step its time is kept"


@torch.no_grad()
def test_completion_reads_answers_through_the_coda():
    model, rows = tiny("scse", shape=SHAPES["layers"]), some_ids(3, 9)
    examples = [Completion(row.tolist(), 2) for row in rows]
    (found,) = complete(model, examples, [3], 3)
    log_p = torch.log_softmax(model(rows[:, :-1], 3)[:, -2:], dim=-1)
    nll = -log_p.gather(-1, rows[:, -2:, None]).mean()
    assert found.target_ppl == pytest.approx(float(nll.exp()), rel=1e-9)
