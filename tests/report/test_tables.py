"""The contents of tables: bold, ties, what is missing, and the characters of three markup languages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toys

from scse.records.statistics import Summary
from scse.report import latex, markdown
from scse.report.claims import SUPPORTED, UNDECIDED, judge_all
from scse.report.tables import ratios, results
from scse.report.wording import measured, missing_seeds, number, signed
from scse.suites.evidence import COMPLETE, MISSING, PARTIAL, Shelf, gather
from scse.suites.suite import Column, Preset, Suite, Value

MEANS = {"looped": 240.0, "tuned": 201.02, "unshared": 150.0, "scse": 201.04}


def evidence(numbers, suite=toys.ABLATIONS, preset=toys.MINI):
    return gather(suite, Shelf(toys.records_of(suite, numbers, preset), preset))


def mean_plus_seed(arm, column, seed):
    return MEANS[arm.name] + seed - 1


def rows(table):
    return {row.label: row for section in table.sections for row in section.rows}


def bold(table, label):
    return [entry.text for entry in rows(table)[label].entries if entry.bold]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (155.14, 1, "155.1"),
        (-3.96, 1, "−4.0"),
        (0.0, 3, "0.000"),
        (5.54e-6, 3, "5.5×10⁻⁶"),
        (-2e-4, 2, "−2.0×10⁻⁴"),
        (1234567.0, 1, "1234567.0"),
        (-4.989e11, 3, "−5.0×10¹¹"),
        (float("inf"), 1, "∞"),
        (float("nan"), 1, "not a number"),
    ],
)
def test_numbers_as_text(value, digits, text):
    assert number(value, digits) == text


def test_signs_seeds_and_deviations():
    assert [signed(x, 1) for x in (1.0, -1.0, 0.0)] == ["+1.0", "−1.0", "0.0"]
    assert missing_seeds((1, 2)) == "seeds 1, 2 missing"
    assert missing_seeds((4,)) == "seed 4 missing"
    assert measured(Summary(156.42, 0.61, (0, 1, 2)), 1, 3) == "156.4 ± 0.6 (3)"
    assert measured(Summary(156.42, 0.61, (0, 2)), 1, 3) == "156.4 ± 0.6 (2 of 3)"
    assert measured(Summary(156.42, 0.0, (0,)), 1, 3) == "156.4 (1 of 3)", "one value has no deviation"


def test_values_that_print_alike_share_the_bold_and_references_take_no_part():
    table = results(evidence(mean_plus_seed))
    assert bold(table, "Tuned adapter, s=0.35") == ["201.0 ± 1.0 (3)"] * 2
    assert bold(table, "SCSE") == ["355.2 ± 2.4", "201.0 ± 1.0 (3)", "393.9 ± 3.7", "201.0 ± 1.0 (3)"]
    assert bold(table, "Looped baseline") == bold(table, "Unshared <4> & 100 %_ref") == []


@pytest.mark.parametrize(("lower", "best"), [(True, "SCSE"), (False, "Looped baseline"), (None, None)])
def test_the_column_says_which_direction_is_better(lower, best):
    columns = tuple(replace(column, lower=lower) for column in toys.ABLATIONS.columns)
    suite = replace(toys.ABLATIONS, columns=columns, arms=(toys.LOOPED, toys.SCSE))
    table = results(evidence(mean_plus_seed, suite))
    for label in ("SCSE", "Looped baseline"):
        assert bool(bold(table, label)) == (label == best)


def test_a_lone_number_is_not_best():
    only = evidence(lambda arm, column, seed: 200.0 if arm.name == "scse" else None)
    assert bold(results(only), "SCSE") == ["355.2 ± 2.4", "393.9 ± 3.7"], "the paper's, not ours"


def test_missing_and_partial_cells_say_so_and_never_show_a_default():
    def numbers(arm, column, seed):
        absent = (
            arm.name == "looped"
            or (arm.name == "tuned" and seed == 2)
            or (arm.name == "scse" and seed > column.depth // 8 - 1)
        )
        return None if absent else mean_plus_seed(arm, column, seed)

    found = evidence(numbers)
    table = rows(results(found))
    looped, tuned, scse = table["Looped baseline"], table["Tuned adapter, s=0.35"], table["SCSE"]
    assert [entry.text for entry in looped.entries[1::2]] == ["—", "—"]
    assert looped.note == "seeds 0, 1, 2 missing"
    assert looped.entries[1].state == MISSING
    assert tuned.entries[1].text == "200.5 ± 0.7 (2 of 3)"
    assert (tuned.note, tuned.entries[1].state, tuned.entries[1].note) == ("seed 2 missing", PARTIAL, "")
    assert scse.note == "", "its columns lack different seeds"
    assert [entry.note for entry in scse.entries] == ["", "seeds 1, 2 missing", "", ""]
    assert found.state == PARTIAL
    assert found.counts == (14, 24)
    assert evidence(mean_plus_seed).state == COMPLETE
    assert evidence(lambda *_: None).state == MISSING


def test_a_column_of_fewer_seeds_lacks_only_its_own():
    few = replace(toys.T48, seeds=(0, 1))
    suite = replace(toys.ABLATIONS, arms=(toys.LOOPED, toys.SCSE), columns=(toys.T8, few))
    found = evidence(lambda arm, column, seed: None if seed == 2 else 5.0, suite)
    row = rows(results(found))["SCSE"]
    assert (row.note, [entry.note for entry in row.entries]) == ("seed 2 missing", [""] * 4)
    assert [entry.text for entry in row.entries[1::2]] == ["5.0 ± 0.0 (2 of 3)", "5.0 ± 0.0 (2)"]
    assert found.counts == (8, 10)


def test_seeds_that_the_suite_does_not_ask_for_are_left_out():
    suite = replace(toys.ABLATIONS, arms=(replace(toys.SCSE, seeds=(0, 1)), toys.LOOPED))
    records = toys.records_of(toys.ABLATIONS, lambda arm, column, seed: 1000.0 if seed == 2 else 200.0)
    cell = gather(suite, Shelf(records, toys.MINI)).cells["scse", "T=8"]
    assert cell.values == {0: 200.0, 1: 200.0}


def test_another_split_is_another_number():
    suite = replace(toys.ABLATIONS, arms=(toys.SCSE,))
    record = toys.record(toys.MINI, toys.SCSE, toys.T8, 0, {"ppl": 5.0}, split="validation")
    assert gather(suite, Shelf([record], toys.MINI)).cells["scse", "T=8"].values == {}


def test_ratios_to_the_first_arm_of_the_same_protocol_over_common_seeds():
    def numbers(arm, column, seed):
        return (
            None
            if (arm.name, seed) == ("looped", 2)
            else 100.0 * (2 if arm.name == "looped" else 1) + 100 * (seed == 2)
        )

    table = rows(ratios(evidence(numbers)))
    assert [entry.text for entry in table["SCSE"].entries] == ["0.860", "0.500 (2)", "0.873", "0.500 (2)"]
    assert table["Looped baseline"].entries[0].text == "1.000"


def test_another_protocol_has_a_first_arm_of_its_own():
    other = replace(toys.SCSE, name="other", label="Other", protocol="wikitext-103")
    paper = {**toys.ABLATIONS.paper, ("other", "T=8"): Value(7.0)}
    table = ratios(
        gather(replace(toys.ABLATIONS, arms=(*toys.ABLATIONS.arms, other), paper=paper), Shelf([], toys.PAPER))
    )
    assert [entry.text for entry in rows(table)["Other"].entries] == ["1.000", "—", "—", "—"]
    assert table.caption == "Means divided by those of Looped baseline or Other, by protocol."


def adaptive_evidence(depths):
    """SCSE at 150 and the baseline at 180 for every budget, at these mean depths."""
    records = [
        toys.record(
            toys.MINI,
            arm,
            column,
            seed,
            {"ppl": 180.0 - 30 * (arm.name == "scse") + seed, "mean_depth": depths[arm.name]},
        )
        for arm in toys.ADAPTIVE.arms
        for column in toys.ADAPTIVE.columns
        if column.budget is not None
        for seed in arm.seeds
    ]
    return gather(toys.ADAPTIVE, Shelf(records, toys.MINI))


def test_adaptive_numbers_stand_beside_the_depth_they_took():
    table = results(adaptive_evidence({"looped": 8.5, "scse": 7.96}))
    entry = rows(table)["SCSE"].entries[3]
    assert (entry.text, entry.bold) == ("151.0 ± 1.0 (3), 8.0 loops", True)
    assert "Not ranked" not in table.caption
    for text in (markdown.table(table), latex.table(table, "tab:toy")):
        assert "(3), 8.0 loops" in text
        assert "(3), 8.5 loops" in text


def test_adaptive_numbers_at_different_depths_are_not_ranked():
    found = adaptive_evidence({"looped": 12.9, "scse": 5.6})
    table = results(found)
    assert bold(table, "SCSE") == ["156.0"], "the paper's, not ours"
    assert table.caption.endswith(
        "Not ranked, because realised mean depths differ by more than 10 %: "
        "Adaptive 8 (5.6 to 12.9 loops), Adaptive 16 (5.6 to 12.9 loops)."
    )
    assert rows(ratios(found))["SCSE"].entries[3].text == "—"
    (judged,) = judge_all(found)
    assert judged.verdict == UNDECIDED
    assert {c.reason for c in judged.comparisons} == {"not at the same depth: 5.6 loops against 12.9 loops"}
    assert judge_all(adaptive_evidence({"looped": 8.5, "scse": 7.96}))[0].verdict == SUPPORTED


def test_text_that_a_preset_lacks_is_not_missing():
    column = Column("C4", data="c4", depth=8)
    suite = Suite("elsewhere", "Elsewhere", (toys.SCSE,), (toys.T8, column))
    preset = replace(toys.MINI, elsewhere={})
    found = evidence(lambda arm, c, seed: 5.0 if c is toys.T8 else None, suite, preset)
    assert found.unavailable == ["C4"]
    assert found.state == COMPLETE
    assert gather(suite, Shelf([], Preset("paper"))).unavailable == []


def test_markdown_table():
    text = markdown.table(results(evidence(mean_plus_seed)))
    assert "| Method | T=8 paper | T=8 ours | T=48 paper | T=48 ours |" in text
    assert "| **Controls** |  |  |  |  |" in text
    assert (
        "| Unshared \\<4\\> \\& 100 %\\_ref (reference) | 358.1 ± 2.9 | 150.0 ± 1.0 (3) | — | 150.0 ± 1.0 (3) |" in text
    )
    assert "| SCSE | **355.2 ± 2.4** | **201.0 ± 1.0 (3)** | **393.9 ± 3.7** | **201.0 ± 1.0 (3)** |" in text
    widths = {line.count(" | ") for line in text.splitlines() if line.startswith("|")}
    assert widths == {4}


def test_latex_table():
    text = latex.table(results(evidence(mean_plus_seed)), "tab:toy")
    assert "\\begin{tabular}{lrrrr}" in text
    assert (
        " & \\multicolumn{2}{c}{T=8} & \\multicolumn{2}{c}{T=48} \\\\\n\\cmidrule(lr){2-3}\\cmidrule(lr){4-5}" in text
    )
    assert "\\multicolumn{5}{l}{\\emph{Controls}} \\\\" in text
    assert "Unshared \\textless{}4\\textgreater{} \\& 100 \\%\\_ref (reference) & 358.1 $\\pm$ 2.9" in text
    assert "\\textbf{\\boldmath 355.2 $\\pm$ 2.4}" in text
    assert text.count("\\toprule") == text.count("\\bottomrule") == 1


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5% #1 {x} ~", r"a\_b \& 5\% \#1 \{x\} \textasciitilde{}"),
        ("h*=e+a_ω(e), Δ ≥ −1", r"h*=e+a\_$\omega$(e), $\Delta$ $\geq$ $-$1"),
        ("5.5×10⁻⁶ ± ½", r"5.5$\times$10$^{-}$$^{6}$ $\pm$ 1/2"),
        ("[1] \\x $y$ ^", r"{[}1{]} \textbackslash{}x \$y\$ \textasciicircum{}"),
        ("naïve 中", "naïve {[}U+4E2D{]}"),
        ("λ Λ x₋₁", r"$\lambda$ $\Lambda$ x$_{-}$$_{1}$"),
    ],
)
def test_latex_prints_every_character_as_it_is(text, escaped):
    assert latex.escape(text) == escaped
