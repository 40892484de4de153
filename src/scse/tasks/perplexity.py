"""Perplexity at fixed depths, all from one unroll; or through a cache, as generation sees the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scse.tasks.base import Column, Evaluated, Selection, Task, Where, by_depth, depths_of, distinct, infers

if TYPE_CHECKING:
    from scse.runs import Run


class Perplexity(Task):
    """exp of the mean negative log-likelihood per token after T loops."""

    name = "perplexity"
    counts_loops = True
    spreads = True

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, selection, depths_of(columns))

    @infers
    def at(self, run: Run, selection: Selection, depths: Sequence[int]) -> Evaluated:
        from scse.evaluation import perplexity_over_depths

        corpus, split = selection.open(run)
        where, depths = Where.of(corpus, split, selection), distinct(depths)
        asked = {"text": split.digest, "limit": selection.limit, "batch": selection.batch, "depths": depths}
        results = perplexity_over_depths(
            run.model, split.tokens, depths, selection.batch, selection.limit, selection.show, run.partial(asked)
        )
        return by_depth(run, where, self.name, results, split.digest)


class CachedPerplexity(Task):
    """The same token by token through a cache: 'exact' changes nothing, 'shared' and 'last-N' approximate."""

    name = "cached"
    counts_loops = True

    def asked(self, where: Where, column: Column) -> dict[str, Any]:
        return where.asks(self.name, column.depth, settings={"cache": "exact"})

    def evaluate(self, run: Run, selection: Selection, columns: Sequence[Column]) -> Evaluated:
        return self.at(run, selection, depths_of(columns), "exact")

    @infers
    def at(self, run: Run, selection: Selection, depths: Sequence[int], cache: str) -> Evaluated:
        from scse.generation.quality import cached_perplexity
        from scse.progress import progress

        corpus, split = selection.open(run)
        depths = distinct(depths)
        windows = -(-(len(split.tokens) - 1) // run.config.model.shape.context)
        work = len(depths) * min(windows, selection.limit or windows)
        with progress("through the cache", work, "windows", selection.show) as meter:
            results = [
                cached_perplexity(run.model, split.tokens, depth, cache, selection.batch, selection.limit, meter)
                for depth in depths
            ]
        where = Where.of(corpus, split, selection)
        found = by_depth(run, where, self.name, results, split.digest, settings={"cache": cache})
        return replace(found, title=f"{found.title}, cache '{cache}'")
