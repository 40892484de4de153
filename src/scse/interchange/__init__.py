"""Weights of other projects in our model. No code of theirs is executed."""

from scse.interchange.read import SOURCES, import_run, read_foreign

__all__ = ["SOURCES", "import_run", "read_foreign"]
