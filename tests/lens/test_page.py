"""The page as a file: whole, the same every time, small, and safe with any text; and the command that writes it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from lenstext import LOOPS, TEXT

import scse
from runs import scse as command
from scse import LoopedLM, model_config
from scse.config import RunOptions, assemble, protocol
from scse.lens.page import document, embedded
from scse.problems import make_problem
from scse.training.trainer import train


def carried(page: str) -> dict:
    (data,) = re.findall(r'<script type="application/json" id="lens-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


@pytest.mark.usefixtures("one_thread")
def test_the_command_writes_the_same_page_every_time(trained, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    pages = []
    for given in (["--file", str(file)], ["--text", TEXT]):
        out = tmp_path / f"{len(pages)}.html"
        done = command(["lens", str(trained("scse")), *given, "--loops", "3", "--out", str(out)])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"lens: {out}\n"
        pages.append(out.read_bytes())
    assert pages[0] == pages[1] == scse.lens(str(trained("scse")), TEXT, loops=3).html().encode()


def test_nothing_comes_from_elsewhere(trained):
    page = scse.lens(str(trained("scse")), TEXT, loops=3).html()
    assert "default-src 'none'" in page
    assert "connect-src" not in page
    addresses = set(re.findall(r"https?://[^\"'` <)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name of a format, which nobody asks for"
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?!data:,)", page)


def test_text_cannot_leave_its_place(trained):
    """No angle bracket of the text reaches the page's own markup, and the text is read back as it was."""
    page = scse.lens(str(trained("scse")), TEXT, loops=2).html()
    assert page.count("</script>") == 2
    (run,) = carried(page)["runs"]
    assert "".join(run["words"][str(token)] for token in run["ids"][:9]) in TEXT
    nasty = {"a": "</script><!--<script>", "b": "\u2028 & '\"", "{{ script }}": "{{ style }}"}
    assert json.loads(embedded(nasty)) == nasty
    assert carried(document(nasty)) == nasty


def test_two_runs_of_full_size_stay_under_a_megabyte():
    """128 tokens, 48 loops: two models of the mini scale that were never trained, so that nothing is regular."""
    ids = np.random.default_rng(0).integers(0, 4096, 129)
    models = [LoopedLM(model_config(name, "mini"), seed=1).eval() for name in ("scse", "looped")]
    page = scse.lens(models, ids, loops=48).html()
    assert len(page.encode()) < 1_000_000


def test_json_prints_what_the_page_shows(trained):
    done = command(["lens", str(trained("scse")), str(trained("unshared-3")), "--text", TEXT, "--loops", "3", "--json"])
    assert done.stderr == ""
    first, second = json.loads(done.stdout)
    rows = len(first["tokens"])
    assert TEXT.startswith("".join(first["tokens"][:8]))
    assert first["next"][:-1] == first["tokens"][1:]
    assert first["next"][-1] is None
    assert len(first["perplexity"]) == 4
    assert {len(row) for row in first["answers"]} == {4}
    shapes = {name: np.array(values, dtype=float).shape for name, values in first["values"].items()}
    assert set(shapes.values()) == {(rows, 4)}
    assert {"nll", "entropy", "kl_last", "final", "update", "relative_deviation"} <= set(shapes)
    assert np.array(first["attention"]["3"]).shape == (2, rows, rows)
    assert np.array(first["top"][0]["probabilities"]).shape == (10, 4)
    assert first["no_anchor"] is None
    assert "no anchor" in second["no_anchor"]
    assert "relative_deviation" not in second["values"]


def test_a_state_that_diverges_is_shown_as_missing():
    model = LoopedLM(model_config("looped", "mini")).eval()
    model.tokens.weight.data[:] = float("inf")
    found = scse.lens(model, [1, 2, 3], loops=2)
    assert "NaN" not in json.dumps(found.plain(), allow_nan=False)
    assert found.html()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([], "give some with --text or --file, or use --serve"),
        (["--text", ""], "there is no text to look at"),
        (["--text", "a", "--file", "b"], "keep one of them"),
        (["--file", "missing.txt"], "cannot read missing.txt"),
        (["--text", "a", "--loops", "0"], "--loops must be at least 1"),
        (["--text", "a", "--out", "page.pdf"], "--out must end in .html"),
        (["--text", "a", "--port", "80"], "--port belongs to --serve"),
        (["--serve", "--json"], "leave --out and --json out"),
        (["--serve", "--port", "70000"], "--port must be between 0 and 65535"),
    ],
)
def test_mistakes_are_one_line(trained, extra, message, tmp_path):
    done = command(["lens", str(trained("scse")), *extra], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_runs_that_cut_text_differently_cannot_stand_side_by_side(trained, tmp_path):
    done = command(["lens", str(trained("scse")), str(trained("other")), "--text", TEXT], cwd=tmp_path)
    assert done.returncode == 2
    assert "and bpe-290), so their rows cannot stand side by side; make a page for each" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_text_longer_than_the_context_is_cut_and_says_so(trained):
    (look,) = scse.lens(str(trained("scse")), TEXT * 9, loops=2).looks
    assert (len(look.window.ids), look.window.scored) == (96, 96)
    assert carried(scse.lens(str(trained("scse")), TEXT * 9, loops=LOOPS).html())["runs"][0]["total"] > 96


def test_an_example_of_a_problem_shows_the_path_to_every_answer(tmp_path):
    config = assemble("scse", {**protocol("pointer-chase"), "steps": 2, "width": 16, "nodes": 6, "hops": 3, "batch": 4})
    train(replace(config, precision="float32"), tmp_path / "run", RunOptions(quiet=True))
    done = command(["lens", tmp_path / "run", "--loops", "4", "--example", "3", "--json"])
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)
    problem = make_problem("pointer-chase", config.problem)
    example = problem.examples(0, "test", 0, 1024).rows(slice(3, 4))
    words = [f" {word}" for word in problem.words]  # as the tokenizer writes them
    assert shown["tokens"] == [words[i] for i in example.ids[0]]
    answers = problem.answers(example)[0]
    assert [shown["next"][i] for i in problem.asked] == [words[i] for i in answers]
    assert shown["next"][0] is None, "nothing is asked at an edge"
    for place, row in zip(problem.asked, range(6), strict=True):
        path = [words[problem.answers(example, t)[0, row]] for t in (1, 2, 3, 4)]
        assert shown["truth"][place] == [None, *path]
    nll = np.array([shown["values"]["nll"][place] for place in problem.asked]).mean(0)
    np.testing.assert_allclose(np.array(shown["perplexity"]), np.exp(nll), rtol=1e-4)
    plain = command(["lens", tmp_path / "run", "--loops", "4", "--json"])
    assert json.loads(plain.stdout)[0]["truth"], "without a text, a problem shows its first example"
    refused = command(["lens", tmp_path / "run", "--example", "3", "--text", "x"])
    assert (refused.returncode, "leave --text" in refused.stderr) == (2, True)
