"""What each unit of the other projects' families is for, and the identities between them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

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
        torch.testing.assert_close(model.recurrence.hidden(z, None), h, rtol=0, atol=1e-12)


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
