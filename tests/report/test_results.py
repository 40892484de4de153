"""What is in results/ is what its records say."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import pytest

from scse.cli import main
from scse.records import read_records
from scse.suites import SUITES as DECLARED
from scse.suites.evidence import Shelf, gather
from scse.suites.presets import find_preset

RESULTS = Path(__file__).parent.parent.parent / "results" / "mini-wikitext-2"
SUITES = ("ablations", "anchor-design", "forcing-controls")


def test_the_tables_are_made_of_the_records(tmp_path, monkeypatch):
    monkeypatch.setattr("scse.report.page.pictures", lambda evidence: [])
    arguments = ["--data", "wikitext-2-v1", "--suites", ",".join(SUITES), "--out", str(tmp_path)]
    assert main(["report", str(RESULTS / "records.jsonl"), *arguments]) == 0
    for name in SUITES:
        made = (tmp_path / "tables" / f"{name}.md").read_text(encoding="utf-8")
        assert made == (RESULTS / "report" / "tables" / f"{name}.md").read_text(encoding="utf-8")


def test_every_record_says_where_it_comes_from():
    records = read_records([RESULTS / "records.jsonl"])
    assert {record.seed for record in records} == {0, 1, 2}
    assert len({(record.identity["model"]["family"], record.seed) for record in records}) == 17 * 3
    for record in records:
        assert {"data", "git", "torch", "time"} <= record.facts.keys()
        assert record.identity["trained_steps"] == 400


def test_the_runs_at_the_papers_size_say_what_the_reading_says():
    records = read_records([RESULTS.parent / "wikitext-2-22m" / "records.jsonl"])
    found = [record for record in records if record.identity["task"] == "perplexity"]
    ppl = {(record.identity["model"]["family"], record.depth): record.metrics["ppl"] for record in found}
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert {(r.seed, r.identity["trained_steps"]) for r in records} == {(0, 1200)}
    families = {family for family, _ in ppl}
    assert families == {"looped", "scse", "adapter"}
    for family in families:
        own = {depth: value for (name, depth), value in ppl.items() if name == family}
        cells = [f"**{value:.2f}**" if depth == 8 else f"{value:.2f}" for depth, value in sorted(own.items())]
        assert f"{' | '.join(cells)} |" in reading
        assert min(own, key=own.__getitem__) == 8
        ratios = [f"{ppl[family, depth] / ppl['looped', depth]:.3f}" for depth in (8, 24, 48)]
        assert family == "looped" or f"| `{family}` | {' | '.join(ratios)} |" in reading
        beyond = [f"{own[depth] / own[8]:.3f}" for depth in (24, 48)]
        assert " and ".join(beyond) in reading


def test_the_longer_runs_say_what_the_reading_says():
    records = read_records([RESULTS.parent / "mini-wikitext-2-2000" / "records.jsonl"])
    ppl = {(r.identity["model"]["family"], r.depth): round(r.metrics["ppl"], 2) for r in records}
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert {r.identity["trained_steps"] for r in records} == {2000}
    assert ppl["scse", 8] < ppl["scse-initial", 8] < ppl["scse", 48]
    assert all(f"{value:.2f}" in reading for value in ppl.values())


RIVALS_ON_TEXT = {
    "looped": "looped",
    "Ouro": "ouro",
    "SCSE": "scse",
    "Parcae": "parcae",
    "Huginn": "huginn",
    "SCSE with decay and recall": "scse-recall",
    "SCSE with decay alone": "scse-recall without recall",
    "SCSE with recall alone": "scse-recall without decay",
}
WITH_THREE_SEEDS = ("SCSE", "Parcae", "Huginn", "SCSE with decay and recall")


def taken_apart(record):
    """The family, and which of the two parts of `scse-recall` is switched off."""
    model = record.identity["model"]
    options = model["options"]
    off = [" without decay"] * (options.get("decay") is False) + [" without recall"] * (options.get("recall") == "none")
    return model["family"] + "".join(off)


@pytest.fixture(scope="module")
def rivals():
    """Perplexities of `rivals` on text by row, seed and depth; an exit after 4 loops on average has depth None."""
    found: dict[str, dict[int, dict[int | None, float]]] = {}
    for record in read_records([RESULTS.parent / "rivals" / "records.jsonl"]):
        if record.identity["task"] == "perplexity":
            assert record.identity["trained_steps"] == 2000
            depth = record.depth if record.identity["adaptive"] is None else None
            found.setdefault(taken_apart(record), {}).setdefault(record.seed, {})[depth] = record.metrics["ppl"]
    return found


@pytest.fixture(scope="module")
def reading_of_rivals():
    return (RESULTS.parent / "README.md").read_text(encoding="utf-8").partition("## `rivals/`")[2].replace("**", "")


def test_every_row_of_the_rivals_on_text_is_read(rivals):
    assert set(rivals) == set(RIVALS_ON_TEXT.values())


@pytest.mark.parametrize("label", RIVALS_ON_TEXT)
def test_the_rivals_on_text_say_what_the_reading_says(label, rivals, reading_of_rivals):
    first = rivals[RIVALS_ON_TEXT[label]][0]
    early = first[None]
    by_depth = [f"{first[depth]:.2f}" for depth in sorted(depth for depth in first if depth)]
    assert f"| {label} | {' | '.join(by_depth)} |" in reading_of_rivals
    assert f"{early:.2f}" in reading_of_rivals


@pytest.mark.parametrize("label", WITH_THREE_SEEDS)
def test_the_means_over_seeds_of_the_rivals_are_those_of_the_records(label, rivals, reading_of_rivals):
    seeds = rivals[RIVALS_ON_TEXT[label]]
    assert set(seeds) == {0, 1, 2}
    cells = []
    for depth in (1, 2, 4, 8, 12, 16, 24, 32, 48):
        values = [of_seed[depth] for of_seed in seeds.values()]
        spread = f" ± {stdev(values):.2f}" if depth in (1, 8, 48) else ""
        cells.append(f"{mean(values):.2f}{spread}")
    assert f"| {label} | {' | '.join(cells)} |" in reading_of_rivals


def test_the_rivals_in_bfloat16_say_what_the_reading_says(reading_of_rivals):
    records = read_records([RESULTS.parent / "rivals" / "text-bfloat16.jsonl"])
    assert {record.identity["protocol"]["precision"] for record in records} == {"bfloat16"}
    assert {record.identity["trained_steps"] for record in records} == {2000}
    suite = DECLARED.find("rivals")
    evidence = gather(suite, Shelf(records, find_preset("mini", data="wikitext-2-v1")))
    for arm in suite.arms:
        if not arm.name.endswith("-text"):
            continue
        cells = [evidence.cells[arm.name, f"T={depth}"].ours for depth in (1, 2, 4, 8, 16, 24, 48)]
        if cells[0] is not None:
            seeds = len(cells[0].seeds)
            numbers = " | ".join(f"{cell.mean:.2f}" for cell in cells)
            assert f"| `{arm.name.removesuffix('-text')}` | {seeds} | {numbers} |" in reading_of_rivals


CHASED_BY_RIVALS = (
    *(f"all, T={depth} (%)" for depth in (8, 16, 48)),
    *(f"{hops} hops, T=16 (%)" for hops in (8, 10, 12, 14)),
)


def test_the_chase_of_the_rivals_says_what_the_reading_says(reading_of_rivals):
    records = read_records([RESULTS.parent / "rivals" / "chase.jsonl"])
    suite = DECLARED.find("rivals")
    evidence = gather(suite, Shelf(records, find_preset("mini")))
    for arm in suite.arms:
        right = [evidence.cells[arm.name, header].ours for header in CHASED_BY_RIVALS]
        apart = [evidence.cells[arm.name, f"input dependence, t={t}"].ours for t in (8, 47)]
        if arm.protocol == "pointer-chase" and right[0] is not None:
            cells = [*(f"{cell.mean:.1f}" for cell in right), *(f"{cell.mean:.2f}" for cell in apart)]
            name = arm.name.replace("-chase", "")
            assert f"| `{name}` | {len(right[0].seeds)} | {' | '.join(cells)} |" in reading_of_rivals


def test_the_frontier_of_second_trainings_is_made_of_its_records():
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8").partition("## `depth-training/`")[2]
    found: dict[str, dict[int, float]] = {}
    for record in read_records([RESULTS.parent / "depth-training" / "second-training.jsonl"]):
        protocol = record.identity["protocol"]
        way = f"{protocol.get('depths', 'uniform')} {protocol.get('objective', 'last')}"
        found.setdefault(way, {})[record.depth] = record.metrics["ppl"]
        assert protocol["parent"]["step"] == 2000
    assert len(found) == 5
    for by_depth in found.values():
        numbers = [f"{by_depth[depth]:.2f}" for depth in sorted(by_depth)]
        assert f"| {' | '.join(numbers)} | {by_depth[48] / by_depth[8]:.3f} |" in reading


def test_the_reading_of_the_exits_has_their_numbers():
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8").partition("## `exits/`")[2]
    rows = {line.split("`")[1]: line for line in reading.splitlines() if line.startswith("| `")}
    records = read_records([RESULTS.parent / "exits" / "records.jsonl"])
    assert len(records) == 6
    for record in records:
        n = record.metrics
        cells = (
            f"| {n['mean_depth']:.2f} | {n['saved']:.1%} | {n['ppl']:.2f} | {n['ppl_change']:+.2%} | {n['time']:.2f} |"
        )
        assert cells.replace("%", " %") in rows[record.identity["settings"]["rule"]]


def test_the_second_trainings_of_the_chase_are_made_of_their_records():
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    found: dict[str, dict[int, float]] = {"log-uniform": {}, "uniform": {}}
    for record in read_records([RESULTS.parent / "depth-training-chase" / "second-training.jsonl"]):
        if (record.depth, record.identity["settings"]["difficulty"]) == (48, "all"):
            way = found[record.identity["protocol"].get("depths", "uniform")]
            way[record.seed] = 100 * record.metrics["accuracy"]
    for by_seed in found.values():
        assert sorted(by_seed) == [0, 1, 2]
        mean, each = f"{sum(by_seed.values()) / 3:.1f} %", ", ".join(f"{by_seed[seed]:.1f}" for seed in range(3))
        assert mean in reading
        assert each in reading


CHASED = {
    "looped": "looped", "channel gate": "channel-gate", "tuned adapter": "tuned-adapter",
    "step adapter": "step-adapter",
    "SCSE": "scse", "SC-Cond": "sc-cond", "leak": "leak", "Parcae": "parcae", "Huginn": "huginn",
    "orthogonal injection": "orthogonal-injection", "Parcae, source-centred": "centred-parcae",
    "SCSE with decay and recall": "scse-recall",
    "seven unshared layers, equal parameters": "unshared-7, 26", "seven unshared layers, equal FLOPs": "unshared-7, 64",
    "eight unshared layers, equal parameters": "unshared-8, 26",
}  # fmt: skip


@pytest.mark.parametrize(("suite", "rows", "columns"), [
    ("depth-tasks", 14, [(5, 7), ("all", 1), ("all", 7), ("all", 48), (7, 16), (10, 16)]),
    ("depth-tasks-search", 7, [(5, 7), ("all", 7), ("all", 48), (7, 16)]),
    ("depth-tasks-16", 5, [(6, 8), ("all", 1), ("all", 8), ("all", 48), (10, 16)]),
])  # fmt: skip
def test_the_reading_of_a_chase_has_the_means_of_its_records(suite, rows, columns):
    found: dict[tuple, list[float]] = {}
    for record in read_records([RESULTS.parent / suite / "records.jsonl"]):
        model = record.identity["model"]
        width = f", {model['shape']['width']}" if model["family"].startswith("unshared") else ""
        place = (model["family"] + width, record.identity["settings"]["difficulty"], record.depth)
        found.setdefault(place, []).append(100 * record.metrics["accuracy"])
    assert {len(values) for values in found.values()} == {3}
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    section = reading.partition(f"## `{suite}/`")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines()]
    table = {line[0]: line[1:] for line in lines if line[0] in CHASED}
    assert len(table) == rows
    for label, cells in table.items():
        for (difficulty, depth), cell in zip(columns, cells, strict=True):
            mean = sum(found[CHASED[label], difficulty, depth]) / 3
            assert float(cell) == round(mean, len(cell.partition(".")[2])), f"{label} {difficulty} {depth}: {mean}"


def test_the_reading_of_the_search_has_its_losses():
    reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8").replace("**", "")
    losses: dict[str, dict[float, float]] = {}
    for record in read_records([RESULTS.parent / "depth-tasks-search" / "search.jsonl"]):
        model, rate = record.identity["model"], record.identity["protocol"]["lr"]
        assert (record.identity["split"], record.seed) == ("validation", 0)
        if record.depth == 7:
            width = ", 26 wide" if model["shape"]["width"] == 26 else ""
            losses.setdefault(f"`{model['family']}`{width}", {})[rate] = 1000 * record.metrics["nll"]
    assert len(losses) == 14
    for name, by_rate in losses.items():
        assert f"| {name} | {' | '.join(f'{by_rate[rate]:.2f}' for rate in sorted(by_rate))} |" in reading


def test_the_reading_of_the_training_for_depth_has_the_means_of_its_records():
    found: dict[tuple, list[float]] = {}
    for record in read_records([RESULTS.parent / "depth-training-chase" / "records.jsonl"]):
        protocol, family = record.identity["protocol"], record.identity["model"]["family"]
        if record.identity["settings"]["difficulty"] == "all":
            way = protocol.get("depths"), protocol.get("objective")
            found.setdefault((way, family, record.depth), []).append(100 * record.metrics["accuracy"])
    assert {len(values) for values in found.values()} == {3}
    poisson, rest = "lognormal-poisson", "last+0.05*fixed-point"
    rows = {
        "uniform": (None, None),
        "log-normal Poisson around 8, gradients through 4 loops": (poisson, None),
        "… with 0.05 fixed-point": (poisson, rest),
        "… with 0.05 fixed-point and 0.05 expansion": (poisson, f"{rest}+0.05*expansion"),
        "… with 0.1 short and 0.1 consistency": (poisson, "last+0.1*short+0.1*consistency"),
        "log-uniform to 32, gradients through 8 loops": ("log-uniform", None),
    }
    reading, _, _ = (RESULTS.parent / "README.md").read_text(encoding="utf-8").partition(SMALL_CHASE)
    for label, way in rows.items():
        (cells,) = (line.split("|")[2:8] for line in reading.splitlines() if line.startswith(f"| {label} |"))
        places = [(family, depth) for family in ("scse", "looped") for depth in (8, 16, 48)]
        for (family, depth), cell in zip(places, cells, strict=True):
            assert abs(float(cell) - sum(found[way, family, depth]) / 3) <= 0.051, f"{label} {family} {depth}"


SMALL_CHASE = "The same comparison where a run takes half a minute"


def test_the_reading_of_the_small_chase_has_the_means_of_its_records():
    found: dict[tuple, list[float]] = {}
    for record in read_records([RESULTS.parent / "depth-training-chase" / "small.jsonl"]):
        protocol = record.identity["protocol"]
        if record.identity["settings"]["difficulty"] == "all" and "objective" not in protocol:
            way = (protocol.get("depths"), protocol.get("backprop"), protocol["steps"])
            found.setdefault((way, record.depth), []).append(100 * record.metrics["accuracy"])
    rows = {
        "uniform to 5": (None, None, 400),
        "log-uniform to 32, gradients through 8 loops": ("log-uniform", 8, 400),
        "uniform to 5, then 150 steps of log-uniform to 32": ("log-uniform", 8, 150),
        "uniform to 5, then 150 steps of the same": (None, None, 150),
    }
    _, _, reading = (RESULTS.parent / "README.md").read_text(encoding="utf-8").partition(SMALL_CHASE)
    for label, way in rows.items():
        (cells,) = (line.split("|")[2:5] for line in reading.splitlines() if line.startswith(f"| {label} |"))
        for depth, cell in zip((5, 16, 48), cells, strict=True):
            values = found[way, depth]
            assert len(values) == 3
            assert abs(float(cell) - sum(values) / 3) <= 0.051, f"{label} {depth}"
