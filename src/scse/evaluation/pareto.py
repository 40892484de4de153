"""What quality costs: perplexity against FLOPs, time and cache memory, over fixed depths and exit thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scse.config.adaptive import AdaptiveSettings
from scse.data import Readable
from scse.evaluation.budgets import AdaptiveEvaluation
from scse.evaluation.perplexity import perplexity_over_depths
from scse.flops import token_flops
from scse.measure import clock, elapsed
from scse.model import LoopedLM

BYTES_PER_NUMBER = 4


@dataclass(frozen=True)
class ParetoPoint:
    """One way of running a model. `depth` is the mean number of loops taken, `budget` the one asked for where depth is
    adaptive; costs are per token, time per 1,000 tokens.

    `cache_bytes` is what a key-value cache over all loops holds for a token in float32; adaptive points count the loops
    a token's example took.
    """

    run: str
    family: str
    kind: str
    budget: float | None
    depth: float
    ppl: float
    flops: float
    ms_per_ktoken: float
    cache_bytes: float


class ParetoEvaluation:
    """All points of one model."""

    def __init__(self, name: str, model: LoopedLM, batch: int, limit: int | None, show: bool = False) -> None:
        self.name, self.model, self.batch, self.limit, self.show = name, model, batch, limit, show

    def fixed(self, tokens: Readable, depths: Sequence[int]) -> list[ParetoPoint]:
        """Each depth by itself, because its time is part of the point; depths past a model's own add nothing."""
        useful = self.model.recurrence.core.trained_depth
        points = []
        perplexity_over_depths(self.model, tokens, [1], self.batch, limit=1)  # first calls allocate and lay out
        for depth in sorted({depth if useful is None else min(depth, useful) for depth in depths}):
            begin = clock(self.model.device)
            (result,) = perplexity_over_depths(self.model, tokens, [depth], self.batch, self.limit, self.show)
            seconds = elapsed(begin, self.model.device)
            points.append(self._point(None, depth, result.ppl, seconds, result.tokens))
        return points

    @property
    def adapts(self) -> bool:
        """Whether depth can be chosen at all."""
        return self.model.recurrence.core.trained_depth is None

    def adaptive(
        self, validation: Readable, tokens: Readable, settings: AdaptiveSettings
    ) -> tuple[list[ParetoPoint], dict[float, str]]:
        """Real early exit at thresholds calibrated for mean budgets, and why a budget cannot be reached."""
        settings = replace(settings, batch=self.batch, limit=self.limit, modes=("online",))
        evaluation = AdaptiveEvaluation(self.model, settings, self.show)
        thresholds = evaluation.calibrate(validation)
        points = [
            self._point(budget, found.mean_depth, found.ppl, found.seconds, found.tokens)
            for (budget, _), found in evaluation.evaluate(tokens, thresholds.found).items()
        ]
        return points, {budget: reason for (budget, _), reason in thresholds.unreachable.items()}

    def _point(self, budget: float | None, depth: float, ppl: float, seconds: float, tokens: int) -> ParetoPoint:
        shape, recurrence = self.model.config.shape, self.model.recurrence
        bodies = recurrence.bodies_per_step * depth
        layers = bodies * shape.core + shape.prelude + shape.coda
        return ParetoPoint(
            run=self.name,
            family=self.model.config.family,
            kind="fixed" if budget is None else "adaptive",
            budget=budget,
            depth=depth,
            ppl=ppl,
            flops=token_flops(shape, bodies),
            ms_per_ktoken=1e6 * seconds / tokens,
            cache_bytes=2 * shape.kv_width * layers * BYTES_PER_NUMBER,
        )


def frontier(points: Sequence[ParetoPoint], cost: str) -> list[ParetoPoint]:
    """The points that no other beats in both perplexity and the given cost, cheapest first."""
    best: list[ParetoPoint] = []
    for point in sorted(points, key=lambda p: (getattr(p, cost), p.ppl)):
        if not best or point.ppl < best[-1].ppl:
            best.append(point)
    return best
