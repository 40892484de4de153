"""A guest that makes every miniature of the `mini` preset smaller still, for processes that run nothing else."""

from scse.suites.presets import MINIATURES

TINY = {"width": 32, "heads": 2, "ff_width": 64, "context": 32, "batch": 4, "tokenizer": "bpe-300"}

for name in MINIATURES:
    MINIATURES[name] = {**MINIATURES[name], **TINY}
