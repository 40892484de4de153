"""The rivals in one table: recurrences of several projects on text and on a problem that needs depth. No torch here.

**Equal size.** All rows have one width, one layer and the same training depths. What a family's own matrices take is
taken from the feed-forward width, so that all have as many parameters as SCSE to within half a percent; FLOPs per token
at the mean training depth then agree to within an eighth (`tests/suites/test_rivals_suite.py`). Centred rows apply the
core twice a loop: they cost as much at T = 4 as the others at T = 8, and are read there.

**Search budget.** The same for every row of the first groups: none on text (the protocol's learning rate), two learning
rates on the pointer chase (the protocol's, and a third of it in rows of their own). Step scales are those of each
family's own equation; s = 0.5 and s = 1 are both run for SCSE and for Parcae, among the rows that take them apart.

**Beforehand.** The claims were written before the rows they are about were run, after a prototype with one seed. The
rows of the last group were added when all others had been seen, and no claim is about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scse.families import FAMILIES
from scse.suites.depth import STEPS
from scse.suites.statements import Claim
from scse.suites.suite import Arm, Column, Settings, Suite
from scse.tasks.columns import diagnosed, loops, right

TEXT, CHASE = "wikitext-2", "pointer-chase"
# The suffix of a row's name, and its headings, by protocol.
WORDS = {CHASE: ("chase", "Pointer chase"), TEXT: ("text", "WikiText-2")}
# What one d×d matrix takes of the feed-forward width: a third of the width, at the paper's size, in miniature, and of
# the model of the pointer chase.
WIDTHS = {"paper": (1536, 384), "mini": (512, 128), CHASE: (256, 64)}
LESS = {"lr": 1e-3}


@dataclass(frozen=True)
class Row:
    """A row on every task: `matrices` is how many more d×d matrices it has than SCSE."""

    name: str
    family: str
    matrices: int = 0
    options: Settings = field(default_factory=dict)
    label: str = ""

    def settings(self, size: str) -> Settings:
        """The options, and the feed-forward width that makes up for the matrices."""
        ff_width, width = WIDTHS[size]
        return {**self.options, **({"ff_width": round(ff_width - self.matrices * width / 3)} if self.matrices else {})}

    def arm(self, protocol: str, group: str, suffix: str = "", changes: Settings | None = None) -> Arm:
        short, heading = WORDS[protocol]
        on_text = protocol == TEXT
        return Arm(
            name=f"{self.name}-{short}{suffix}",
            family=self.family,
            protocol=protocol,
            label=self.label or FAMILIES.find(self.family).label,
            group=f"{heading}: {group}",
            settings={**self.settings("paper" if on_text else CHASE), **(changes or {})},
            # Long enough for loops to have learnt something from the context at this size (results/README.md).
            mini={**self.settings("mini"), "steps": STEPS} if on_text else {},
        )


FROM_E: Settings = {"start": "embedding"}
BARE: Settings = {"decay": False, "recall": "none"}
MAIN = (
    Row("looped", "looped", -1),
    Row("ouro", "ouro", -2),
    Row("huginn", "huginn"),
    Row("parcae", "parcae"),
    Row("orthogonal-injection", "orthogonal-injection"),
    Row("scse", "scse"),
    Row("scse-recall", "scse-recall", 1),
    Row("centred-parcae", "centred-parcae", 2, label="Parcae, source-centred (two cores a loop)"),
)
# One thing at a time, from either side.
PARCAES = (
    Row("parcae-from-e", "parcae", 0, FROM_E, "Parcae from h_0 = e"),
    Row("parcae-no-recall", "parcae", -1, {**FROM_E, "recall": False}, "Parcae without recall"),
    Row("parcae-no-decay", "parcae", 0, {**FROM_E, "decay": False}, "Parcae without decay"),
    Row("parcae-raw-input", "parcae", 0, {**FROM_E, "normalise_input": False}, "Parcae, input not normalised"),
    Row("parcae-half-step", "parcae", 0, {**FROM_E, "step_scale": 0.5}, "Parcae, s = 0.5"),
    Row("parcae-state-norm", "parcae", 0, {**FROM_E, "state_norm": True}, "Parcae, state normalised"),
)
SCSES = (
    Row("scse-whole-step", "scse", 0, {"step_scale": 1.0}, "SCSE, s = 1"),
    Row("scse-decay", "scse-recall", 0, {"recall": "none"}, "SCSE with decay"),
    Row("scse-recalls", "scse-recall", 1, {"decay": False}, "SCSE with recall"),
    Row("scse-recall-plain", "scse-recall", 1, {"recall": "plain"}, "SCSE with decay and plain recall"),
    Row("scse-normalised", "scse-recall", 0, {**BARE, "normalise_source": True}, "SCSE on a normalised source"),
    Row("scse-state-norm", "scse-recall", 0, {**BARE, "state_norm": True}, "SCSE, deviation normalised"),
)

# SCSE with a normalised deviation was the lowest of these rows on text at the trained depths, and fell apart beyond.
AFTERWARDS = (
    Row("scse-recall-state-norm", "scse-recall", 1, {"state_norm": True}, "SCSE, all three: decay, recall, norm"),
)

ARMS = tuple(
    arm
    for protocol in WORDS
    for arm in (
        *(row.arm(protocol, "recurrences") for row in MAIN),
        *(row.arm(protocol, "Parcae, one part changed") for row in PARCAES),
        *(row.arm(protocol, "SCSE, one part changed") for row in SCSES),
        *(row.arm(protocol, "a third of the learning rate", "-lr", LESS) for row in MAIN if protocol == CHASE),
        *(row.arm(protocol, "added afterwards") for row in AFTERWARDS),
    )
)

DEPTHS = (1, 2, 4, 8, 16, 24, 48)
EARLY, LATE = (f"input dependence, t={t}" for t in (8, 47))
FLAT = "ln PPL(48)/PPL(8)"
EXIT = "PPL, 4 loops on average"
HOPS = {6: 8, 8: 16, 10: 16, 12: 16, 14: 16}  # and with how many loops they are asked for


def _hops(count: int) -> str:
    return f"{count} hops, T={HOPS[count]} (%)"


COLUMNS = (
    *(right(f"all, T={depth} (%)", depth, protocols=(CHASE,)) for depth in DEPTHS),
    *(right(_hops(hops), depth, hops, protocols=(CHASE,)) for hops, depth in HOPS.items()),
    *loops(*DEPTHS, digits=2, protocols=(TEXT,)),
    Column(FLAT, metric="nll", depth=48, since=8, digits=3, protocols=(TEXT,)),
    Column(EXIT, "adaptive", budget=4, digits=2, protocols=(TEXT,)),
    diagnosed("R_0", "bias_ratio", 0),
    diagnosed("R_47", "bias_ratio", 47),
    diagnosed("expansion, t=8", "expansion", 8, 2),
    diagnosed("expansion, t=47", "expansion", 47, 2),
    diagnosed(EARLY, "input_dependence", 8),
    diagnosed(LATE, "input_dependence", 47),
    Column("cache, T=8 (KiB a token)", "pareto", "cache_bytes", 8, unit=1 / 1024, lower=None, protocols=(TEXT,)),
    Column("MFLOP a token, T=8", "pareto", "flops", 8, unit=1e-6, digits=2, lower=None, protocols=(TEXT,)),
    Column("parameters (10³)", "size", "parameters", unit=1e-3, lower=None),
)

BLIND_AFTER_START = ("ouro", "scse", "parcae-no-recall")
RECALLING = ("huginn", "parcae", "orthogonal-injection", "scse-recall")
FAR = tuple(_hops(hops) for hops in (10, 12, 14))


def _named(protocol: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}-{WORDS[protocol][0]}" for name in names)


def _label(arm: str) -> str:
    return next(one.label for one in ARMS if one.name == arm)


def _dependence(protocol: str) -> list[Claim]:
    """Does a recurrence that never sees its input again lose input dependence at depth?"""
    where = WORDS[protocol][1]
    blind, recalling = _named(protocol, *BLIND_AFTER_START), _named(protocol, *RECALLING)
    return [
        *(
            Claim(
                f"{where}: {_label(arm)}, which never sees its input again, loses input dependence at depth",
                arm,
                (arm,),
                (LATE,),
                against=(EARLY,),
            )
            for arm in blind
        ),
        *(
            Claim(
                f"{where}: {_label(arm)}, which sees its input at every loop, keeps its input dependence",
                arm,
                (arm,),
                (LATE,),
                against=(EARLY,),
                margin=0.05,
            )
            for arm in recalling
        ),
        Claim(
            f"{where}: at t = 47 who never sees the input again depends on it less than who does",
            blind,
            recalling,
            (LATE,),
        ),
    ]


def _chase() -> list[Claim]:
    def better(text: str, left: str, *right: str, columns: tuple[str, ...] = FAR) -> Claim:
        arm, others = _named(CHASE, left), _named(CHASE, *right)
        return Claim(f"Pointer chase: {text}", arm, others, columns, lower=False)

    beyond = "more chains of 10 to 14 hops, trained on 6"
    return [
        better(f"Parcae follows {beyond}, than SCSE", "parcae", "scse"),
        better("SCSE learns the hop and Huginn does not", "scse", "huginn", columns=("all, T=8 (%)",)),
        better(f"SCSE with decay and recall follows {beyond}, than SCSE", "scse-recall", "scse"),
        *(
            better(f"Parcae from e follows {beyond}, than {variant.label}", "parcae-from-e", variant.name)
            for variant in PARCAES[1:]
        ),
        *(better(f"{variant.label} follows {beyond}, than SCSE", variant.name, "scse") for variant in SCSES),
    ]


def _text() -> list[Claim]:
    scse = _named(TEXT, "scse")
    rivals = _named(TEXT, "huginn", "parcae")
    flat = _named(TEXT, "huginn", "parcae", "scse-recall")
    (centred,), (parcae,), (ours,) = (_named(TEXT, name) for name in ("centred-parcae", "parcae", "scse-recall"))
    return [
        Claim(
            "WikiText-2: Huginn and Parcae are below SCSE at trained depth and beyond", rivals, scse, ("T=8", "T=48")
        ),
        Claim("WikiText-2: SCSE with decay and recall is below SCSE", ours, scse, ("T=8", "T=48")),
        Claim(
            "WikiText-2: with recall and decay perplexity is flat beyond the trained depths, by at most 0.01 nats",
            flat,
            (),
            (FLAT,),
            values=(0.0,),
            within=0.01,
        ),
        Claim("WikiText-2: SCSE's rises by more than 0.01 nats", scse, (), (FLAT,), lower=False, values=(0.01,)),
        *(
            Claim(
                f"WikiText-2: {_label(arm)} with early exit after 4 loops on average is as good as with 8",
                arm,
                (arm,),
                (EXIT,),
                against=("T=8",),
                margin=0.01,
            )
            for arm in (*scse, *flat)
        ),
        Claim(
            "WikiText-2: at equal FLOPs (T = 4 against T = 8) source centring costs Parcae nothing",
            centred,
            (parcae,),
            ("T=4",),
            against=("T=8",),
            margin=0.01,
            no_worse=True,
        ),
    ]


NO_FORCING = Claim(
    "SCSE's response at its anchor is exactly 0, with recall and without",
    tuple(name for protocol in WORDS for name in _named(protocol, "scse", "scse-recall")),
    (),
    ("R_0", "R_47"),
    values=(0.0,),
    within=0.0,
    by_construction="of a deviation of 0 the core sees 0, and its block has no biases",
)

RIVALS = Suite(
    name="rivals",
    title="Recurrences of several projects at equal size, on text and on a problem that needs depth",
    arms=ARMS,
    columns=COLUMNS,
    claims=(*_dependence(CHASE), *_dependence(TEXT), *_chase(), *_text(), NO_FORCING),
    figure="depth-response",
)
