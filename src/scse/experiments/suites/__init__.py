"""Every table and figure of the paper as a suite, by the name the paper's source gives it. No torch here."""

from __future__ import annotations

from scse.errors import unknown_name
from scse.experiments.suite import Suite
from scse.experiments.suites.controls import CONTROLS
from scse.experiments.suites.main_text import MAIN_TEXT
from scse.experiments.suites.scaling import SCALING
from scse.experiments.suites.text_and_context import TEXT_AND_CONTEXT

SUITES: dict[str, Suite] = {suite.name: suite for suite in (*MAIN_TEXT, *SCALING, *TEXT_AND_CONTEXT, *CONTROLS)}


def find_suite(name: str) -> Suite:
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES, hint="'scse suite list' shows all")
    return SUITES[name]
