"""A run on disk: its folder and lock, its configuration, its checkpoints, and how it is opened again."""

from scse.runs.opened import Run, open_run

__all__ = ["Run", "open_run"]
