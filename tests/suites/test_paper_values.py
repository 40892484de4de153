"""Every value of the suites is the paper's: row by row, in order, none left out."""

from __future__ import annotations

import copy

import paper
import paper_source
import pytest

from scse.suites import SUITES

# The paper's last header line, where it is not our own headers.
HEADERS = {
    "bias_decomp": ["R_0", "R_{47}", "E_{Δ,47}"],
    "ablations": ["T=8 PPL", "T=24 PPL", "T=48 PPL"],
    "scale_profile": [
        *("PPL", "Latency (ms)"),
        *("PPL", "Latency (ms)", "Throughput (10^3 tokens per second)", "Peak memory (MB)"),
    ],
    "heldout_transfer": ["T=8", "T=48", "T=8", "T=48"],
    "lambada": ["Completion PPL (10^3)", "Accuracy (%)", "Depth", "Completion PPL (10^3)", "Accuracy (%)"],
    "operating_point_mechanism": ["T=48", "Gain", "Bias ratio", "Anchor energy"],
    "add-causal-forcing": [
        *("Body applications per step", "T=8", "T=24", "T=48"),
        "Pointwise-bias energy ratio at t=47",
    ],
}
# Columns of the paper that are not numbers of an evaluation.
UNMEASURED = {"add-causal-forcing": ["Body applications per step"], "lambada": ["Depth"]}
NOT_A_TABLE_OF_ROWS = {
    "wt103-depth-response",
    "zdfb-empirical",
    "forcing_bias_ratio",
    "step_film",
    "secondary_condleak",
}
TABLES = [suite.label for suite in SUITES if suite.label and suite.label not in NOT_A_TABLE_OF_ROWS]
# Every table that is read here or in test_paper_text; paper_source.py extracts these.
FROM_TABLES = [*TABLES, "secondary_condleak"]


def ours(suite, arm):
    """The values of a row in the columns of the paper's table."""
    found = [suite.paper.get((arm.name, column.header)) for column in suite.columns if not column.beside]
    return [(value.mean, value.sd) for value in found if value is not None]


def rows_of(suite):
    """The rows of the paper's table."""
    return [arm for arm in suite.arms if not arm.beside]


def columns_of(suite):
    return [column for column in suite.columns if not column.beside]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_papers_rows_and_values(name):
    suite, table = SUITES.find(name), paper.table(name)
    assert table.headers == HEADERS.get(name, [column.header for column in columns_of(suite)])
    skipped = [table.headers.index(header) for header in UNMEASURED.get(name, [])]
    rows = []
    for row in table.rows:
        cells = [cell for number, cell in enumerate(row.cells) if number not in skipped]
        rows.append((row.group, row.label, paper.Row("", "", cells).numbers))
    assert [(arm.group, arm.label, ours(suite, arm)) for arm in rows_of(suite)] == rows
    assert rows


def test_the_check_would_see_a_typo(monkeypatch):
    values = copy.deepcopy(paper.values())
    row = values["tables"]["ablations"]["rows"][0]
    row[2] = row[2].replace("±", "1±")
    monkeypatch.setattr(paper, "values", lambda: values)
    with pytest.raises(AssertionError):
        test_a_table_has_the_papers_rows_and_values("ablations")


def test_profile_columns_stand_under_their_depth():
    assert paper.table("scale_profile").above == [(2, "T=8"), (4, "T=48 profile")]
    assert [column.depth for column in SUITES.find("scale_profile").columns] == [8, 8, 48, 48, 48, 48]


def test_lambada_values_stand_at_the_depth_the_row_names():
    suite = SUITES.find("lambada")
    for arm, row in zip(suite.arms, paper.table("lambada").rows, strict=True):
        deep = {column.depth for column in columns_of(suite) if (arm.name, column.header) in suite.paper} - {8}
        depth = row.cells[2]
        assert deep == ({48} if depth == "T≥8" else {int(depth.removeprefix("T="))})


def test_the_depth_response_shows_the_tables_values():
    suite = SUITES.find("wt103-depth-response")
    scale, stepwise = paper.table("scale95m"), paper.table("stepcond_wt103")
    for arm in suite.arms:
        for column in columns_of(suite):
            printed = []
            if column.header in scale.headers and arm.name != "step-adapter":
                printed.append(scale.cell("", arm.label, column.header))
            if column.header in stepwise.headers:
                printed.append(stepwise.cell("95.6M", arm.label, column.header))
            value = suite.paper.get((arm.name, column.header))
            assert set(printed) == ({(value.mean, value.sd)} if value else set())


def test_the_bias_ratios_are_those_of_the_table():
    figure, table = SUITES.find("forcing_bias_ratio"), paper.table("bias_decomp")
    found = [(arm.group, arm.label, ours(figure, arm)) for arm in figure.arms]
    assert found == [(row.group, row.label, row.numbers[:2]) for row in table.rows]


def test_the_leak_table_lies_on_its_side():
    suite, table = SUITES.find("secondary_condleak"), paper.table("secondary_condleak")
    printed = {}
    for row in table.rows:
        depth = row.cells[0].removesuffix(" PPL")
        for method, number in zip(table.headers[1:3], row.numbers, strict=True):
            printed[row.label, method, depth] = number
    found = {
        (arm.group, arm.label, header): (suite.paper[arm.name, header].mean, suite.paper[arm.name, header].sd)
        for arm in suite.arms
        for header in ("T=8", "T=48")
    }
    assert found == printed
    assert len(printed) == 8


def test_the_film_controls_rivals_have_the_values_of_a_table():
    suite = SUITES.find("step_film")
    table = {row.label: row.numbers[1:4] for row in paper.table("add-causal-forcing").rows}
    for name in ("tuned-adapter", "step-adapter", "scse"):
        assert ours(suite, suite.arm(name)) == table[suite.arm(name).label]


LATEX = r"""
\begin{tabular}{lrr}
\toprule
& \multicolumn{2}{c}{Test PPL} \\
\cmidrule(lr){2-3}
Method & $T=8$ & $T=48$ \\
\midrule
\multicolumn{3}{l}{22M} \\
\SCSE{} & $\mathbf{1.5\pm0.1}$ & $2.0$ \\
\bottomrule
\end{tabular}
\caption{Toy.}
\label{tab:toy}
It reaches $1.5$ at $T=8$.
"""


def test_values_are_extracted_from_latex(tmp_path, monkeypatch):
    held = paper_source.extract(LATEX, ["toy"], ["It reaches $1.5$"])
    monkeypatch.setattr(paper, "VALUES", tmp_path / "values.json")
    paper.VALUES.write_text(paper_source.as_text(held), "utf-8")
    paper.values.cache_clear()
    try:
        assert paper.table("toy") == paper.PaperTable(
            [(2, "Test PPL")], ["T=8", "T=48"], [paper.Row("22M", "SCSE", ["1.5±0.1", "2.0"])]
        )
        assert paper.table("toy").cell("22M", "SCSE", "T=8") == (1.5, 0.1)
        assert paper.says("It reaches $1.5$")
        assert not paper.says("It reaches $1.6$")
    finally:
        paper.values.cache_clear()
    with pytest.raises(SystemExit, match="not in the paper"):
        paper_source.extract(LATEX, [], ["It reaches $1.6$"])
