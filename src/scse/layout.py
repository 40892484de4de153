"""Where things lie in the folder of a run, for those who write it and those who only look. No torch here."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "model.safetensors", "tokenizer.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS, MODEL = "checkpoints", "model"


def is_trained(run: Path) -> bool:
    """Whether the final model and its tokenizer are there."""
    return all((run / MODEL / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE))


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint in this folder, newest first; nothing is said about their health."""
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    return sorted((int(name) for name in names if name.isascii() and name.isdigit()), reverse=True)


def last_step(run: Path) -> int:
    """The last step in a run's metrics, which are ahead of its checkpoints while it is trained."""
    with contextlib.suppress(OSError), (run / METRICS_FILE).open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
        for line in reversed(stream.read().splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return int(json.loads(line)["step"])
    return 0
