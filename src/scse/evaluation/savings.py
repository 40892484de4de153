"""What an exit rule saves at a given loss of quality, against the best fixed depth."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from scse.data import Readable
from scse.evaluation.adaptive import online
from scse.evaluation.calibration import Trace, calibrate_quality, trace
from scse.evaluation.perplexity import perplexity_over_depths
from scse.evaluation.rules import Stopping
from scse.measure import elapsed
from scse.model import LoopedLM


@dataclass(frozen=True)
class Saving:
    """A rule at the threshold that costs a given share of perplexity on validation, beside the depth it replaces.

    `fixed_depth` is the best of the fixed depths on validation, and the most loops that an example takes. `saved` is
    the share of its loops that were not taken, `ppl_change` what that cost, and `time` the seconds of real early exit
    over those of the fixed depth.
    """

    rule: str
    threshold: float
    fixed_depth: int
    fixed_ppl: float
    mean_depth: float
    ppl: float
    saved: float
    ppl_change: float
    time: float


def saving(
    model: LoopedLM,
    validation: Readable,
    tokens: Readable,
    stopping: Stopping,
    percent: float,
    calibration: int | None = None,
) -> Saving:
    """Calibrate on `calibration` windows of validation, then evaluate on those of `tokens`.

    The fixed depth is looked for up to the ceiling of `stopping`.
    """
    seen = trace(model, validation, replace(stopping, windows=calibration), with_nll=True)
    depth = int(seen.nll.sum(axis=0).argmin()) + 1
    # Where nobody stops early the perplexity is that of the fixed depth, so every rule has a threshold.
    threshold = calibrate_quality(Trace(seen.statistics[:, :depth], seen.nll[:, :depth], seen.tokens), percent)
    begin = time.perf_counter()
    (fixed,) = perplexity_over_depths(model, tokens, [depth], stopping.batch, stopping.windows)
    seconds = elapsed(begin)
    found = online(model, tokens, replace(stopping, ceiling=depth), threshold)
    return Saving(
        rule=stopping.rule.name,
        threshold=threshold,
        fixed_depth=depth,
        fixed_ppl=fixed.ppl,
        mean_depth=found.mean_depth,
        ppl=found.ppl,
        saved=1 - found.mean_depth / depth,
        ppl_change=found.ppl / fixed.ppl - 1,
        time=found.seconds / seconds,
    )
