"""Suites: tables and figures as declarations, and what plans and runs them. No torch here.

`suite.py` says what a suite is, `paper/` declares those of the paper, `depth.py` and `long_chase.py` those about depth
itself and `rivals.py` the comparison with recurrences of other projects.
"""

from __future__ import annotations

from scse.registry import Registry
from scse.suites.depth import DEPTH_SUITES
from scse.suites.long_chase import LONG_CHASE
from scse.suites.paper import PAPER_SUITES
from scse.suites.rivals import RIVALS
from scse.suites.suite import Suite

__all__ = ["SUITES"]

SUITES: Registry[Suite] = Registry(
    "suite",
    (*PAPER_SUITES, *DEPTH_SUITES, RIVALS, LONG_CHASE),
    hint="'scse suite list' shows all",
    aliases={suite.label: suite.name for suite in PAPER_SUITES},
)
