"""Depth samplers: what they draw, how they are written, and that the paper's is as it was."""

from __future__ import annotations

import numpy as np
import pytest

from scse.config import assemble, protocol
from scse.config.depths import SAMPLERS, Depths, parse_depths, stored_depths
from scse.errors import UserError

STEPS = 4000


def drawn(depths: Depths, steps: int = STEPS) -> np.ndarray:
    return np.array([depths.draw(np.random.default_rng([0, 2, step]), step, 4) for step in range(steps)])


@pytest.mark.parametrize("name", SAMPLERS.names())
@pytest.mark.parametrize("n", [1, 2, 8])
def test_depths_have_the_mean_they_say(name, n):
    depths = Depths(SAMPLERS.find(name), n)
    found = drawn(depths)
    assert found.min() >= 1
    spread = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - depths.mean) <= 5 * spread


def test_the_papers_depths_are_drawn_as_ever():
    found = drawn(parse_depths("uniform:8"), 200)
    expected = [int(np.random.default_rng([0, 2, step]).integers(1, 9)) for step in range(200)]
    assert found.tolist() == expected


def test_depths_of_sequences():
    found = drawn(parse_depths("poisson:8/sequence"), 200)
    assert found.shape == (200, 4)
    assert (found != found[:, :1]).any()


def test_the_parameter_grows_where_asked():
    early, later = drawn(parse_depths("curriculum:8:400"), 100), drawn(parse_depths("curriculum:8:400"), 500)[400:]
    assert early.max() <= 2
    assert later.tolist() == drawn(parse_depths("uniform:8"), 500)[400:].tolist()
    assert drawn(parse_depths("poisson:8:400"), 50).max() == 1, "the mean is still 1"


def test_what_is_written_is_what_is_stored():
    plain = assemble("scse", {"steps": 3})
    assert assemble("scse", {"steps": 3, "depths": "uniform:8"}) == plain
    assert "depths" not in plain.to_dict(), "a neutral field is left out"
    warmed = assemble("scse", {"steps": 3, "depths": "curriculum:6:10"})
    assert (warmed.depths, warmed.max_loops, warmed.depth_warmup) == ("uniform", 6, 10)
    other = assemble("scse", {"steps": 3, "depths": "lognormal-poisson:12/sequence"})
    assert type(other).from_dict(other.to_dict()) == other
    assert other.sampler == stored_depths("lognormal-poisson/sequence", 12, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poison:8", "did you mean 'poisson'"),
        ("curiculum:8:100", "did you mean 'curriculum'"),
        ("uniform:8/seqence", "end in '/seqence'; only '/sequence' may follow"),
        ("poisson:", "not a whole number"),
        ("poisson:8:1:2", "too many; write poisson:LOOPS"),
        ("curriculum", "write curriculum:LOOPS:STEPS"),
        ("curiculum", "did you mean 'curriculum'"),
        ("curriculum:8", "write curriculum:LOOPS:STEPS"),
        ("uniform:0", "at least 1 loop"),
        ("uniform:-3", "not a whole number"),
    ],
)
def test_a_mistake_is_one_line(text, message):
    with pytest.raises(UserError, match=message):
        assemble("scse", {"steps": 3, "depths": text})


def test_a_growth_that_is_switched_off_stays_off():
    chase = {**protocol("pointer-chase"), "steps": 3}
    assert assemble("scse", {**chase, "depths": "fixed:3"}).depth_warmup == chase["depth_warmup"]
    assert assemble("scse", {**chase, "depths": "fixed:3:0"}).depth_warmup == 0


def test_a_context_of_a_problem_is_the_problems():
    chase = {**protocol("pointer-chase"), "steps": 3}
    for wrong in ("abc", "7"):
        with pytest.raises(UserError, match="context"):
            assemble("scse", {**chase, "context": wrong})


def test_two_answers_to_one_question():
    with pytest.raises(UserError, match="depths=poisson:8 and max_loops=4 disagree; leave max_loops out"):
        assemble("scse", {"steps": 3, "depths": "poisson:8", "max_loops": 4})
