"""What stands on the page besides the numbers: headings that name the right runs, figures, colours, letters."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import toys

from scse.report.figures import COLUMN, PHONE, Line, draw_depth_response, new_figure
from scse.report.page import indices
from scse.report.panels import folded, plain
from scse.report.pictures import in_page_colours
from scse.report.tables import Entry, Head, Row, Section, Table, turned
from scse.suites import SUITES
from scse.suites.presets import find_preset
from scse.suites.setting import CORPORA, SIZES, group_heading, in_the_paper, setting

MINI = find_preset("mini", "wikitext-2-v1")
PAPER = find_preset("paper")


@pytest.mark.parametrize("suite", [suite for suite in SUITES if suite.paper], ids=lambda suite: suite.name)
def test_a_title_says_what_is_compared_and_not_at_which_size(suite):
    for name in (*CORPORA.values(), *SIZES.values()):
        assert name not in suite.title
    assert setting(suite, PAPER) == in_the_paper(suite)
    small = setting(suite, MINI)
    assert small.startswith("wikitext-2-v1, width ")
    assert small.endswith(f" steps; in the paper {in_the_paper(suite)}")


def test_settings_in_words():
    assert in_the_paper(SUITES.find("stepcond_wt103")) == "WikiText-103, 22M, 50M and 95.6M"
    assert setting(SUITES.find("stepcond_wt103"), MINI).startswith(
        "wikitext-2-v1, width 128, 192 and 256, context 128, 400 steps;"
    )
    assert "1,200 and 400 steps" in setting(SUITES.find("add-c4-long50k"), MINI)
    assert setting(SUITES.find("ablations"), find_preset("mini", "/here/my_text", steps=70)).startswith(
        "my_text, width 128, context 128, 70 steps; in the paper WikiText-2, 22M"
    )
    assert setting(replace(toys.ABLATIONS, paper={}), MINI) == "wikitext-2-v1, width 128, context 128, 400 steps"


@pytest.mark.parametrize(
    ("suite", "group", "heading"),
    [
        ("stepcond_wt103", "50M", "50M in the paper, width 192 here"),
        ("wt103-depth-response", "95.6M", "95.6M in the paper, width 256 here"),
        ("contexts", "Context 512", "Context 512 in the paper, context 256 here"),
        ("ablations", "Capacity and source-centered rows", "Capacity and source-centered rows"),
        ("owt_train", "", ""),
    ],
)
def test_a_group_that_names_a_size_says_what_stands_for_it(suite, group, heading):
    assert group_heading(SUITES.find(suite), MINI, group) == heading
    assert group_heading(SUITES.find(suite), PAPER, group) == group


def test_the_page_of_small_runs_names_their_size(report):
    page = (report / "index.html").read_text(encoding="utf-8")
    assert '<p class="setting">wikitext-2, width 128, context 128, 7 steps; in the paper WikiText-2, 22M</p>' in page


def test_a_page_without_values_of_the_paper_does_not_speak_of_them(demo_report):
    page = (demo_report / "index.html").read_text(encoding="utf-8")
    assert "with its own value beside ours" not in page
    assert "The paper’s value stands below ours" not in page
    (heads,) = re.findall(r'<table class="results short">.*?<thead>(.*?)</thead>', page, re.DOTALL)
    assert "paper" not in heads
    assert re.findall(r'<th scope="col"[^>]*>(.*?)</th>', heads)[0] == "Number", "fifteen columns stand as rows"
    assert "black ticks" not in page.lower()


CURVES = {
    "falling": {1: 400.0, 4: 220.0, 16: 205.0, 48: 201.0},
    "rising": {1: 200.0, 8: 201.0, 16: 240.0, 48: 900.0},
    "high beyond": {1: 210.0, 8: 200.0, 12: 320.0, 16: 318.0, 48: 319.0},
    "flat": {1: 200.0, 8: 200.0, 48: 200.0},
}


@pytest.mark.parametrize("width", [COLUMN, PHONE])
@pytest.mark.parametrize("curve", CURVES.values(), ids=list(CURVES))
def test_words_stand_above_every_curve(curve, width):
    figure = new_figure(width)
    axes = figure.add_subplot()
    draw_depth_response(axes, [Line("A", "scse", curve, dict.fromkeys(curve, 3.0))], trained=8)
    figure.draw_without_rendering()
    (words,) = axes.texts
    below = words.get_window_extent().y0
    for line in axes.lines:
        points = axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]))
        mark = line.get_markersize() / 2 * figure.dpi / 72
        assert points[:, 1].max() + mark < below
    for band in axes.collections:
        reach = band.get_datalim(axes.transData)
        assert axes.transData.transform((1, reach.y1))[1] < below


@pytest.mark.parametrize(
    ("text", "markup", "formula"),
    [
        ("R_47 of b_t", "R<sub>47</sub> of b<sub>t</sub>", "$R_{47}$ of $b_{t}$"),
        ("h*=e+a_ω(e) & W_in", "h*=e+a<sub>ω</sub>(e) &amp; W<sub>in</sub>", "h*=e+$a_{ω}$(e) & $W_{in}$"),
        ("E_Δ,47, E_47", "E<sub>Δ,47</sub>, E<sub>47</sub>", "$E_{Δ,47}$, $E_{47}$"),
        ("toy_bias, 100 %_ref, _x", "toy_bias, 100 %_ref, _x", "toy_bias, 100 %_ref, _x"),
        ("<b_1> costs $5", "&lt;b<sub>1</sub>&gt; costs $5", r"<$b_{1}$> costs \$5"),
    ],
)
def test_an_index_stands_below_the_line(text, markup, formula):
    assert indices(text) == markup
    assert plain(text) == formula


def test_no_index_is_left_raw_on_the_page(report, demo_report):
    for folder in (report, demo_report):
        page = (folder / "index.html").read_text(encoding="utf-8")
        shown = re.sub(r"<style>.*?</style>|<code>.*?</code>|<svg.*?</svg>", "", page, flags=re.DOTALL)
        words = re.sub(r"<[^>]*>", " ", shown)
        assert re.findall(r"(?<!\w)[A-Za-z]_\w+", words) == []


def test_folded_text_keeps_its_words():
    folds = folded("Recurrent-step-conditioned adapter of R_47", 1.2).split("\n")
    assert len(folds) > 2
    assert " ".join(folds).replace("- ", "-") == "Recurrent-step-conditioned adapter of $R_{47}$"


def test_greys_become_the_pages_and_colours_stay():
    drawn = '<path id="a" d="M 0 0" style="fill: #ffffff; stroke: #000000"/><g style="stroke: #b0b0b0; fill: #009e73"/>'
    assert in_page_colours(drawn) == (
        '<path id="a" d="M 0 0" style="fill: var(--figure-paper); stroke: var(--figure-ink)"/>'
        '<g style="stroke: color-mix(in srgb, var(--figure-paper) 69%, var(--figure-ink)); fill: #009e73"/>'
    )


def test_files_keep_the_colours_they_were_drawn_in(report):
    for path in (report / "figures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "var(--" not in text
        assert "#ffffff" in text


def table(rows: int, columns: int, parts: tuple[str, ...] = ()) -> Table:
    step = max(1, len(parts))
    body = tuple(
        Row(f"row {r}", tuple(Entry(f"{r}.{c}.{p}") for c in range(columns) for p in range(step))) for r in range(rows)
    )
    return Table("about", "Method", tuple(Head(f"T={c}", parts) for c in range(columns)), (Section("", body),))


@pytest.mark.parametrize("parts", [(), ("paper", "ours")], ids=["ours", "both"])
def test_a_table_of_many_columns_and_few_rows_is_turned(parts):
    made = turned(table(2, 7, parts))
    assert [head.text for head in made.heads] == ["row 0", "row 1"]
    assert made.heads[0].parts == parts
    (section,) = made.sections
    assert [row.label for row in section.rows] == [f"T={c}" for c in range(7)]
    sides = range(max(1, len(parts)))
    assert [entry.text for entry in section.rows[3].entries] == [f"{r}.3.{p}" for r in range(2) for p in sides]
    assert made.caption == "about"


@pytest.mark.parametrize(("rows", "columns"), [(2, 6), (7, 7), (9, 8)])
def test_other_tables_stay_as_they_are(rows, columns):
    assert turned(table(rows, columns)) == table(rows, columns)


def test_a_turned_table_keeps_what_is_said_about_its_rows():
    source = table(2, 7)
    first, second = source.sections[0].rows
    rows = (replace(first, reference=True, note="seed 2 missing"), second)
    heads = turned(replace(source, sections=(Section("", rows),))).heads
    assert [head.text for head in heads] == ["row 0 (reference, seed 2 missing)", "row 1"]
