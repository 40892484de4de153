"""What the suites hold of the paper's text: values beside its tables, differences it prints, sentences it says."""

from __future__ import annotations

import re

import paper
import pytest
from test_paper_values import columns_of

from scse.accounting import count_parameters
from scse.config import assemble
from scse.suites import SUITES
from scse.suites.presets import find_preset

# Rows beside a table, by the table that prints their values and its heading there.
ELSEWHERE = {
    ("long10k_95m", "5k"): [("stepcond_wt103", "95.6M"), ("scale95m", "")],
    ("add-c4-long50k", "5k"): [("add-scale-real-corpus", "")],
}


@pytest.mark.parametrize(("name", "suffix"), ELSEWHERE)
def test_rows_from_another_table_have_its_values(name, suffix):
    suite = SUITES.find(name)
    arms = [arm for arm in suite.arms if arm.name.endswith(f"-{suffix}")]
    assert arms
    for arm in arms:
        assert arm.beside
        printed = {}
        for source, group in ELSEWHERE[name, suffix]:
            table = paper.table(source)
            for header in {column.header for column in columns_of(suite)} & set(table.headers):
                if (group, arm.label) in [(row.group, row.label) for row in table.rows]:
                    printed[header] = table.cell(group, arm.label, header)
        found = {c.header: suite.paper.get((arm.name, c.header)) for c in columns_of(suite)}
        assert {header: (value.mean, value.sd) for header, value in found.items() if value} == printed


# The values of columns and rows beside the tables that only the text has, each with the words around it.
IN_TEXT = {
    "wt103-depth-response": [
        r"PPL increases by ${looped:T=8 → 48}$ for the looped Transformer baseline, ${tuned-adapter:T=8 → 48}$ for the "
        r"tuned adapter, ${step-adapter:T=8 → 48}$ for the recurrent-step-conditioned adapter, and "
        r"${scse:T=8 → 48}$ for \SCSE{}"
    ],
    "long10k_95m": [
        r"improvements between $T=4$ and $T=8$ are ${step-adapter:T=4 → 8}$ PPL for the recurrent-step-conditioned "
        r"adapter and ${scse:T=4 → 8}$ PPL for \SCSE{}"
    ],
    "bias_decomp": [r"\SCSE{} removes both the pointwise and raw pre-mask anchor responses"],
    "contexts": [
        "requires roughly {unshared-8-512:W} MB rather than {scse-512:W} MB of 16-bit parameter memory",
        "requires roughly {unshared-8-1024:W} MB rather than {scse-1024:W} MB of 16-bit parameter memory",
    ],
    "operating_point_mechanism": [
        r"baseline starts with a $t=0$ random-direction gain of ${looped:Gain at t=0}$",
        r"reduces the random-direction gain to ${tuned-adapter:Gain at t=0}$ and the recurrent-step-conditioned "
        r"adapter to ${step-adapter:Gain at t=0}$ at $t=0$",
        r"starts slightly lower at $t=0$ with ${scse:Gain at t=0}$",
    ],
}
SHORT = {"W": "Weights at 16 bits (MB)"}


def filled(suite, sentence, checked):
    """A sentence with our values in it as the paper prints them; the places of the values go into `checked`."""
    beside = {c.header: c for c in suite.columns if c.beside}

    def value(match):
        arm, _, header = match[1].partition(":")
        header = SHORT.get(header, header)
        number = suite.paper[arm, header]
        checked.add((arm, header))
        digits = beside[header].digits if abs(number.mean) < 2 or beside[header].digits < 2 else 2
        deviation = "" if number.sd is None else rf"\pm{number.sd:.{digits}f}"
        return f"{abs(number.mean):.{digits}f}{deviation}"

    return re.sub(r"\{([\w-]+:[^{}]+)\}", value, sentence)


@pytest.mark.parametrize("name", IN_TEXT)
def test_values_beside_a_table_are_in_the_text(name):
    suite = SUITES.find(name)
    checked = set()
    for sentence in IN_TEXT[name]:
        assert paper.says(filled(suite, sentence, checked))
    beside = {c.header for c in suite.columns if c.beside}
    zeros = {place for place, number in suite.paper.items() if number.mean == 0}
    assert checked == {place for place in suite.paper if place[1] in beside} - zeros


def steering_sentences():
    printed = [value.mean for value in SUITES.find("zdfb-empirical").paper.values()]
    return (
        f"trajectory--ray cosines between ${printed[0]:.2f}$ and ${printed[1]:.2f}$",
        rf"span ${printed[2]:.0f}\%$ to ${printed[3]:.0f}\%$ of the full sequence-mean anchor push",
        rf"about ${printed[4]:.0f}\%$ of the anchor push",
    )


def film_sentence():
    suite = SUITES.find("step_film")
    found = [suite.paper["film-adapter", column.header] for column in columns_of(suite)]
    first, second, third = (rf"${value.mean:.2f}\pm{value.sd:.2f}$" for value in found)
    return f"Step-FiLM adapter reaches {first} PPL at $T=8$, {second} at $T=24$, and {third} at $T=48$"


def test_the_steering_and_film_values_are_in_the_text():
    for sentence in (*steering_sentences(), film_sentence()):
        assert paper.says(sentence)


# Every difference that the paper prints: the words before the numbers, and which of ours the numbers are, in order.
DIFFERENCES = {
    "stepcond_wt103": [(r"and trails by $1.2$ PPL at $T=24$ and $2.1$ PPL at $T=48$", 2)],
    "scale50m_x48": [
        (
            r"deltas for \SCSE{} relative to the looped Transformer baseline are $-28.0\pm2.6$ at $T=8$, "
            r"$-26.9\pm3.4$ at $T=24$, and $-22.2\pm5.5$ at $T=48$",
            3,
        ),
    ],
    "long10k_95m": [
        (
            r"are $-1.80$, $-3.45$, and $-5.10$ PPL at $T=8,24,48$, with deterministic paired-bootstrap intervals "
            r"$[-2.13,-1.49]$, $[-3.85,-2.98]$, and $[-6.11,-3.99]$",
            3,
        ),
        (r"are $0.7$ PPL for the recurrent-step-conditioned adapter and $0.8$ PPL", 2),
    ],
    "contexts": [
        (r"$-3.34\pm3.81$ at $T=8$, $-6.45\pm2.91$ at $T=24$, and $-9.41\pm3.06$ at $T=48$", 3),
        (r"the same paired deltas are $-4.15\pm3.17$, $-5.94\pm3.38$, and $-5.00\pm6.31$", 3),
    ],
    "owt_train": [(r"are $-1.96\pm1.98$, $-5.12\pm3.13$, and $-10.42\pm14.41$ PPL at $T=8,24,48$", 3)],
    "c4_train": [
        (
            r"are $-3.32\pm1.28$, $-7.12\pm1.30$, and $-8.74\pm2.36$ PPL at $T=8,24,48$, with paired-bootstrap "
            r"intervals $[-3.97,-2.40]$, $[-7.94,-6.23]$, and $[-10.47,-7.60]$",
            3,
        ),
    ],
    "heldout_transfer": [
        (
            r"are $-0.136$k and $-0.284$k PPL at $T=8$ and $T=48$, with paired-bootstrap intervals $[-0.207,-0.054]$k "
            r"and $[-0.394,-0.137]$k",
            2,
        ),
        (r"PPL increases by $0.071$k for the tuned adapter and by $0.140$k for the recurrent-step-conditioned", 2),
    ],
    "lambada": [
        (
            r"are $-1.09$k target-token completion PPL at $T=8$ and $-2.87$k at $T=32$, with bootstrap intervals "
            r"$[-2.04,-0.13]$k and $[-4.43,-1.47]$k",
            2,
        ),
    ],
    "add-scale-real-corpus": [
        (r"tuned adapter by 5.83 PPL at $T=8$, 6.83 PPL at $T=24$, and 9.52 PPL at $T=48$", 3),
        (r"recurrent-step-conditioned adapter by 12.75, 12.53, and 11.10 PPL at the same depths", 3),
    ],
    "add-c4-long50k": [
        (r"and its PPL is 0.25 lower than \SCSE{}'s", 1),
        (r"tuned adapter by 1.38 PPL at $T=32$, 5.42 PPL at $T=48$, and 35.83 PPL at $T=96$", 3),
        (r"recurrent-step-conditioned adapter by 5.12, 7.52, and 0.72 PPL", 3),
    ],
    "step_film": [(r"tuned adapter by 1.29 PPL at $T=8$, 3.28 PPL at $T=24$, and 3.95 PPL at $T=48$", 3)],
}


def test_every_printed_difference_is_checked():
    assert {suite.label for suite in SUITES if suite.printed} == set(DIFFERENCES)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_differences_are_as_the_paper_prints_them(name):
    left = list(SUITES.find(name).printed.values())
    for sentence, count in DIFFERENCES[name]:
        assert paper.says(sentence)
        printed, left = left[:count], left[count:]
        decimals = re.sub(r"T=[\d,]+", "", sentence)
        intervals = re.findall(r"\[(-?[\d.]+),(-?[\d.]+)\]", decimals)
        numbers = re.findall(r"(-?\d+\.\d+)(?:\\pm(\d+\.\d+))?", re.sub(r"\[[^\]]*\]", "", decimals))
        assert [f"{abs(p.mean):.{p.digits}f}" for p in printed] == [mean.lstrip("-") for mean, _ in numbers]
        assert [p.half_width for p in printed] == [float(half) if half else None for _, half in numbers]
        found = [p.interval for p in printed if p.interval]
        assert found == [(float(low), float(high)) for low, high in intervals]
    assert left == []


@pytest.mark.parametrize("name", DIFFERENCES)
def test_printed_differences_agree_with_the_printed_means(name):
    """Sign and size: means are rounded, and paired deltas are over common seeds, so only roughly."""
    suite = SUITES.find(name)
    for (left, right), printed in suite.printed.items():
        if left in suite.paper and right in suite.paper:
            of_means = suite.paper[left].mean - suite.paper[right].mean
            assert printed.mean == pytest.approx(of_means, abs=max(0.1, 0.2 * abs(of_means)), rel=0), (left, right)


# What claims and captions of the suites rest on.
CLAIMED = (
    r"test PPL increases at each subsequently reported depth for every method",
    r"while the additive-source controls degrade",
    r"most achieved mean active depths are within about $0.4$ loops of the target, and the largest reported "
    r"deviation is about $1.2$ loops",
    r"These paths grow monotonically",
    r"Their directions are nearly orthogonal to the realized drift",
    r"The nonzero $E_{\Delta,47}$ values serve only as a non-collapse check",
    r"with group means at most about $0.13\%$",
    r"recurrent-step conditioning improves the looped Transformer baseline and can approach the tuned adapter on "
    r"target-token PPL",
    r"Peak allocated accelerator memory, reported in megabytes (MB), remains closely clustered at each scale",
    r"remains close to the fastest measured method",
    r"the absolute C4 PPL decreases from the 5k-step regime to the 50k-step regime",
    r"which is much stronger than its 5k-step counterpart",
    r"The improvement within the training loop-depth range grows with the training budget",
    r"with both becoming essentially neutral at deeper steps",
    r"settles to a slightly above-unit late-step sampled-gain regime, reaching $1.00108\pm0.00003$ at $t=47$",
    r"a 4-layer 22.7M Transformer with a width of 320 and a 6-layer 22.5M Transformer with a width of 288",
    r"averaged over three stochastic replications",
    r"each measured batch with a fixed tensor shape",
    r"using the values in Table~\ref{tab:bias_decomp}",
)


def test_the_sentences_behind_the_claims_are_in_the_paper():
    for sentence in CLAIMED:
        assert paper.says(sentence)


def expected_sentences():
    """Everything that the paper must say; paper_source.py looks for it."""
    for name, sentences in IN_TEXT.items():
        yield from (filled(SUITES.find(name), sentence, set()) for sentence in sentences)
    yield from (sentence for told in DIFFERENCES.values() for sentence, _ in told)
    yield from (*steering_sentences(), film_sentence(), *CLAIMED)


def test_the_data_file_holds_what_is_expected_and_no_more():
    assert paper.values()["sentences"] == sorted({paper.digest(sentence) for sentence in expected_sentences()})
    assert not paper.says("SCSE trails by $0.0$ PPL")


def test_the_counted_weights_are_about_the_papers():
    suite = SUITES.find("contexts")
    column = suite.column("Weights at 16 bits (MB)")
    for (name, header), value in suite.paper.items():
        if header == column.header:
            arm = suite.arm(name)
            counted = count_parameters(assemble(arm.family, find_preset("paper").settings(arm)).model)
            assert column.unit * counted.active == pytest.approx(value.mean, abs=1)
