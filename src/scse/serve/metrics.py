"""The numbers of a server in the text form that Prometheus reads."""

from __future__ import annotations

import time
from collections.abc import Iterator

from scse.serve.counters import Histogram
from scse.serve.engine import Engine


def exposition(engine: Engine) -> str:
    return "".join(f"{line}\n" for line in _lines(engine))


def _lines(engine: Engine) -> Iterator[str]:
    counters, cache = engine.counters, engine.cache
    gauges = {
        "queue": (engine.waiting, "Sequences that wait for a lane"),
        "running": (engine.running, "Sequences that hold a lane"),
        "lanes": (engine.limits.lanes, "Sequences that can run at once"),
        "batch": (engine.limits.batch, "Sequences that can share a loop"),
        "occupancy": (
            _ratio(counters.row_loops, counters.loops * engine.limits.batch),
            "Rows per decoding loop / the most there can be",
        ),
        "rows_per_head": (_ratio(counters.head_rows, counters.heads), "Rows per call of the vocabulary head"),
        "mean_loops": (_ratio(counters.new_token_loops, counters.new_tokens), "Loops per new token"),
        "flop_bound": (_ratio(counters.full_flops, counters.flops), "FLOPs at full depth / FLOPs spent on new tokens"),
        "flop_bound_share": (
            _ratio(_ratio(counters.flops, counters.decode_seconds), counters.full_rate),
            "FLOPs per second of decoding / the same at full depth with a whole batch, measured at the start",
        ),
        "tokens_per_second": (
            _ratio(counters.new_tokens, counters.decode_seconds),
            "Tokens generated per second of decoding, since the start",
        ),
        "cache_bytes": (cache.nbytes, "Held for keys and values"),
        "cache_used_bytes": (cache.used_bytes, "Of that, filled by running sequences"),
        "cache_limit_bytes": (engine.limits.cache_bytes, "The most that is promised at once"),
        "uptime_seconds": (time.time() - counters.started, "Since the engine was made"),
    }
    for name, (value, about) in gauges.items():
        yield from _described(name, "gauge", about)
        yield f"scse_{name} {value:.10g}"
    totals = {
        "prompt_tokens": (counters.prompt_tokens, "Tokens of prompts taken through the loops"),
        "new_tokens": (counters.new_tokens, "Tokens generated; its rate is the throughput"),
        "new_token_loops": (counters.new_token_loops, "Loops behind generated tokens"),
        "decode_seconds": (counters.decode_seconds, "Spent on loops of new tokens and on the head"),
        "flops": (counters.flops, "FLOP proxies spent on new tokens"),
        "refused": (engine.refused, "Requests turned away because the queue was full"),
        "failures": (counters.failures, "Errors inside the engine"),
    }
    for name, (total, about) in totals.items():
        yield from _described(f"{name}_total", "counter", about)
        yield f"scse_{name}_total {total:.17g}"
    yield from _described("sequences_total", "counter", "Sequences that ended, by how")
    for reason, count in sorted(counters.ended.items()):
        yield f'scse_sequences_total{{end="{reason}"}} {count}'
    yield from _histogram("time_to_first_token_seconds", counters.first_token, "From arrival to the first token")
    yield from _histogram("sequence_seconds", counters.whole, "From arrival to the end")


def _described(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP scse_{name} {about}"
    yield f"# TYPE scse_{name} {kind}"


def _histogram(name: str, found: Histogram, about: str) -> Iterator[str]:
    yield from _described(name, "histogram", about)
    so_far = 0
    for bound, count in zip((*found.bounds, None), found.counts, strict=True):
        so_far += count
        yield f'scse_{name}_bucket{{le="{"+Inf" if bound is None else bound}"}} {so_far}'
    yield f"scse_{name}_sum {found.total:.10g}"
    yield f"scse_{name}_count {so_far}"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
