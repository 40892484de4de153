"""Every problem against its oracle, and the laws that all of them keep."""

from __future__ import annotations

import numpy as np
import pytest

from scse.errors import UserError
from scse.problems import PROBLEMS, Problem, make_problem

# Small sizes beside the defaults: the edges of each generator.
SMALL = {
    "pointer-chase": {"nodes": 2, "hops": 1},
    "p-hop": {"symbols": 2, "tokens": 4, "hops": 2},
    "s5": {"factors": 1, "tokens": 3},
    "addition": {"digits": 2, "carries": 1},
    "prefix-sum": {"factors": 2, "tokens": 3, "modulus": 7},
    "reachability": {"nodes": 3, "hops": 1},
}


@pytest.fixture(params=[(name, size) for name in PROBLEMS.names() for size in ("default", "small")], ids="-".join)
def problem(request) -> Problem:
    name, size = request.param
    return make_problem(name, SMALL[name] if size == "small" else None)


def some_difficulties(problem: Problem) -> list[int]:
    return sorted({1, problem.hardest, min(2 * problem.hardest, problem.limit), problem.limit})


def test_every_answer_is_the_oracles(problem):
    problem.verify(problem.examples(0, "train", 0, 32))
    for difficulty in some_difficulties(problem):
        problem.verify(problem.examples(1, "test", 0, 16, difficulty))


def test_after_as_many_loops_as_its_difficulty_an_answer_stays(problem):
    for hardest in some_difficulties(problem):
        examples = problem.examples(2, "validation", 0, 16, hardest)
        final = problem.answers(examples)
        for loops in range(problem.limit + 2):
            settled = examples.difficulty <= loops
            assert np.array_equal(problem.answers(examples, loops)[settled], final[settled])


def test_an_answer_is_not_there_before_its_difficulty_except_by_chance(problem):
    examples = problem.examples(3, "test", 0, 256, problem.hardest)
    hard = examples.difficulty == problem.hardest
    early = problem.answers(examples, problem.hardest - 1)[hard] == problem.answers(examples)[hard]
    assert early.mean() < 1


def test_difficulties_are_those_asked_for(problem):
    for hardest in some_difficulties(problem):
        examples = problem.examples(4, "test", 0, 128, hardest)
        assert examples.difficulty.max() == hardest
        assert examples.difficulty.min() >= 0


def test_shapes_and_vocabulary_fit(problem):
    examples = problem.examples(5, "train", 0, 8)
    answers = problem.answers(examples)
    assert examples.ids.shape == (8, problem.length)
    assert answers.shape == examples.difficulty.shape == (8, len(problem.asked))
    assert problem.asked.max() < problem.length
    for ids in (examples.ids, answers):
        assert ids.min() >= 0
        assert ids.max() < problem.vocabulary
    assert len(set(problem.words)) == problem.vocabulary
    assert not any(set(word) & set(" \t\n") or not word for word in problem.words)


def test_a_batch_is_a_function_of_seed_split_and_number(problem):
    def drawn(*where):
        return problem.examples(*where, 64).ids

    assert np.array_equal(drawn(0, "train", 3), drawn(0, "train", 3))
    others = [drawn(1, "train", 3), drawn(0, "train", 4), drawn(0, "test", 3)]
    assert all(not np.array_equal(drawn(0, "train", 3), other) for other in others)


def test_examples_of_one_difficulty(problem):
    for difficulty in (problem.hardest, min(problem.limit, problem.hardest + 2)):
        found = problem.as_hard_as(difficulty, 0, "test", 3)
        problem.verify(found)
        assert (len(found), {*map(int, found.difficulty.max(axis=1))}) == (3, {difficulty})


def test_an_example_can_be_shown(problem):
    examples = problem.examples(6, "test", 0, 2)
    text = problem.render(examples, 1)
    assert text
    assert text != problem.render(examples, 0) or problem.length < 5
    assert max(map(len, text.splitlines())) <= 80


def test_a_wrong_generator_is_caught_by_its_oracle():
    problem = make_problem("addition")
    examples = problem.examples(0, "test", 0, 2)
    examples.hidden["sum"][1, 3] += 1
    with pytest.raises(UserError, match=r"addition disagrees with its oracle at answer 3"):
        problem.verify(examples)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("pointer-chace", {}, "did you mean 'pointer-chase'"),
        ("pointer-chase", {"node": 4}, "did you mean 'nodes'"),
        ("pointer-chase", {"nodes": 4, "hops": 4}, "hops must be between 1 and 3"),
        ("s5", {"factors": "many"}, "must be a whole number"),
    ],
)
def test_a_mistake_is_one_line(name, options, words):
    with pytest.raises(UserError, match=words):
        make_problem(name, options)


def test_a_difficulty_out_of_range_says_the_range():
    with pytest.raises(UserError, match=r"between 1 and 15 for pointer-chase with nodes=16, hops=6, .*got 16"):
        make_problem("pointer-chase").examples(0, "test", 0, 1, 16)


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(UserError, match="already a problem 's5'"):
        PROBLEMS.register(PROBLEMS.find("s5"))
