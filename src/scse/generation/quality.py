"""What a cache costs in quality: perplexity read token by token, as generation would see the text."""

from __future__ import annotations

import torch

from scse.data import Readable
from scse.devices import wide
from scse.evaluation.perplexity import DepthResult, counted_targets, perplexity, windows
from scse.generation.cache import make_cache
from scse.generation.decode import Depth, settle
from scse.model import LoopedLM
from scse.progress import SILENT, Meter


@torch.no_grad()
def cached_perplexity(
    model: LoopedLM, tokens: Readable, loops: int, kind: str, batch: int, limit: int | None, meter: Meter = SILENT
) -> DepthResult:
    """Perplexity at a fixed depth where every token sees those before it through a cache of `make_cache`'s `kind`."""
    total, count = torch.zeros((), dtype=wide(model.device), device=model.device), 0
    for inputs, targets in windows(tokens, model.config.shape.context, batch, limit):
        cache = make_cache(kind, model, len(inputs), loops, inputs.shape[1])
        ids, wanted = model.place(inputs, targets)
        steps = [settle(model, column, cache.append(1), Depth(loops)).outputs for column in ids.split(1, dim=1)]
        total += model.output_nll(torch.cat(steps, dim=1), wanted).sum(dtype=wide(model.device))
        count += counted_targets(targets)
        meter.advance(len(inputs))
    mean = total.item() / count
    return DepthResult(loops, mean, perplexity(mean), count)
