"""Recurrences: every family as a composition of small units. Start at `families.py`."""

from scse.recurrence.base import Frame, Memory
from scse.recurrence.families import FAMILIES
from scse.recurrence.recurrence import Recurrence, deviation_map
from scse.recurrence.registry import Family

__all__ = ["FAMILIES", "Family", "Frame", "Memory", "Recurrence", "deviation_map"]
