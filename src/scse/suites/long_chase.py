"""The pointer chase of 16 nodes and 6 hops, in the 2,000 steps of its protocol: are loops worth more than layers?

Its recurrences are rows of the suite `rivals`, so one run serves both. With more nodes than in `depth-tasks` there are
more roots to choose from, and layers of their own that merely look for a likely root should be right less often. The
claims were written before the rows were run, after a prototype with one seed. No torch here.
"""

from __future__ import annotations

from scse.problems import make_problem
from scse.suites.depth import FAR, answers, kept
from scse.suites.rivals import CHASE, MAIN
from scse.suites.suite import Arm, Claim, Settings, Suite

HOPS = make_problem(CHASE, {}).hardest
FULL_DEPTH = HOPS + 2  # the deepest that training goes
FURTHER = HOPS + 4
LOOPS = ("looped", "scse", "parcae", "scse-recall")
# A layer of its own for each loop of the full depth, so narrow that all of them have as many parameters as the loops.
NARROW: Settings = {"width": 26, "ff_width": 102}

_TRAINED = (answers(HOPS, FULL_DEPTH).header, answers(None, FULL_DEPTH).header)
_FURTHER = answers(FURTHER, 16).header
_ROWS = {row.name: row.arm(CHASE, "recurrences") for row in MAIN if row.name in LOOPS}
_ARMS = {name: _ROWS[name].name for name in LOOPS}
_UNSHARED = Arm(
    name="narrow",
    family=f"unshared-{FULL_DEPTH}",
    protocol=CHASE,
    label="Unshared, equal parameters",
    group="Layers of their own",
    settings=NARROW,
)

LONG_CHASE = Suite(
    name="depth-tasks-16",
    title=f"Pointer chase, 16 nodes, trained to {HOPS} hops with 1 to {FULL_DEPTH} loops: right answers in %",
    arms=(*(_ROWS[name] for name in LOOPS), _UNSHARED),
    columns=(
        *(answers(HOPS, depth) for depth in (1, FULL_DEPTH, FAR)),
        *(answers(None, depth) for depth in (1, FULL_DEPTH, 16, FAR)),
        *(answers(FURTHER, depth) for depth in (16, FAR)),
    ),
    claims=(
        Claim(
            f"SCSE answers at least 99 % at T = {FULL_DEPTH}, of all and of the hardest",
            _ARMS["scse"],
            (),
            _TRAINED,
            lower=False,
            values=(99.0,),
        ),
        *(
            Claim(
                f"{_ROWS[name].label} is more than 30 points above unshared layers of as many parameters",
                _ARMS[name],
                (_UNSHARED.name,),
                _TRAINED,
                lower=False,
                by=30.0,
            )
            for name in LOOPS
        ),
        *(
            kept(
                f"{_ROWS[name].label} keeps its accuracy at T = {FAR} (within 1 point of T = {FULL_DEPTH})",
                _ARMS[name],
                FULL_DEPTH,
            )
            for name in LOOPS
        ),
        Claim(
            f"Parcae and SCSE with recall are above SCSE at {FURTHER} hops",
            (_ARMS["parcae"], _ARMS["scse-recall"]),
            (_ARMS["scse"],),
            (_FURTHER,),
            lower=False,
        ),
    ),
    figure="accuracy-response",
)
