"""The scheduler: whatever else runs, a sequence answers what it answers alone."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
import torch

from scse.evaluation.rules import RULES, ExitRule
from scse.generation import GREEDY, Depth, Generation, Sampling, stream
from scse.generation.sampling import likeliest
from scse.serve.engine import Engine
from scse.serve.head import Head, Patience
from scse.serve.limits import Limits, Refused
from scse.serve.sequence import Sequence, Wanted
from tinymodels import SHAPES, TINY, tiny

LIMITS = Limits(batch=3, lanes=4, chunk=4, prefill=8, loops=12)


class Heard:
    """A sink that remembers."""

    def __init__(self, stop_after=None):
        self.tokens, self.scored, self.reason, self.message = [], [], None, ""
        self.stop_after = stop_after

    def prompt(self, scored):
        self.scored += scored

    def token(self, new):
        assert self.reason is None
        self.tokens.append(new)
        return len(self.tokens) == self.stop_after

    def end(self, reason, message=""):
        assert self.reason is None
        self.reason, self.message = reason, message

    @property
    def answer(self):
        return [(token.id, token.loops) for token in self.tokens]


def submit(engine, wanted, group=None, **more):
    sequence = Sequence(wanted, Heard(), group or object(), **more)
    engine.submit([sequence])
    return sequence


def finish(engine, ticks=10_000):
    while engine.tick():
        ticks -= 1
        assert ticks, "the engine does not come to an end"


def alone(model, wanted):
    engine = Engine(model, LIMITS)
    sequence = submit(engine, wanted)
    finish(engine)
    return sequence.sink


def mixed(count=6, seed=0):
    """Prompts of all lengths, depths from 1 to 9, exits by every rule, budgets, greedy and drawn."""
    draw = random.Random(seed)
    rules = [RULES.find(name) for name in RULES.names()]
    found = []
    for number in range(count):
        prompt = tuple(draw.randrange(TINY.vocabulary) for _ in range(draw.randint(1, 11)))
        adaptive = number % 3 == 1
        found.append(
            Wanted(
                prompt,
                draw.randint(1, 16 - len(prompt) + 1),
                draw.randint(1, 9),
                threshold=draw.choice([0.05, 0.3, 1.0]) if adaptive else None,
                rule=draw.choice(rules),
                budget=draw.choice([1.5, 3.0]) if number % 4 == 2 else None,
                sampling=Sampling(1.0, 0.9) if number % 2 else GREEDY,
                seed=number,
            )
        )
    return found


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("scse", "block"),
        ("centred-parcae", "layers"),
        ("huginn", "everything"),
        ("step-adapter", "block"),
        ("universal", "layers"),
    ],
)
def test_together_as_alone(family, shape):
    model = tiny(family, shape=SHAPES[shape], spread=0.1)
    engine = Engine(model, LIMITS)
    running = []
    for wanted in mixed():  # more than there are lanes, each while the others are somewhere inside a token
        running.append(submit(engine, wanted))
        engine.tick()
        engine.tick()
    finish(engine)
    for sequence in running:
        expected = alone(model, sequence.wanted)
        assert sequence.sink.answer == expected.answer
        assert (sequence.sink.reason, len(sequence.sink.answer)) == ("length", sequence.wanted.new_tokens)
    assert engine.cache.used_bytes == 0


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("looped", "block"),
        ("norm-reset", "block"),
        ("sc-cond-subtractive", "layers"),
        ("unshared-3", "layers"),
        ("ouro", "stream"),
    ],
)
def test_the_answers_are_those_of_generate(family, shape):
    model = tiny(family, shape=SHAPES[shape], spread=0.08)
    engine = Engine(model, LIMITS)
    asked = [
        Wanted((3, 17, 42, 8, 1, 7), 6, 5),
        Wanted((9, 9), 8, 2),
        Wanted((55, 2, 31, 4, 4, 4, 4, 9), 6, 9, threshold=0.31),
        Wanted((5,), 6, 6, threshold=0.05, rule=RULES.find("kl")),
        Wanted((7, 8, 9), 6, 3, sampling=Sampling(1.0, 0.9), seed=11),
    ]
    running = [submit(engine, wanted) for wanted in asked]
    finish(engine)
    for sequence in running:
        wanted = sequence.wanted
        depth = Depth(wanted.loops, wanted.threshold, wanted.rule)
        plain = stream(model, [wanted.prompt], Generation(depth, wanted.new_tokens, wanted.sampling), [wanted.seed])
        assert sequence.sink.answer == [(token.id, token.loops) for (token,) in plain]


@pytest.fixture(scope="module")
def model():
    return tiny("scse", shape=SHAPES["layers"], spread=0.1)


@torch.no_grad()
def test_a_prompt_is_scored_as_the_model_scores_it(model):
    prompt = (3, 17, 42, 8, 1, 7, 30, 2, 9)
    found = alone(model, Wanted(prompt, 2, 3, logprobs=2, scores=True))
    expected = model(torch.tensor([prompt]), 3)[0].log_softmax(-1)
    assert [token.id for token in found.scored] == list(prompt[1:])
    for place, token in enumerate(found.scored):
        assert token.logprob == pytest.approx(float(expected[place, prompt[place + 1]]))
        assert [name for name, _ in token.top] == expected[place].topk(2).indices.tolist()
    first = found.tokens[0]
    assert first.logprob == pytest.approx(float(expected[-1].max()))
    assert first.top[0] == (first.id, first.logprob)
    assert len(alone(model, Wanted(prompt, 0, 3, scores=True)).scored) == len(prompt) - 1


class FirstTokensStop(ExitRule):
    """The first four times it is asked, everything stops; later nothing does."""

    name = "first-tokens-stop"
    asked = 0

    def statistic(self, model, before, after, codas=()):
        self.asked += 1
        return torch.full(after.shape[:2], float(self.asked > 4))


def test_a_budget_bounds_the_mean_and_leaves_loops_to_later_tokens(model):
    free = alone(model, Wanted((3, 5), 12, 9, budget=2.5))
    assert [token.loops for token in free.tokens][:4] == [2, 3, 2, 3]
    found = alone(model, Wanted((3, 5), 7, 9, budget=3.0, threshold=0.5, rule=FirstTokensStop()))
    assert [token.loops for token in found.tokens] == [1, 1, 1, 1, 9, 5, 3]


def test_a_cancelled_sequence_frees_what_it_held(model):
    engine = Engine(model, LIMITS)
    group = object()
    held = [submit(engine, Wanted((1, 2, 3, 4, 5, 6), 10, 8), group) for _ in range(6)]
    kept = submit(engine, Wanted((9, 8, 7), 9, 7))
    for _ in range(12):
        engine.tick()
    assert engine.running == 4
    engine.cancel(held)
    finish(engine)
    assert {one.sink.reason for one in held} == {"cancelled"}
    assert kept.sink.answer == alone(model, kept.wanted).answer
    assert (engine.running, engine.waiting, engine.cache.used_bytes) == (0, 0, 0)


def test_a_deadline_ends_what_runs_and_what_waits(model):
    engine = Engine(model, replace(LIMITS, lanes=1))
    late = [submit(engine, Wanted((1, 2), 9, 9), deadline=time.monotonic() + 3600) for _ in range(2)]
    engine.tick()
    for one in late:
        one.deadline = time.monotonic() - 1
    finish(engine)
    assert [one.sink.reason for one in late] == ["deadline", "deadline"]


def test_a_full_queue_refuses_all_or_nothing(model):
    engine = Engine(model, replace(LIMITS, queue=3))
    submit(engine, Wanted((1,), 1, 1))
    three = [Sequence(Wanted((1,), 1, 1), Heard(), "group") for _ in range(3)]
    with pytest.raises(Refused, match="waiting already") as refused:
        engine.submit(three)
    assert refused.value.status == 429
    assert engine.waiting == 1
    with pytest.raises(Refused, match="4 answers are more than the queue of 3 holds"):
        engine.submit([*three, three[0]])
    finish(engine)
    engine.submit(three)
    finish(engine)
    assert all(one.sink.reason == "length" for one in three)


@pytest.mark.parametrize(("wanted", "message"), [
    (Wanted((), 1, 1), "the prompt is empty"),
    (Wanted((61,), 1, 1), "outside the vocabulary"),
    (Wanted((1,) * 10, 8, 1), "do not fit into the model's 16 positions"),
    (Wanted((1,), 1, 13), "loops must be between 1 and 12"),
    (Wanted((1,) * 8, 8, 12), "MiB of cache"),
])  # fmt: skip
def test_what_can_never_be_answered_is_refused_at_once(model, wanted, message):
    engine = Engine(model, replace(LIMITS, cache_bytes=100_000))
    with pytest.raises(Refused, match=message):
        submit(engine, wanted)


def test_memory_is_promised_before_it_is_used_and_returned(model):
    wanted = Wanted((1, 2, 3, 4), 12, 12)
    probe = Engine(model, LIMITS)
    size = probe.cache.need_bytes(probe.cache.need(wanted.positions, 12, traced=False))
    engine = Engine(model, replace(LIMITS, cache_bytes=2 * size + size // 2))
    empty = engine.cache.nbytes
    running = [submit(engine, wanted) for _ in range(5)]
    most = 0
    while engine.tick():
        assert engine.running <= 2
        assert engine.cache.used_bytes <= 2 * size
        most = max(most, engine.cache.nbytes)
    assert empty < most
    assert engine.cache.nbytes == empty
    assert {tuple(one.sink.answer) for one in running} == {tuple(alone(model, wanted).answer)}


def test_early_exits_hold_less_memory():
    model = tiny("scse", spread=0.1)  # one layer and no t: deeper loops may share what a resting position shows
    held = []
    for threshold in (None, 1e9):
        engine = Engine(model, LIMITS)
        submit(engine, Wanted((1, 2, 3, 4), 12, 10, threshold=threshold))
        most = 0
        while engine.tick():
            most = max(most, engine.cache.used_bytes)
        held.append(most)
    assert held[1] * 3 < held[0]


def test_a_request_of_many_does_not_keep_others_out(model):
    engine = Engine(model, replace(LIMITS, lanes=2))
    many = [Sequence(Wanted((1, 2), 6, 4), Heard(), "many") for _ in range(8)]
    engine.submit(many)
    engine.tick()
    one = submit(engine, Wanted((3,), 6, 4))
    while one.sink.reason is None:
        engine.tick()
    assert sum(other.sink.reason is not None for other in many) <= 3
    finish(engine)


def test_numbers_that_overflow_end_one_sequence_alone():
    model = tiny("scse", shape=replace(TINY, tied=False), spread=0.1)
    with torch.no_grad():
        model.tokens.weight[7] = float("inf")
    engine = Engine(model, replace(LIMITS, lanes=2))
    bad = [submit(engine, Wanted((1, 2, 3, 7), 4, 3, scores=scores)) for scores in (False, True)]
    good = [submit(engine, Wanted((3, 4, number), 9, 5, threshold=0.1)) for number in range(3)]
    finish(engine)
    assert {one.sink.reason for one in bad} == {"failed"}
    assert "fewer loops" in bad[0].sink.message
    for one in good:  # beside a row of no numbers, and on entries that held some
        assert one.sink.answer == alone(model, one.wanted).answer


def test_an_error_inside_ends_its_sequences_and_the_engine_goes_on(model, monkeypatch):
    engine = Engine(model, LIMITS)
    first = submit(engine, Wanted((1, 2), 4, 3))
    monkeypatch.setattr(engine, "tick", lambda: 1 / 0)
    engine.stop()
    engine.run()
    assert (first.sink.reason, engine.counters.failures) == ("failed", 1)
    monkeypatch.undo()
    with pytest.raises(Refused, match="shutting down"):
        submit(engine, Wanted((1, 2), 4, 3))


class Breaks(ExitRule):
    """Raises an error at its third question."""

    name = "breaks"
    asked = 0

    def statistic(self, model, before, after, codas=()):
        self.asked += 1
        return torch.full(after.shape[:2], 1.0 / (3 - self.asked))


class ForgetsTheNorm(ExitRule):
    """Has a number for every channel instead of one for every position."""

    name = "forgets-the-norm"

    def statistic(self, model, before, after, codas=()):
        return (after - before).abs()


class Averages(ExitRule):
    """Has one number for all rows of a batch."""

    name = "averages"

    def statistic(self, model, before, after, codas=()):
        return (after - before).abs().mean()


@pytest.mark.parametrize("rule", [Breaks, ForgetsTheNorm, Averages])
@pytest.mark.parametrize("prompt", [(1, 2), (1, 2, 3, 4, 5, 6)], ids=["within a chunk", "over chunks"])
def test_a_rule_that_fails_ends_its_own_sequences_alone(model, prompt, rule):
    engine = Engine(model, LIMITS)
    good = [submit(engine, Wanted((3, 4, number), 6, 5, threshold=0.1)) for number in range(2)]
    bad = submit(engine, Wanted(prompt, 6, 5, threshold=0.1, rule=rule()))
    finish(engine)
    assert (bad.sink.reason, bad.sink.message) == ("failed", "the exit rule failed; the server's log says more")
    assert engine.counters.failures == 1
    assert engine.cache.used_bytes == 0
    for one in good:
        assert one.sink.answer == alone(model, one.wanted).answer


def test_rows_that_move_in_step_share_one_call_of_the_head(model):
    engine = Engine(model, replace(LIMITS, batch=4, prefill=12))  # room for all four prompts at once
    for number in range(4):
        submit(engine, Wanted((1, 2, number), 6, 4))
    finish(engine)
    assert (engine.counters.heads, engine.counters.head_rows) == (6, 24)
    assert engine.counters.row_loops == 4 * engine.counters.loops


def test_waiting_for_the_head_ends_when_it_has_cost_as_much():
    patience = Patience(batch=4)
    assert patience.exhausted(1), "nothing is known yet, so nothing is waited for"
    patience.read(1.0)
    for _ in range(3):
        patience.looped(0.4, waiting=0, moving=4)
    assert not patience.exhausted(1)
    patience.looped(0.4, waiting=1, moving=3)  # a quarter of the batch stood empty
    assert not patience.exhausted(1)
    patience.looped(0.8, waiting=3, moving=1)
    assert patience.exhausted(3)
    patience.read(1.0)
    assert not patience.exhausted(3)


def test_waiting_for_the_head_costs_nothing_while_the_batch_is_full():
    patience = Patience(batch=4)
    patience.read(1.0)
    for _ in range(3):
        patience.looped(1.0, waiting=3, moving=4)
    assert not patience.exhausted(3)
    assert patience.exhausted(4), "a whole batch of the head's own"
    patience.looped(1.0, waiting=3, moving=4)
    assert patience.exhausted(3), "but nobody waits for ever"
    patience.read(1.0)
    assert not patience.exhausted(3)


def test_places_in_the_batch_are_filled_between_loops(model):
    """More sequences run than share a loop: nobody's place stays empty while somebody is ready for it."""
    engine = Engine(model, replace(LIMITS, batch=3, lanes=8, prefill=64))
    wanted = [Wanted((1, 2, number), 12, 9, threshold=0.3, seed=number) for number in range(8)]
    running = [submit(engine, one) for one in wanted]
    rows = []
    while engine.tick():
        rows.append(sum(len(flight) for flight in engine._flights.values() if flight.count == 1))
        assert rows[-1] <= 3
    full = engine.counters.row_loops / engine.counters.loops
    assert full > 2.5, "the batch stays nearly full until the last sequences end"
    for sequence in running:
        assert sequence.sink.answer == alone(model, sequence.wanted).answer


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_laid_out_anew_says_the_same(monkeypatch, tied):
    monkeypatch.setattr("scse.nn.products.LEAST_WEIGHTS", 1)  # as if the tiny one were large
    model = tiny("scse", shape=replace(TINY, tied=tied), spread=0.1).float()
    outputs = torch.randn(5, TINY.width, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        for rows in (1, 5):
            torch.testing.assert_close(Head(model)(outputs[:rows]), model.head(outputs[:rows]))


def test_the_likeliest_token_is_the_first_of_the_largest():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [-3.0, -5.0, -3.0, -3.0]])
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        assert likeliest(logits.to(kind)) == ([1, 0], [True, True])


def test_a_row_with_anything_that_is_no_number_is_told():
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[0.0, 2.0, 1.0], [0.0, nan, 1.0], [inf, 0.0, 1.0], [-inf, -inf, -inf], [-inf, 0.0, 1.0]])
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        assert likeliest(rows.to(kind))[1] == [True, False, False, False, True]


def test_every_entry_is_free_once_and_again_when_all_have_left(model):
    engine = Engine(model, LIMITS)
    gone = [submit(engine, wanted) for wanted in mixed(9, seed=3)]
    for _ in range(7):
        engine.tick()
    engine.cancel(gone[:3])
    finish(engine)
    for store in engine.cache.stores:
        free = store._free.tolist()
        assert store.used == 0
        assert sorted(free) == list(range(1, len(free) + 1))
        assert not bool(store.table.any())
