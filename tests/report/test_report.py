"""A report as files: the page, the tables beside it, the same bytes from the same records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import toys

import forked
from scse.errors import UserError
from scse.records import append_records
from scse.report.anchor_start import draw_anchor_start
from scse.report.diagrams import diagrams
from scse.report.figures import Line, draw_depth_response, new_figure
from scse.report.suite_figures import MOST_LINES, _pictured, pictures
from scse.report.write import write_report
from scse.suites import SUITES
from scse.suites.evidence import Shelf, gather
from scse.suites.presets import find_preset


@pytest.fixture(scope="module")
def page(report) -> str:
    return (report / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder of runs as a suite leaves it: every seed of the anchor ablation but one."""
    preset = find_preset("mini", "wikitext-2")
    suite = SUITES.find("anchor-design")
    level = {"scse": 200.0, "scse-embedding": 206.0, "scse-initial": 290.0, "scse-random": 205.0}
    folder = tmp_path_factory.mktemp("runs")
    for arm in suite.arms:
        for seed in arm.seeds:
            if (arm.name, seed) != ("scse-random", 2):
                records = [
                    toys.record(preset, arm, column, seed, {"ppl": level[arm.name] + seed + 0.1 * (column.depth or 0)})
                    for column in suite.columns
                ]
                append_records(folder / arm.name / f"seed{seed}" / "records.jsonl", records)
    return folder


def scse(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.scse(arguments)


def test_every_file_is_there_and_nothing_is_left_over(report, shown):
    found = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    figures = ["update-geometry", "update-circuits", "toy-ablations-depth-response", "toy_bias-bias-ratio"]
    figures += ["toy-adaptive-exit-depths", "toy-adaptive-pareto", "toy-steering-anchor-start"]
    expected = {f"figures/{name}.{kind}" for name in figures for kind in ("png", "svg")}
    expected |= {f"tables/{suite.name}.{kind}" for suite in shown for kind in ("md", "tex")}
    assert found == expected | {"index.html"}
    assert all((report / name).read_bytes().startswith(b"\x89PNG") for name in expected if name.endswith("png"))


def test_the_same_records_give_the_same_bytes(report, shown, records, tmp_path):
    diagrams.cache_clear()
    write_report(shown, toys.MINI, records, tmp_path)
    for path in report.rglob("*.*"):
        assert (tmp_path / path.relative_to(report)).read_bytes() == path.read_bytes(), path.name


def test_the_page_needs_nothing_else(page):
    addresses = set(re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^"\s)>]+)', page))
    outside = {a for a in addresses if not a.startswith(("#", "tables/", "figures/", "data:"))}
    assert outside == set()
    assert "<script" not in page
    assert "@import" not in page


def test_no_two_elements_share_an_id_and_every_reference_has_its_target(page):
    ids = Counter(re.findall(r'\bid="([^"]+)"', page))
    assert [name for name, count in ids.items() if count > 1] == []
    targets = re.findall(r'(?:href="|url\()#([^")]+)', page) + re.findall(r'aria-labelledby="([^"]+)"', page)
    assert len(targets) > 100
    assert set(targets) <= set(ids)


def test_the_contents_have_a_line_per_suite_with_its_state(page):
    lines = re.findall(r'<tr><th scope="row"><a href="#([\w-]+)">(.*?)</a>.*?class="state (\w+)"', page, re.DOTALL)
    assert lines == [
        ("toy-ablations", "Stabilization &amp; capacity &lt;controls&gt;", "partial"),
        ("toy_bias", "Forcing bias at the anchor", "complete"),
        ("toy-adaptive", "Adaptive depth", "complete"),
        ("toy-steering", "Anchor-started rollouts", "complete"),
        ("toy-missing", "A suite that nobody has run", "missing"),
    ]


def test_the_page_shows_values_claims_and_gaps(page):
    flat = re.sub(r"\s+", " ", page)
    assert '<td class="n paper"><strong>355.2 ± 2.4</strong></td>' in flat
    assert "Unshared &lt;4&gt; &amp; 100 %_ref <small>reference</small>" in flat
    assert 'Tuned adapter, s=0.35 <small class="gap">seed 2 missing</small>' in flat
    assert re.search(r'<td class="n partial ours">206\.\d ± \d\.\d \(2 of 3\)</td>', flat)
    assert '<span class="verdict">contradicted</span> The looped baseline is below the tuned adapter at T=8.' in flat
    assert "not all seeds yet" in flat
    assert "absolute numbers are not comparable" in flat
    (said,) = re.findall("<code>scse suite run toy-missing --preset mini (.*?)</code>", flat)
    assert said == "--data wikitext-2 --limit 4"
    assert flat.count("<caption>") == flat.count("<table")


def test_the_markdown_file_says_what_the_page_says(report):
    text = (report / "tables" / "toy-ablations.md").read_text(encoding="utf-8")
    assert text.startswith("# Stabilization \\& capacity \\<controls\\>\n")
    assert "Suite `toy-ablations`: partial, 22 of 24 numbers." in text
    assert re.search(
        r"^2\. \*\*contradicted\*\*: The looped baseline is below .* at T=8\. Looped .* 2 seeds", text, re.M
    )


def test_at_the_papers_size_there_are_no_ratios_and_no_caution(tmp_path):
    records = toys.records_of(toys.ABLATIONS, toys.perplexity, toys.PAPER)
    (part,) = write_report([toys.without_figures(toys.ABLATIONS)], toys.PAPER, records, tmp_path)
    assert [kind for kind, _ in part.tables] == ["results", "differences"]
    assert "not comparable" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_picture_without_records_is_missing_and_an_old_one_goes(tmp_path):
    write_report([toys.STEERING], toys.MINI, toys.every_record(), tmp_path)
    assert (tmp_path / "figures" / "toy-steering-anchor-start.png").exists()
    about = (toys.MINI, toys.LOOPED, toys.STEERING.columns[0])
    write_report([toys.STEERING], toys.MINI, [toys.record(*about, 0, {"cosine": 0.9})], tmp_path)
    assert not list((tmp_path / "figures").glob("toy-steering*"))
    assert "Figure missing" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_a_model_that_never_leaves_its_anchor_says_so(tmp_path):
    record = toys.record(toys.MINI, toys.LOOPED, toys.STEERING.columns[0], 0, {"cosine": 0.9}, panels=still(False))
    write_report([toys.STEERING], toys.MINI, [record], tmp_path)
    assert (tmp_path / "figures" / "toy-steering-anchor-start.svg").exists()


def still(has_source: bool) -> dict[str, object]:
    """Panels of rollouts that stay at the anchor."""
    panels = {**toys.panels(), "has_source": has_source}
    return {**panels, "drift": {**panels["drift"], "paths": [[(0.0, 0.0)] * 9] * 3}}


@pytest.mark.parametrize(
    ("has_source", "reason"),
    [
        (False, "no injection with a gain of its own:\nnothing to turn"),
        (True, "the anchor is held:\nno gain of the source"),
    ],
    ids=["without a source", "with a source"],
)
def test_panels_without_motion_say_why(has_source, reason):
    left, right = (axes.texts[0].get_text() for axes in draw_anchor_start(still(has_source)).axes)
    assert "the anchor is a fixed point" in left
    assert right.startswith(reason)


def drawn(suite, records):
    return pictures(gather(suite, Shelf(records, toys.MINI)))


def test_a_figure_of_no_known_kind_gets_a_suggestion():
    with pytest.raises(UserError, match="unknown kind of figure 'bias-ration'; did you mean 'bias-ratio'"):
        drawn(replace(toys.BIAS, figure="bias-ration"), [])


@pytest.mark.parametrize(
    ("suite", "figure"), [(toys.BIAS, "depth-response"), (toys.ABLATIONS, "bias-ratio")], ids=["depths", "bias"]
)
def test_a_figure_whose_columns_the_suite_lacks_is_missing(suite, figure, records):
    (picture,) = drawn(replace(suite, figure=figure), records)
    assert picture.figure is None


def late_bias(arm, column, seed):
    return {"looped": 4.1, "tuned": 1.5, "scse": 0.0}[arm.name] if column.depth else None


def open_circles(figure) -> int:
    """The markers of the first step, that of the legend left out."""
    return sum(line.get_marker() == "o" for axes in figure.axes for line in axes.lines)


def test_bias_ratios_are_drawn_also_where_the_first_step_is_not_known():
    records = toys.records_of(toys.BIAS, late_bias)
    known = toys.record(toys.MINI, toys.LOOPED, toys.FIRST, 0, {"bias_ratio": 1.0})
    alone = replace(toys.BIAS, columns=(toys.LAST,), paper={}, claims=())
    for suite, found, circles, legend in (
        (toys.BIAS, [*records, known], 1, ["t = 47", "t = 0", "paper, t = 47", "equal energies"]),
        (toys.BIAS, records, 0, ["t = 47", "t = 0", "paper, t = 47", "equal energies"]),
        (alone, records, 0, ["t = 47", "equal energies"]),
    ):
        (picture,) = drawn(suite, found)
        figure = picture.figure
        assert open_circles(figure) == circles
        assert [text.get_text() for text in figure.legends[0].texts] == legend
        assert ("paper" in picture.caption) == ("paper, t = 47" in legend)


def test_depths_that_were_all_trained_are_not_shaded():
    for deepest, said in ((8, []), (16, ["deeper than trained"])):
        axes = new_figure(4).add_subplot()
        draw_depth_response(axes, [Line("SCSE", "scse", {1: 20.0, deepest: 18.0})], trained=8)
        assert [text.get_text() for text in axes.texts] == said


def test_numbers_that_are_not_finite_are_shown_and_not_drawn(tmp_path):
    def numbers(arm, column, seed):
        return float("inf") if arm.name == "looped" else toys.perplexity(arm, column, seed)

    (part,) = write_report([toys.ABLATIONS], toys.MINI, toys.records_of(toys.ABLATIONS, numbers), tmp_path)
    assert "∞" in (tmp_path / "tables" / "toy-ablations.md").read_text(encoding="utf-8")
    assert part.figures[0].svg
    assert part.findings[1].verdict == "can't tell", "all seeds are in, and a value is not finite"


def test_the_command_reads_folders_and_writes_the_report(runs, tmp_path):
    out = tmp_path / "out"
    result = scse("report", runs, "--data", "wikitext-2", "--suites", "anchor-design,ablations", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    anchors, ablations = json.loads(result.stdout)
    assert anchors == {
        "suite": "anchor-design",
        "state": "partial",
        "numbers": "39 of 42",
        "supported": 2,
        "contradicted": 1,
        "can't tell": 0,
        "can't tell yet": 0,
    }
    assert ablations["numbers"] == "9 of 81", "SCSE's runs serve both suites under the mini preset"
    assert "| Learned h\\*=e+a\\_ω(e) |" in (out / "tables" / "anchor-design.md").read_text(encoding="utf-8")
    assert str(out / "index.html") in result.stderr


def test_the_command_never_loads_torch(runs, tmp_path):
    arguments = ["report", str(runs), "--data", "wikitext-2", "--suites", "anchor-design", "--out", str(tmp_path)]
    probe = f"""
import sys, scse.cli, scse.report.write
scse.report.write.diagrams = tuple  # they take seconds
code = scse.cli.main({arguments!r})
sys.exit(code or "torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_all_suites_of_the_paper_can_be_reported_on(runs, tmp_path):
    rows = json.loads(scse("report", runs, "--data", "wikitext-2", "--out", tmp_path, "--json").stdout)
    assert [row["suite"] for row in rows] == SUITES.names()
    assert {row["state"] for row in rows} == {"partial", "missing"}


def test_records_of_other_runs_are_not_taken_for_the_suites(runs, tmp_path):
    out = tmp_path / "out"
    said = mistake(runs, "--preset", "paper", "--suites", "ablations", "--out", out)
    assert "none of the records is of a run of these suites at preset 'paper' (there are: wikitext-2, 400 steps" in said
    assert said.endswith("; give --preset mini --data wikitext-2\n")
    assert "; give --data wikitext-2\n" in mistake(runs, "--out", out)
    said = mistake(runs, "--data", "wikitext-2", "--suites", "lambada,contexts", "--out", out)
    assert re.search(r"; give --suites (\S+,)?anchor-design,\S+$", said), said
    assert not out.exists(), "a page without a number is not written"


def test_runs_of_other_steps_or_windows_are_named_with_the_options_that_show_them(tmp_path):
    other = find_preset("mini", "wikitext-2", limit=8, steps=40)
    suite, path = SUITES.find("anchor-design"), tmp_path / "records.jsonl"
    append_records(path, [toys.record(other, suite.arms[0], column, 0, {"ppl": 9.0}) for column in suite.columns])
    said = mistake(path, "--data", "wikitext-2", "--out", tmp_path / "out")
    assert "(there are: wikitext-2, 40 steps, on 8 windows (3 records)); give --data wikitext-2 --steps 40" in said
    plain = find_preset("mini", "wikitext-2")
    append_records(path, [toys.record(plain, suite.arms[0], suite.columns[0], 0, {"ppl": 9.0})])
    shown = ("--data", "wikitext-2", "--suites", "anchor-design")
    result = scse("report", path, *shown, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "not shown, being of other runs or other evaluations: wikitext-2, 40 steps, on 8 windows" in result.stderr


def test_runs_that_no_suite_asks_for_are_sent_to_compare(tmp_path):
    arm = replace(SUITES.find("anchor-design").arms[0], settings={"lr": 0.5})
    column = SUITES.find("anchor-design").columns[0]
    append_records(tmp_path / "records.jsonl", [toys.record(find_preset("mini"), arm, column, 0, {"ppl": 9.0})])
    assert "; 'scse compare' shows any runs" in mistake(tmp_path, "--out", tmp_path / "out")


def mistake(*arguments: object) -> str:
    result = scse("report", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_mistakes_are_one_line(runs, tmp_path):
    out = ("--out", tmp_path / "out")
    assert "there is nothing at" in mistake(tmp_path / "nowhere", *out)
    assert "there are no records in" in mistake(tmp_path, *out)
    assert "did you mean 'ablations'?" in mistake(runs, "--suites", "ablation", *out)
    assert "did you mean 'mini'?" in mistake(runs, "--preset", "mimi", *out)
    assert "--limit must be at least 1" in mistake(runs, "--limit", "0", *out)
    damaged = tmp_path / "records.jsonl"
    damaged.write_text('{"identity": {}}\n')
    assert f"{damaged}:1 is damaged" in mistake(damaged, *out)
    assert not (tmp_path / "out").exists()


def test_what_records_say_is_text_on_the_page_and_never_markup(tmp_path):
    """A record can come from anybody."""
    script = "<script>alert(1)</script>"
    strange = {"git": script, "torch": script, "time": script}
    records = [replace(record, facts={**record.facts, **strange}) for record in toys.every_record()]
    write_report(list(map(toys.without_figures, toys.SUITES.values())), toys.MINI, records, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "&lt;script&gt;al" in page
    assert "<script>al" not in page


@pytest.mark.parametrize("name", ["ablations", "rivals"])
def test_a_picture_has_no_more_lines_than_can_be_told_apart(name):
    evidence = gather(SUITES.find(name), Shelf([], find_preset("mini")))
    pictured = list(_pictured(evidence))
    assert max(len(arms) for _, arms in pictured) <= MOST_LINES
    shown = [arm.name for _, arms in pictured for arm in arms]
    assert sorted(shown) == sorted(arm.name for arm in evidence.suite.arms)
    assert len({title for title, _ in pictured}) == len(pictured)
    assert (len(pictured) > len(evidence.comparisons())) == (name == "rivals")
