"""Last-word completion against a direct computation, one example at a time."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

from runs import run, write_corpus
from scse.cli import main
from scse.data.tokenizer import gpt2_tokenizer
from scse.errors import UserError
from scse.evaluation.completion import Completion, complete, last_word_completions
from tinymodels import TINY, tiny

DRAW = random.Random(0)
EXAMPLES = [
    Completion([DRAW.randrange(TINY.vocabulary) for _ in range(length)], answer)
    for length, answer in ((5, 1), (9, 3), (17, 2), (30, 4), (12, 1), (17, 1), (6, 5))
]


@torch.no_grad()
def direct(model, depth):
    """Sum of nll, right tokens, right answers, tokens: each example alone, without padding."""
    nll, right, exact, count = 0.0, 0, 0, 0
    for example in EXAMPLES:
        tokens = torch.tensor(example.tokens[-(TINY.context + 1) :])
        log_p = torch.log_softmax(model(tokens[None, :-1], depth)[0], -1)[-example.answer :]
        targets = tokens[-example.answer :]
        nll -= sum(float(row[target]) for row, target in zip(log_p, targets, strict=True))
        hits = log_p.argmax(-1) == targets
        right, exact, count = right + int(hits.sum()), exact + int(hits.all()), count + len(targets)
    return nll, right, exact, count


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_equals_the_direct_computation(family, batch):
    model = tiny(family)
    for result in complete(model, EXAMPLES, [1, 5], batch):
        nll, right, exact, count = direct(model, result.depth)
        assert result.target_ppl == pytest.approx(math.exp(nll / count), rel=1e-10)
        assert result.word_ppl == pytest.approx(math.exp(nll / len(EXAMPLES)), rel=1e-10)
        assert result.target_accuracy == right / count
        assert result.exact_accuracy == exact / len(EXAMPLES)
        assert result.examples == len(EXAMPLES)


def test_a_model_that_knows_the_answer_is_exact():
    model = tiny("scse")
    with torch.no_grad():
        tokens = EXAMPLES[0].tokens[:-1]
        answer = int(model(torch.tensor([tokens]), 2)[0, -1].argmax())
    (result,) = complete(model, [Completion([*tokens, answer], 1)], [2], 1)
    assert (result.target_accuracy, result.exact_accuracy) == (1.0, 1.0)


def test_the_last_word_with_its_space_is_the_answer():
    tokenizer = gpt2_tokenizer()
    (example,) = last_word_completions(["He opened the old door and saw Bilberryson\n"], tokenizer)
    assert tokenizer.decode(example.tokens[-example.answer :]) == " Bilberryson"
    assert example.answer > 1
    assert tokenizer.decode(example.tokens) == "He opened the old door and saw Bilberryson"
    with pytest.raises(UserError, match="example 2 has no last word"):
        list(last_word_completions(["two words", "one"], tokenizer))


def test_nothing_to_do_and_no_room():
    with pytest.raises(UserError, match="no examples"):
        complete(tiny("scse"), [], [1], 4)
    with pytest.raises(UserError, match="leaves no room"):
        complete(tiny("scse"), [Completion([1, 2, 3], 3)], [1], 4)


def test_the_command(tmp_path, capsys):
    torch.set_num_threads(1)
    corpus = write_corpus(tmp_path / "corpus")
    run(corpus, tmp_path / "run")
    passages = tmp_path / "data" / "lambada"
    passages.mkdir(parents=True)
    texts = ["the state moves from its anchor", "the loop rests after the anchor", "and again the state"]
    (passages / "test.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    folders = ["--data-dir", str(passages.parent), "--cache-dir", str(tmp_path / "cache")]
    assert main(["lambada", str(tmp_path / "run"), "--depths", "3,1", "--quiet", "--json", *folders]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["depth"] for row in rows] == [3, 1]
    assert all(
        set(row) == {"depth", "target_ppl", "word_ppl", "target_accuracy", "exact_accuracy", "examples"} for row in rows
    )
    assert all(row["examples"] == 3 for row in rows)
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["identity"]["task"] for line in lines] == ["completion"] * 2
    assert main(["lambada", str(tmp_path / "run"), "--data", "lambda", *folders]) == 2
    assert "did you mean 'lambada'" in capsys.readouterr().err
