"""The numbers that most tables are made of: headers, by which claims and records refer to them, and units."""

from __future__ import annotations

from typing import Any

from scse.tasks.base import Column


def headers(*depths: int) -> tuple[str, ...]:
    return tuple(f"T={depth}" for depth in depths)


def loops(*depths: int, **more: Any) -> list[Column]:
    """What a task finds at these depths: perplexity, unless `more` says otherwise."""
    return [Column(header, depth=depth, **more) for header, depth in zip(headers(*depths), depths, strict=True)]


def budgeted(*budgets: int, **more: Any) -> list[Column]:
    """Perplexity at these mean loop budgets."""
    return [Column(f"Adaptive {budget}", "adaptive", budget=budget, **more) for budget in budgets]


def share(header: str, task: str, metric: str, depth: int | None = None, **more: Any) -> Column:
    """In percent; the more, the better."""
    return Column(header, task, metric, depth, unit=100, lower=False, **more)


def right(header: str, depth: int, difficulty: int | None = None, **more: Any) -> Column:
    """The share of a problem's answers, of all or of those of one difficulty, that are right."""
    return share(header, "accuracy", "accuracy", depth, difficulty=difficulty, **more)


def diagnosed(header: str, metric: str, step: int, digits: int = 3, **more: Any) -> Column:
    """A number of the diagnosis at a step, counted from 0; neither more nor less of it is better."""
    return Column(header, "diagnose", metric, step, digits=digits, lower=None, **more)
