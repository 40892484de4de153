"""scse: looped Transformer language models, one block applied T times, T chosen at run time.

The names below are loaded when first used, so that `import scse` stays free of torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "FAMILIES": "scse.families",
    "LoopedLM": "scse.model",
    "ModelConfig": "scse.config",
    "SCALES": "scse.config",
    "Shape": "scse.config",
    "UserError": "scse.errors",
    "deviation_map": "scse.recurrence",
    "family": "scse.recurrence",
    "lens": "scse.lens",
    "load_model": "scse.persistence",
    "model_config": "scse.model",
    "save_model": "scse.persistence",
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
