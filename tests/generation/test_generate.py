"""Generation against the plain loop that recomputes everything, and the command a user types."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from runs import run, scse, write_corpus
from scse.cli import main
from scse.cli.depth_colours import SCALE, Marks
from scse.cli.generate import print_as_it_comes
from scse.data import load_tokenizer
from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.evaluation.tokenwise import freeze_tokens
from scse.generation import GREEDY, Continuation, Depth, Generation, Sampling, continue_text, stream
from scse.runs import open_run
from tinymodels import TINY, tiny

PROMPTS = [[3, 17, 42, 8, 1], [9, 9], [55, 2, 31]]


def texts(model, prompts, wanted, seeds=None):
    rows = [list(prompt) for prompt in prompts]
    for step in stream(model, prompts, wanted, seeds):
        for token in step:
            rows[token.row].append(token.id)
    return rows


def plainly(model, prompt, loops, count, stop=None):
    """Greedy decoding without a cache: the whole text through the model for every new token."""
    row = list(prompt)
    for _ in range(count):
        row.append(int(model(torch.tensor([row]), loops)[0, -1].argmax()))
        if row[-1] == stop:
            break
    return row


@torch.no_grad()
def test_a_batch_equals_recomputing_each_prompt_alone(family):
    model = tiny(family)
    wanted = Generation(Depth((2, 6, 4)), 10, GREEDY)
    alone = [plainly(model, p, t, 10) for p, t in zip(PROMPTS, (2, 6, 4), strict=True)]
    assert texts(model, PROMPTS, wanted) == alone


@torch.no_grad()
def test_adaptive_generation_equals_recomputing(family):
    model = tiny(family, spread=0.08)
    rule, threshold = RULES.find("update"), 0.31
    row, taken = list(PROMPTS[0]), []
    for _ in range(8):
        state, depths = freeze_tokens(model, torch.tensor([row]), rule, threshold, 9)
        row.append(int(model.readout(state.hidden)[0, -1].argmax()))
        taken.append(int(depths[0, -1]))
    steps = list(stream(model, PROMPTS, Generation(Depth(9, threshold), 8, GREEDY)))
    first = [token for step in steps for token in step if token.row == 0]
    assert PROMPTS[0] + [token.id for token in first] == row
    assert [token.loops for token in first] == taken


@torch.no_grad()
def test_a_row_that_ends_leaves_the_others_alone():
    model = tiny("scse")
    free = [plainly(model, prompt, 4, 10) for prompt in PROMPTS]
    stop = free[1][4]  # the second row ends early; the others perhaps never
    wanted = Generation(Depth(4), 10, GREEDY, stop=stop)
    assert texts(model, PROMPTS, wanted) == [plainly(model, prompt, 4, 10, stop) for prompt in PROMPTS]


@torch.no_grad()
def test_a_row_draws_the_same_whatever_is_beside_it():
    model, wanted = tiny("scse"), Generation(Depth(3), 10, Sampling(1.0, 0.9))
    together = texts(model, PROMPTS, wanted, seeds=[7, 8, 9])
    for prompt, seed, row in zip(PROMPTS, (7, 8, 9), together, strict=True):
        assert texts(model, [prompt], wanted, seeds=[seed]) == [row]
    assert texts(model, PROMPTS[:1], wanted, seeds=[8]) != together[:1]


@torch.no_grad()
def test_a_sliding_window_goes_on_with_its_last_half():
    model = tiny("scse")
    count = 2 * TINY.context
    with pytest.raises(UserError, match=r"5 tokens and 32 new ones do not fit into the model's 16 positions.*--slide"):
        next(stream(model, PROMPTS[:1], Generation(Depth(3), count, GREEDY)))
    (found,) = texts(model, PROMPTS[:1], Generation(Depth(3), count, GREEDY, slide=True))
    row, window = list(PROMPTS[0]), list(PROMPTS[0])
    for _ in range(count):
        if len(window) > TINY.context:
            window = window[-TINY.context // 2 :]
        row.append(int(model(torch.tensor([window]), 3)[0, -1].argmax()))
        window.append(row[-1])
    assert found == row


@torch.no_grad()
def test_exactly_what_fits_is_not_refused():
    model = tiny("scse")
    wanted = Generation(Depth(2), TINY.context - 5 + 1, GREEDY)
    assert len(texts(model, PROMPTS[:1], wanted)[0]) == TINY.context + 1


def test_sampling_follows_the_distribution():
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0])
    draws = torch.Generator().manual_seed(0)
    count = 4_000
    for temperature, top_p, kept in ((1.0, 1.0, [0, 1, 2, 3]), (0.5, 1.0, [0, 1, 2, 3]), (1.0, 0.8, [0, 2])):
        seen = Counter(Sampling(temperature, top_p).pick(logits, draws) for _ in range(count))
        weights = {i: math.exp(float(logits[i]) / temperature) for i in kept}
        total = sum(weights.values())
        for token in range(4):
            expected = weights.get(token, 0.0) / total
            assert abs(seen[token] / count - expected) < 4 * math.sqrt(expected * (1 - expected) / count) + 1e-12


def test_top_p_leaves_the_fewest_tokens_that_reach_it():
    draws, logits = torch.Generator().manual_seed(0), torch.randn(2000, generator=torch.Generator().manual_seed(1))
    logits[500:600] = logits[7]  # as likely as each other: the first come first
    ordered, tokens = logits.double().softmax(0).sort(descending=True, stable=True)
    for top_p in (0.02, 0.5, 0.9):
        allowed = set(tokens[ordered.cumsum(0) - ordered < top_p].tolist())
        seen = {Sampling(1.0, top_p).pick(logits, draws) for _ in range(600)}
        assert seen <= allowed
        assert len(seen) > min(20, 0.9 * len(allowed))
    with pytest.raises(UserError, match="overflowed at this depth"):
        Sampling(1.0).pick(logits * torch.nan, draws)


def test_extreme_temperatures_still_give_a_token():
    draws = torch.Generator().manual_seed(0)
    logits = torch.tensor([-1e4, 3.0, 2.0])
    assert Sampling(0.0).pick(logits, draws) == 1
    assert Sampling(1e-30).pick(logits, draws) == 1
    assert Sampling(1e30, 1e-9).pick(logits, draws) in (0, 1, 2)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Sampling(-1), "temperature must not be negative"),
    (lambda: Sampling(float("nan")), "temperature"),
    (lambda: Sampling(top_p=0), "top-p must be above 0"),
    (lambda: Generation(Depth(1), 0), "at least 1, got 0"),
])  # fmt: skip
def test_bad_requests_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    run(write_corpus(folder / "corpus"), folder / "run")
    return folder / "run"


def test_characters_split_over_tokens_come_out_whole(trained):
    tokenizer = load_tokenizer(trained / "model")
    text = "the 🌍 → é"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)  # this vocabulary has no such characters: they are bytes
    found = Continuation(tokenizer)
    for token in ids:
        found.add(token, 1)
    found.finish()
    assert found.text == text
    assert "\ufffd" not in "".join(found.pieces)


def test_bytes_that_never_became_a_character_are_shown_at_the_end(trained, capsys):
    found = Continuation(load_tokenizer(trained / "model"))

    def growing():
        found.add(found.tokenizer.encode("é")[0], 1)
        yield [found]
        found.finish()
        yield [found]

    print_as_it_comes("caf", growing())
    assert capsys.readouterr().out == "caf\ufffd\n"


def test_the_command_generates(trained):
    base = ["generate", str(trained), "--prompt", "the state moves", "--max-new-tokens", "5"]
    (row,) = json.loads(scse([*base, "--json"]).stdout)
    assert row["prompt"] == "the state moves"
    assert len(row["tokens"]) == 5
    assert row["taken"] == [8] * 5
    assert load_tokenizer(trained / "model").decode(row["tokens"]) == row["text"]
    shown = scse(base)
    assert shown.returncode == 0
    assert shown.stdout == f"the state moves{row['text']}\n"
    piped = scse([*base[:3], "-", *base[4:], "--json"], input="the state moves")
    assert json.loads(piped.stdout)[0]["text"] == row["text"]


def test_the_command_compares_depths_and_shows_them(trained):
    base = ["generate", str(trained), "--prompt", "the loop", "--max-new-tokens", "4", "--temperature", "0"]
    rows = json.loads(scse([*base, "--compare", "1,4", "--json"]).stdout)
    assert [row["loops"] for row in rows] == [1, 4]
    (alone,) = json.loads(scse([*base, "--loops", "4", "--json"]).stdout)
    assert rows[1]["text"] == alone["text"]
    early = scse([*base, "--compare", "1,4", "--adaptive", "1e9"]).stdout
    assert "at most 4 loops, 1.0 on average" in " ".join(early.replace("┃", " ").split())
    table = scse([*base, "--compare", "1,4"]).stdout
    assert "T = 1" in table
    assert "T = 4" in table
    marked = scse([*base, "--adaptive", "0.02", "--loops", "12", "--show-depth"]).stdout
    (adaptive,) = json.loads(scse([*base, "--adaptive", "0.02", "--loops", "12", "--json"]).stdout)
    assert all(f"[{loops}]" in marked for loops in adaptive["taken"])
    assert f"mean depth {sum(adaptive['taken']) / 4:.2f}" in marked


def test_eval_reads_through_a_cache(trained):
    base = ["eval", str(trained), "--depths", "2,4", "--json", "--cache-dir", str(trained.parent / "cache")]
    plain, exact, shared = (
        json.loads(scse([*base, *extra]).stdout) for extra in ([], ["--cache", "exact"], ["--cache", "shared"])
    )
    for one, other, third in zip(plain, exact, shared, strict=True):
        assert one["tokens"] == other["tokens"] == third["tokens"]
        assert other["ppl"] == pytest.approx(one["ppl"], rel=1e-5)
        assert third["ppl"] != one["ppl"]
    identities = [json.loads(line)["identity"] for line in (trained / "records.jsonl").read_text().splitlines()]
    assert [who.get("settings") for who in identities[-4:]] == [{"cache": "exact"}] * 2 + [{"cache": "shared"}] * 2


@pytest.mark.parametrize(("extra", "message"), [
    (["--prompt", ""], "the prompt is empty"),
    (["--prompt", "the state " * 40], "do not fit into the model's 16 positions"),
    (["--prompt", "the", "--loops", "0"], "loops must be at least 1"),
    (["--prompt", "the", "--temperature", "-1"], "temperature must not be negative"),
    (["--prompt", "the", "--rule", "updat"], "did you mean 'update'"),
    (["--prompt", "the", "--rule", "gate"], "--rule gate needs a threshold to stop at: --adaptive X"),
    (["--prompt", "the", "--cache", "shraed"], "did you mean 'shared'"),
    (["--prompt", "the", "--max-new-token", "3"], "--max-new-token"),
    (["--prompt", "the", "--adaptive", "-1"], "must not be negative"),
    (["--prompt", "the", "--seed", "-1"], "expected a whole number from 0 to 2^63 - 1"),
])  # fmt: skip
def test_mistakes_get_one_line_and_exit_code_2(trained, extra, message):
    found = scse(["generate", str(trained), *extra])
    assert found.returncode == 2
    assert message in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert found.stdout == "", "a prompt that is refused is not echoed"


@torch.no_grad()
def test_generation_ends_when_every_row_has_ended():
    model = tiny("scse")
    first = plainly(model, PROMPTS[0], 2, 1)[-1]
    steps = list(stream(model, [PROMPTS[0]] * 2, Generation(Depth(2), 10, GREEDY, stop=first)))
    assert [[token.id for token in step] for step in steps] == [[first, first]]


def test_a_text_that_ends_at_once_took_no_loops(trained):
    assert Continuation(open_run(trained).tokenizer).mean_loops == 0


@torch.no_grad()
def test_the_mark_of_the_end_is_not_part_of_the_text(trained):
    opened = open_run(trained)
    whole = Generation(Depth(2), 6, GREEDY)
    *_, (free,) = continue_text(opened.model, opened.tokenizer, "the state", whole)
    for length in (0, 2):
        end = free.ids[length]
        before = free.ids[: free.ids.index(end)]
        *_, (found,) = continue_text(opened.model, opened.tokenizer, "the state", replace(whole, stop=end))
        assert found.ids == before
        assert found.text == opened.tokenizer.decode(before)


def test_depth_is_a_colour_on_a_terminal(trained, monkeypatch, capsys):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"}.items():
        monkeypatch.setenv(name, value)
    base = ["generate", str(trained), "--prompt", "the loop", "--max-new-tokens", "4", "--temperature", "0"]
    base += ["--show-depth"]
    few, many = "\x1b[38;5;231;48;5;54m", "\x1b[38;5;16;48;5;227m"
    for extra, colour, other in (
        (["--loops", "9", "--adaptive", "1e9"], few, many),
        (["--loops", "9"], many, few),
        (["--loops", "1"], few, many),
    ):
        assert main([*base, *extra]) == 0
        printed, legend = capsys.readouterr().out.split("loops of a token:")
        assert printed.count(colour) >= 1
        assert other not in printed
        assert few in legend
        assert (many in legend) == (extra != ["--loops", "1"])


def rgb(number: int) -> tuple[int, int, int]:
    """A colour of the 256-colour cube."""
    number -= 16
    return tuple(0 if level == 0 else 55 + 40 * level for level in (number // 36, number // 6 % 6, number % 6))


def lightness(number: int) -> float:
    """Relative luminance, as WCAG defines it."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (level / 255 for level in rgb(number))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_colours_of_depth_differ_in_lightness_and_carry_readable_text():
    def contrast(one, other):
        darker, lighter = sorted((lightness(one), lightness(other)))
        return (lighter + 0.05) / (darker + 0.05)

    assert all(contrast(background, text) >= 4.5 for background, text in SCALE)
    backgrounds = [background for background, _ in SCALE]
    assert [lightness(b) for b in backgrounds] == sorted(lightness(b) for b in backgrounds)
    assert all(contrast(one, following) >= 1.5 for one, following in pairwise(backgrounds))


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 12, 48, 200])
def test_the_legend_covers_every_depth_once(most):
    marks = Marks(most, colours=True)
    ends = marks.ends()
    assert ends == sorted(set(ends))
    assert ends[-1] == most
    styles = [marks.style(loops) for loops in range(1, most + 1)]
    assert len(set(styles)) == len(ends) == min(most, len(SCALE))
    assert all(f" {end} " in marks.legend().plain or f"–{end} " in marks.legend().plain for end in ends)


def test_without_colours_depth_is_a_number(trained, monkeypatch, capsys):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    base = ["generate", str(trained), "--prompt", "the loop", "--max-new-tokens", "2", "--show-depth", "--loops", "3"]
    assert main(base) == 0
    printed = capsys.readouterr().out
    assert printed.count("[3]") == 2
    assert "[n] after a token: it took n loops" in printed
