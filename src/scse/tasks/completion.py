"""Last-word completion: LAMBADA, or passages of one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from scse.tasks.base import (
    Column,
    Evaluated,
    Selection,
    Task,
    Where,
    by_depth,
    depths_of,
    distinct,
    infers,
    short_name,
)

if TYPE_CHECKING:
    from scse.config.model import Shape
    from scse.runs import Run

CORPUS = "lambada"
PASSAGES, PASSAGE = 5_153, 84  # of LAMBADA's test set, and the tokens of one


class Completion(Task):
    """Perplexity and accuracy of the last word of each passage after T loops; a limit counts passages."""

    name = "completion"
    counts_loops = True
    spreads = True

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, selection, depths_of(columns))

    @infers
    def at(self, run: Run, selection: Selection, depths: Sequence[int]) -> Evaluated:
        from scse.data import DataConfig, corpus_documents
        from scse.evaluation.completion import complete, last_word_completions
        from scse.progress import progress

        data = selection.data or CORPUS
        run.check_reads(data)
        config = DataConfig(data, data_dir=selection.data_dir, cache_dir=selection.cache_dir)
        passages = list(islice(corpus_documents(config, selection.split), selection.limit))
        examples = list(last_word_completions(passages, run.tokenizer))
        digest, depths = hashlib.sha256("\n".join(passages).encode()).hexdigest(), distinct(depths)
        partial = run.partial({"task": self.name, "text": digest, "batch": selection.batch, "depths": depths})
        with progress("completing", len(examples), "passages", enabled=selection.show) as meter:
            results = complete(run.model, examples, depths, selection.batch, meter, partial)
        where = Where(short_name(data), selection.split, selection.limit, selection.tag)
        return by_depth(run, where, self.name, results, digest)

    def tokens(self, limit: int | None, shape: Shape, sequences: int) -> float:
        return min(limit or PASSAGES, PASSAGES) * PASSAGE
