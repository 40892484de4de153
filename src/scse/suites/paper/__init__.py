"""Every table and figure of the paper as a suite. No torch here."""

from __future__ import annotations

from scse.suites.paper.controls import CONTROLS
from scse.suites.paper.corpora_and_contexts import TEXT_AND_CONTEXT
from scse.suites.paper.main_text import MAIN_TEXT
from scse.suites.paper.scaling import SCALING

PAPER_SUITES = (*MAIN_TEXT, *SCALING, *TEXT_AND_CONTEXT, *CONTROLS)
