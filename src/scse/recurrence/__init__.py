"""Recurrences: every family as a composition of small units. Start at `composers.py`."""

from scse.recurrence.base import Frame, Memory
from scse.recurrence.build import build, family
from scse.recurrence.recurrence import Recurrence, deviation_map

__all__ = ["Frame", "Memory", "Recurrence", "build", "deviation_map", "family"]
