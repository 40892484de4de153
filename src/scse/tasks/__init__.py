"""Every way to evaluate a run, one object each: how it runs, what identifies its records, what it costs.

Adding one is a module with a `Task` and a line below; a guest registers its own. No torch here until a task runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scse.registry import Registry
from scse.tasks.accuracy import Accuracy
from scse.tasks.adaptive import Adaptive
from scse.tasks.anchor import Diagnose, Steering, Theory
from scse.tasks.base import Column, Evaluated, Selection, Task, Where, record_of
from scse.tasks.completion import Completion
from scse.tasks.costs import Pareto, Profile, Size
from scse.tasks.exits import Exits
from scse.tasks.perplexity import CachedPerplexity, Perplexity

if TYPE_CHECKING:
    from scse.runs import Run

__all__ = ["TASKS", "Column", "Evaluated", "Selection", "Task", "Where", "plainly", "record_of"]

TASKS: Registry[Task] = Registry(
    "task",
    (
        Perplexity(),
        CachedPerplexity(),
        Accuracy(),
        Adaptive(),
        Completion(),
        Diagnose(),
        Steering(),
        Theory(),
        Profile(),
        Size(),
        Exits(),
        Pareto(),
    ),
)


def plainly(run: Run, selection: Selection, depths: Sequence[int]) -> Evaluated:
    """How good a run is at fixed depths: accuracy by difficulty on the problem it was trained on, else perplexity."""
    return (Accuracy() if run.config.problem else Perplexity()).at(run, selection, depths)
