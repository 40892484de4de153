"""scse: looped Transformer language models, one block applied T times, T chosen at run time.

The names below are loaded when first used, so that `import scse` stays free of torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Anchor": "scse.recurrence.slots",
    "Arm": "scse.suites.suite",
    "Column": "scse.tasks",
    "Coordinates": "scse.recurrence.base",
    "DepthSampler": "scse.config.depths",
    "Deviation": "scse.recurrence.coordinates",
    "DocumentCorpus": "scse.data",
    "Drive": "scse.recurrence.slots",
    "Evaluated": "scse.tasks",
    "Examples": "scse.problems",
    "ExitRule": "scse.evaluation.rules",
    "FAMILIES": "scse.families",
    "Family": "scse.catalogue",
    "Hidden": "scse.recurrence.coordinates",
    "LoopedLM": "scse.model",
    "ModelConfig": "scse.config",
    "Problem": "scse.problems",
    "Recurrence": "scse.recurrence",
    "Run": "scse.runs",
    "RunOptions": "scse.config",
    "Selection": "scse.tasks",
    "Shape": "scse.config",
    "SharedCore": "scse.recurrence.updates",
    "State": "scse.model",
    "Suite": "scse.suites.suite",
    "Task": "scse.tasks",
    "Term": "scse.training.objectives",
    "TrainConfig": "scse.config",
    "Unit": "scse.recurrence.base",
    "UserError": "scse.errors",
    "check_family": "scse.testing",
    "deviation_map": "scse.recurrence",
    "diagnose": "scse.api",
    "evaluate": "scse.api",
    "export": "scse.api",
    "family": "scse.recurrence",
    "generate": "scse.api",
    "import_guest": "scse.registry",
    "lens": "scse.lens",
    "load_model": "scse.persistence",
    "model_config": "scse.model",
    "open_run": "scse.runs",
    "register": "scse.registry",
    "save_model": "scse.persistence",
    "train": "scse.api",
    "unroll": "scse.model",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = importlib.import_module(_HOMES[name])
        return home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)  # scse.lens is a package to call
    raise AttributeError(f"module 'scse' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
