"""The page in a real browser: hover, click, drag, keys, links, pictures, widths, and numbers equal to evaluation's."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from lenstext import LOOPS, TEXT, until

import scse
from chromium import needs_chromium
from runs import scse as command
from scse.config import RunOptions, assemble, protocol
from scse.training.trainer import train

pytestmark = needs_chromium
GRID = "[data-grid='0'] canvas"


@pytest.fixture(scope="session")
def address(trained, tmp_path_factory):
    """One run's page."""
    out = tmp_path_factory.mktemp("page") / "one.html"
    scse.lens(str(trained("scse")), TEXT, loops=LOOPS).save(out)
    return out.as_uri()


@pytest.fixture(scope="session")
def pair(trained, tmp_path_factory):
    """Two runs, the second without an anchor."""
    out = tmp_path_factory.mktemp("pages") / "two.html"
    scse.lens([str(trained("looped")), str(trained("unshared-3"))], TEXT, loops=LOOPS).save(out)
    return out.as_uri()


def settled(page) -> None:
    """Whatever was asked for has been drawn."""
    until(page, "lens.pending === null")


def cell(page, token: int, loop: int, grid: int = 0) -> dict[str, float]:
    """The middle of a cell, from the grid's upper left corner."""
    x = f"g.gutter + {loop + 0.5} * g.cell - g.element.scrollLeft"
    y = f"HEAD + {token - 0.5} * ROW - g.element.scrollTop"
    x, y = page.evaluate(f"(g => [{x}, {y}])(lens.grids[{grid}])")
    return {"x": x, "y": y}


def fact(page, kind: str, run: int = 0) -> str:
    return page.locator(f"[data-run='{run}'] [data-fact={kind}] b").inner_text()


def test_numbers_are_those_of_eval_and_adaptive(trained, corpus, tab, tmp_path):
    """The same text through the three commands: what the page prints, in the five digits that it prints."""
    text = "the state moves from its anchor and rests . the loop moves again after the state rests ."
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.txt").write_text((corpus / f"{split}.txt").read_text()[:4000])
    (folder / "test.txt").write_text(text)
    run = str(trained("looped"))
    data = ["--data", str(folder), "--cache-dir", str(tmp_path / "cache"), "--quiet", "--json"]
    depths = json.loads(command(["eval", run, "--depths", "1,5,12", *data]).stdout)
    adaptive = ["adaptive", run, "--budgets", "3,7", "--ceiling", str(LOOPS), "--mode", "offline", *data]
    budgets = {rule: json.loads(command([*adaptive, "--rule", rule]).stdout) for rule in ("update", "relative", "kl")}
    out = tmp_path / "page.html"
    given = ["--file", str(folder / "test.txt"), "--loops", str(LOOPS), "--out", str(out)]
    assert command(["lens", run, *given]).returncode == 0
    page = tab(out.as_uri())
    assert page.evaluate("lens.runs[0].targets.filter(t => t >= 0).length") == depths[0]["tokens"]
    for row in depths:
        page.locator("#depth").fill(str(row["depth"]))
        settled(page)
        assert float(fact(page, "fixed").replace(",", "")) == pytest.approx(row["ppl"], rel=6e-5)
        assert page.evaluate(f"perplexity(lens.runs[0], () => {row['depth']})") == pytest.approx(row["ppl"], rel=1e-5)
    for rule, row in [(rule, row) for rule, rows in budgets.items() for row in rows]:
        page.select_option("#rule", rule)
        page.fill("#threshold-value", repr(row["threshold"]))
        page.press("#threshold-value", "Enter")
        settled(page)
        loops, ppl = fact(page, "whole").split(" → ")
        assert float(loops) == row["mean_depth"]
        assert float(ppl.replace(",", "")) == pytest.approx(row["ppl"], rel=6e-5)
    assert len({row["mean_depth"] for rows in budgets.values() for row in rows}) > 1


def test_of_a_problem_every_position_counts_until_the_whole_stops(tab, tmp_path):
    """As in `scse adaptive`, also where nothing is asked."""
    config = assemble("scse", {**protocol("pointer-chase"), "steps": 2, "width": 16, "nodes": 6, "hops": 3, "batch": 4})
    train(replace(config, precision="float32"), tmp_path / "run", RunOptions(quiet=True))
    found = scse.lens.example([str(tmp_path / "run")], 0, loops=LOOPS)
    found.save(tmp_path / "page.html")
    statistic = found.looks[0].traced.arrays["update"]
    page = tab((tmp_path / "page.html").as_uri())
    largest = statistic[:, 1:].max(0)
    asked = statistic[[i for i, target in enumerate(found.looks[0].window.targets) if target >= 0], 1:].max(0)
    assert (largest > asked).any(), "an edge moves most"
    for tau in sorted({*map(float, largest), *map(float, asked)}):
        page.fill("#threshold-value", repr(tau))
        page.press("#threshold-value", "Enter")
        settled(page)
        expected = next((t for t, value in enumerate(largest, start=1) if value <= tau), LOOPS)
        assert page.evaluate("lens.exits[0].whole") == expected


def test_the_staircase_is_where_each_token_first_moves_little(address, trained, tab):
    page = tab(address + "#tau=0.05")
    moved = scse.lens(str(trained("scse")), TEXT, loops=LOOPS).looks[0].traced.arrays["update"]
    for tau in (0.0, 0.05, float(moved[3, 4]), 1e9):
        page.fill("#threshold-value", repr(tau))
        page.press("#threshold-value", "Enter")
        settled(page)
        expected = [next((t for t in range(1, LOOPS + 1) if row[t] <= tau), LOOPS) for row in moved]
        assert page.evaluate("[...lens.exits[0].tokens]") == expected
        mean = sum(expected[:-1]) / (len(expected) - 1)
        assert fact(page, "tokens").startswith(f"{mean:.2f} →")


def test_hover_names_the_cell(address, tab):
    page = tab(address)
    assert page.locator("#tip").is_hidden()
    page.hover(GRID, position=cell(page, 2, 3))
    page.locator("#tip").wait_for()
    tip = page.locator("#tip").inner_text()
    answer = page.evaluate("wordOf(lens.runs[0], lens.runs[0].arrays.answer[1 * lens.runs[0].columns + 3])")
    assert "token 2" in tip
    assert f"answer at 3\t{answer}" in tip
    page.mouse.move(2, 2)
    page.locator("#tip").wait_for(state="hidden")


def test_a_click_opens_the_token_and_escape_closes_it(address, tab):
    page = tab(address)
    assert page.locator(".token figure").count() == 0
    page.click(GRID, position=cell(page, 6, 4))
    page.wait_for_selector(".token [data-figure^=attention] svg rect")
    assert page.locator(".chosen").inner_text().startswith("Token 6: ")
    assert page.evaluate("[lens.state.i, lens.state.T]") == [5, 4]
    assert page.locator("[data-figure^=top-ten] li").count() >= 10
    chances = [float(text) for text in page.locator("[data-figure^=top-ten] .p").all_inner_texts()]
    assert chances == sorted(chances, reverse=True)
    assert page.locator("[data-figure^=norms] path").count() == 3
    assert page.locator("[data-figure^=attention] g").count() == 6, "the tokens up to this one"
    before = page.locator("[data-figure^=attention] svg").inner_html()
    page.select_option("[data-figure^=attention] select", "1")
    until(page, "lens.state.head === 1")
    settled(page)
    page.wait_for_selector(".token [data-figure^=attention] svg rect")
    assert page.locator("[data-figure^=attention] svg").inner_html() != before
    page.press("[data-grid='0']", "Escape")
    settled(page)
    assert page.locator(".token figure").count() == 0


def test_attention_on_the_page_sums_to_one(address, tab):
    page = tab(address + "#T=3&token=9")
    page.wait_for_selector("[data-figure^=attention] svg")
    for head in (-1, 0, 1):
        total = page.evaluate(f"attentionRow(lens.runs[0], 0, {head}, 3, 8).reduce((a, b) => a + b)")
        assert total == pytest.approx(1, abs=0.02)
    assert page.evaluate("attentionRow(lens.runs[0], 0, 0, 0, 8)") is None


def test_dragging_the_threshold(address, tab):
    page = tab(address)
    before = page.evaluate("lens.tau"), fact(page, "tokens")
    box = page.locator("#threshold").bounding_box()
    share = page.evaluate("lens.placeOf(lens.tau) / 1000")
    x, y = box["x"] + 8 + share * (box["width"] - 16), box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    seen = set()
    for step in range(1, 6):
        last = page.evaluate("lens.tau")
        page.mouse.move(x + 30 * step, y)
        until(page, f"lens.tau > {last!r}")
        settled(page)
        seen.add(fact(page, "tokens"))
    page.mouse.up()
    assert page.evaluate("lens.tau") > before[0]
    assert len(seen) > 1
    assert float(fact(page, "tokens").split()[0]) < float(before[1].split()[0])
    assert page.input_value("#threshold-value") == str(page.evaluate("lens.tau"))


def test_changing_the_quantity_changes_the_colours(address, tab):
    page = tab(address)
    pictures = set()
    for name in page.evaluate("Object.keys(QUANTITIES)"):
        page.select_option("#quantity", name)
        until(page, f"lens.state.q === '{name}'")
        settled(page)
        pictures.add(page.evaluate("lens.grids[0].canvas.toDataURL()"))
        label = page.locator("#scale svg").first.get_attribute("aria-label")
        assert page.evaluate(f"QUANTITIES['{name}'].label") in label
    assert len(pictures) == 6
    page.select_option("#cells", "narrow")
    settled(page)
    assert page.evaluate("lens.grids[0].element.scrollWidth <= lens.grids[0].element.clientWidth + 1")


def test_by_keyboard_alone(address, tab):
    page = tab(address)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.grid") == "0":
            break
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "PageDown", "ArrowUp"):
        page.keyboard.press(key)
    settled(page)
    assert page.evaluate("[lens.state.i, lens.state.T]") == [11, 1]
    assert page.locator("#said").inner_text().startswith("token 12 ")
    page.keyboard.press("End")
    settled(page)
    assert page.evaluate("lens.state.T") == LOOPS
    sight = "(g => g.element.scrollLeft + g.size[0] - g.gutter >= g.cell * g.run.columns - 1)(lens.grids[0])"
    assert page.evaluate(sight), "the chosen cell is in sight"


def test_a_link_reproduces_the_view(pair, tab):
    page = tab(pair)
    page.select_option("#quantity", "entropy")
    page.select_option("#rule", "kl")
    page.fill("#threshold-value", "0.0125")
    page.press("#threshold-value", "Enter")
    page.click(GRID, position=cell(page, 4, 5))
    page.wait_for_selector("[data-figure^=attention] svg")
    page.locator("[data-figure^=attention] select").first.select_option("0")
    until(page, "lens.state.head === 0")
    settled(page)
    again = tab(page.url)
    assert again.evaluate("lens.state") == page.evaluate("lens.state")
    assert again.evaluate("lens.state.tau") == 0.0125
    assert again.evaluate("lens.state.rule") == "kl"
    for kind in ("fixed", "tokens", "whole"):
        assert fact(again, kind) == fact(page, kind)
    again.evaluate("location.hash = '#q=nonsense&T=999&token=-5&tau=x&head=7'")
    until(again, "lens.state.q === 'true'")
    settled(again)
    assert again.evaluate("[lens.state.T, lens.state.i, lens.state.tau]") == [8, -1, None]


def test_a_link_brings_its_cell_into_sight(address, tab):
    page = tab(address + f"#token=30&T={LOOPS}", width=390)
    for token, loop in ((29, LOOPS), (0, 0)):
        place = cell(page, token + 1, loop)
        box = page.locator(GRID).bounding_box()
        assert 0 < place["x"] < box["width"]
        assert 0 < place["y"] < box["height"]
        page.evaluate("location.hash = '#token=1&T=0'")
        until(page, "lens.state.i === 0")
        settled(page)


def test_markup_stays_text(address, tab):
    page = tab(address + "#token=9&T=2")
    page.wait_for_selector("[data-figure^=attention] svg")
    assert page.title() == "Loop lens"
    assert page.locator("#runs script, #runs i").count() == 0
    assert "<b" in page.locator("[data-figure^=attention] svg").text_content()
    assert "&lt;" in page.evaluate("lens.grids[0].svgText()")
    words = page.evaluate("lens.runs[0].ids.map(id => lens.runs[0].words.get(id)).join('')")
    assert words.replace("\ufffd", "").startswith("the anchor <b>rests</b> & the state </script><script>")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1600, True)])
def test_widths_and_darkness(pair, tab, width, dark):
    page = tab(pair + "#token=5&T=4", width=width, dark=dark)
    page.evaluate("document.querySelector('.run h2').textContent = 'a name that takes more than a line '.repeat(9)")
    page.wait_for_selector("[data-figure^=attention] svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    grids = [page.locator(f"[data-grid='{place}']").bounding_box() for place in (0, 1)]
    assert (grids[0]["y"] == grids[1]["y"]) == (width == 1600), "side by side where there is room"
    red, *_ = page.evaluate("lens.grids[0].canvas.getContext('2d').getImageData(3, 3, 1, 1).data")
    assert (red < 60) == dark
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_two_runs_move_together(pair, tab):
    page = tab(pair)
    page.evaluate("lens.grids[0].element.scrollTo(130, 220)")
    until(page, "lens.grids[1].element.scrollTop === 220 && lens.grids[1].element.scrollLeft === 130")
    page.click("[data-grid='1'] canvas", position=cell(page, 14, 4, grid=1))
    until(page, "lens.state.i === 13")
    settled(page)
    assert page.locator(".chosen").all_inner_texts() == [page.locator(".chosen").first.inner_text()] * 2


def test_without_an_anchor_its_quantity_is_grey_and_says_why(pair, trained, tab, tmp_path):
    page = tab(pair + "#q=deviation&token=3&T=2")
    assert page.locator("#quantity option[value=deviation]").is_enabled(), "the other run has an anchor"
    assert page.evaluate("Number.isNaN(QUANTITIES.deviation.at(lens.runs[1], 0, 1))")
    assert "no anchor" in page.locator("[data-run='1'] [data-figure^=norms]").inner_text()
    alone = tmp_path / "alone.html"
    scse.lens(str(trained("unshared-3")), TEXT, loops=4).save(alone)
    page = tab(alone.as_uri() + "#q=deviation")
    option = page.locator("#quantity option[value=deviation]")
    assert option.is_disabled()
    assert "no anchor" in option.get_attribute("title")
    assert page.evaluate("lens.state.q") == "true"


def test_every_picture_can_be_saved(pair, tab):
    page = tab(pair + "#token=7&T=3")
    page.wait_for_selector("[data-figure^=attention] svg")
    buttons = page.locator("button.save")
    names = set()
    for place in range(buttons.count()):
        with page.expect_download() as saving:
            buttons.nth(place).click()
        content = saving.value.path().read_text(encoding="utf-8")
        root = ElementTree.fromstring(content)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(content) > 500
        names.add(saving.value.suggested_filename)
    assert len(names) == buttons.count() == 10


def test_the_true_path_is_drawn_beside_what_was_found(trained, tab, tmp_path):
    (found,) = scse.lens(str(trained("scse")), TEXT, loops=3).looks
    answers = [row for part in found.rows for row in part.arrays["answer"].tolist()]
    truth = [[None, answers[0][1], (answers[0][2] + 1) % 250, answers[0][3]]]
    out = tmp_path / "path.html"
    scse.lens(str(trained("scse")), TEXT, loops=3, truth=truth).save(out)
    page = tab(out.as_uri() + "#token=1&T=2")
    frames = page.locator("[data-figure^=path] rect[rx='4'] title").all_text_contents()
    assert [text == "as expected" for text in frames] == [True, False, True]
    page.hover(GRID, position=cell(page, 1, 2))
    page.locator("#tip").wait_for()
    assert "expected" in page.locator("#tip").inner_text()


def test_in_a_notebook(trained, tab, tmp_path):
    notebook = tmp_path / "notebook.html"
    shown = scse.lens(str(trained("scse")), TEXT, loops=2)._repr_html_()
    notebook.write_text(f"<!doctype html><html data-ready='yes'><meta charset='utf-8'><body>{shown}", encoding="utf-8")
    frame = tab(notebook.as_uri()).frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    frame.locator("#depth").fill("1")
    frame.get_by_text("perplexity at T = 1").wait_for()
