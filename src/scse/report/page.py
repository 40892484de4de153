"""Everything a report shows about its suites, and the page made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scse.records import Record
from scse.report.claims import CONTRADICTED, PENDING, SUPPORTED, TIMED, UNDECIDED, Comparison, Judgement, judge_all
from scse.report.pictures import Rendered, in_page_colours, render
from scse.report.suite_figures import identifier, pictures
from scse.report.tables import Table, difference_digits, differences, ratios, results, turned
from scse.report.wording import INDEXED, bootstrap, interval, number, percent, plural
from scse.suites.evidence import MISSING, Evidence, Shelf, gather
from scse.suites.presets import options
from scse.suites.setting import setting
from scse.suites.suite import Preset, Suite

if TYPE_CHECKING:
    from markupsafe import Markup

VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED, PENDING)
NOT_COMPARABLE = (
    "These runs are much smaller than the paper's, so the absolute numbers are not comparable; "
    "the ratios to the first arm are."
)


@dataclass(frozen=True)
class Finding:
    """A claim as a line: the verdict, the paper's sentence, and the numbers that decided."""

    verdict: str
    text: str
    numbers: str


@dataclass(frozen=True)
class Chapter:
    """One suite, ready to be written in any format. `name` can stand in file names and ids.

    `setting` says of what size the runs are, and the paper's; `paper` whether there are values of the paper's.
    """

    name: str
    title: str
    setting: str
    paper: bool
    suite: str
    state: str
    found: int
    wanted: int
    findings: tuple[Finding, ...]
    tables: tuple[tuple[str, Table], ...]
    figures: tuple[Rendered, ...]
    remarks: tuple[str, ...]
    command: str

    @property
    def missing(self) -> bool:
        return self.state == MISSING

    @property
    def verdicts(self) -> dict[str, int]:
        return count_verdicts(self.findings)


def count_verdicts(findings: Iterable[Finding]) -> dict[str, int]:
    counted = Counter(finding.verdict for finding in findings)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def chapters(suites: Sequence[Suite], preset: Preset, records: Sequence[Record]) -> list[Chapter]:
    shelf = Shelf(records, preset)
    return [chapter(gather(suite, shelf)) for suite in suites]


def chapter(evidence: Evidence) -> Chapter:
    suite, preset = evidence.suite, evidence.preset
    judgements = judge_all(evidence)
    tables = [("results", turned(results(evidence)))]
    if preset.mini:
        tables.append(("ratios", turned(ratios(evidence))))
    if judgements:
        tables.append(("differences", differences(judgements)))
    found, wanted = evidence.counts
    return Chapter(
        name=identifier(suite.name),
        title=suite.title,
        setting=setting(suite, preset),
        paper=bool(suite.paper),
        suite=suite.name,
        state=evidence.state,
        found=found,
        wanted=wanted,
        findings=tuple(map(finding, judgements)),
        tables=tuple(tables),
        figures=tuple(map(render, pictures(evidence))),
        remarks=tuple(remarks(evidence)),
        command=command(suite, preset),
    )


def command(suite: Suite, preset: Preset) -> str:
    """What makes the records of a suite."""
    return " ".join(["scse suite run", suite.name, "--preset", preset.name, *options(preset)])


def remarks(evidence: Evidence) -> list[str]:
    """What a reader of the tables must know."""
    found = [NOT_COMPARABLE] if evidence.preset.mini and evidence.suite.paper and evidence.counts[0] else []
    if evidence.unavailable:
        found.append(f"Not available at this size: {', '.join(evidence.unavailable)}.")
    return found + mixed_precisions(evidence)


def mixed_precisions(evidence: Evidence) -> list[str]:
    """Which rows were trained in which precision, where that is not the same for all."""
    trained: dict[str, dict[str, set[int]]] = {}
    for cell in evidence.cells.values():
        for seed, precision in evidence.shelf.precisions(cell.arm, cell.column).items():
            trained.setdefault(precision, {}).setdefault(cell.arm.label, set()).add(seed)
    if len(trained) < 2:
        return []
    listed = {
        precision: ", ".join(f"{label} (seeds {', '.join(map(str, sorted(seeds)))})" for label, seeds in rows.items())
        for precision, rows in sorted(trained.items())
    }
    told = ". ".join(f"In {precision}: {rows}" for precision, rows in listed.items())
    return [f"The runs were not all trained in one precision. {told}."]


def finding(judgement: Judgement) -> Finding:
    return Finding(judgement.verdict, judgement.claim.statement, numbers_behind(judgement))


def numbers_behind(judgement: Judgement) -> str:
    """The comparison that decided, and of how many it is one."""
    decided = judgement.decisive
    count = len(judgement.comparisons)
    same = decided.left.column == decided.right.column
    where = f"{decided.sides}{f', {decided.left.column.header}' if same else ''}: "
    role = {SUPPORTED: "the weakest", CONTRADICTED: "the clearest"}.get(judgement.verdict, "one")
    tail = f" ({role} of {count} comparisons)" if count > 1 else ""
    return where + outcome(decided) + tail


def outcome(comparison: Comparison) -> str:
    found = comparison.difference
    if found is None:
        return comparison.reason
    digits = difference_digits(comparison.left.column)
    margin = "" if not comparison.slack else f", margin ± {number(comparison.slack, digits)}"
    if len(found.seeds) == 1:
        doubt = f"times give or take {percent(TIMED)}" if found.half_width else "exact"
        return f"{interval(found, digits)}{margin}, one model each, {doubt}"
    partial = ", not all seeds yet" if comparison.partial else ""
    seeds = plural(len(found.seeds), "seed")
    return f"{interval(found, digits)}{margin}, bootstrap {bootstrap(found, digits)}, {seeds}{partial}"


@dataclass(frozen=True)
class Origin:
    """Where the numbers of a report come from."""

    records: int
    runs: int
    revisions: tuple[str, ...]
    versions: tuple[str, ...]
    first: str
    last: str

    @property
    def when(self) -> str:
        return f"on {self.last}" if self.first == self.last else f"from {self.first} to {self.last}"


def origin(records: Sequence[Record]) -> Origin:
    times = sorted(str(record.facts.get("time", "")) for record in records) or [""]
    runs = {repr((r.identity["model"], r.identity["protocol"], r.seed)) for r in records}
    revisions = sorted({str(record.facts.get("git", "unknown"))[:12] for record in records})
    versions = sorted({f"torch {record.facts['torch']}" for record in records if "torch" in record.facts})
    return Origin(len(records), len(runs), tuple(revisions), tuple(versions), times[0][:10], times[-1][:10])


def indices(text: str) -> Markup:
    """Text as markup, in which a letter with an index, such as R_47, has it below the line."""
    from markupsafe import Markup, escape

    escaped = str(escape(text))
    return Markup(INDEXED.sub(r"\1<sub>\2</sub>", escaped))  # nosec B704


def page(
    parts: Sequence[Chapter],
    drawings: Sequence[Rendered],
    preset: Preset,
    source: Origin,
    links: Mapping[str, str] | None = None,
) -> str:
    """The report as one HTML page that needs nothing else; `links` are pages beside it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("scse.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"indices": indices, "in_page_colours": in_page_colours}
    totals = count_verdicts(finding for part in parts for finding in part.findings)
    template = environment.get_template("report.html.j2")
    return template.render(
        chapters=parts,
        drawings=drawings,
        links=links or {},
        preset=preset,
        origin=source,
        totals=totals,
        verdicts=VERDICTS,
        plural=plural,
        timed=percent(TIMED),
    )
