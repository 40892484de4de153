"""The appendix's tables on WikiText-103: strong baselines, scale, longer training, adaptive depth, profile."""

from __future__ import annotations

from scse.experiments.suite import Claim, Column
from scse.experiments.suites.tables import headers, loops, named, table

STRONG = table(
    "strong_followup",
    "Strong shared-block baselines",
    loops(8, 16, 32, 48),
    """
    = | | wikitext-103
    looped                 | 179.8±0.8 | 187.3±0.6 | 203.3±0.5 | 218.0±0.8
    adapter                | 157.6±0.5 | 165.2±0.5 | 183.9±1.0 | 202.3±1.8
    tuned-adapter x5       | 156.4±0.6 | 164.5±0.5 | 184.4±0.8 | 204.1±1.4
    scse x5: SCSE, s=0.50  | 155.1±0.6 | 162.0±0.6 | 180.7±0.9 | 200.1±1.3
    """,
    [
        Claim("SCSE is lowest at every depth", "scse", ("looped", "adapter", "tuned-adapter"), headers(8, 16, 32, 48)),
        *(
            Claim(f"The {arm} is far below the baseline", arm, ("looped",), headers(8, 16, 32, 48))
            for arm in ("adapter", "tuned-adapter")
        ),
        Claim("At T = 8 tuning improves on the capacity-matched adapter", "tuned-adapter", ("adapter",), ("T=8",)),
    ],
)

SCALE_50M = table(
    "scale50m_x48",
    "A larger scale through T = 48",
    loops(8, 16, 24, 32, 48),
    """
    = | | wikitext-103-50m
    looped   | 151.1±0.9 | 156.4±0.9 | 162.5±1.0 | 168.3±1.0 | 178.9±1.3
    scse x5  | 123.1±0.2 | 128.6±0.2 | 135.5±0.4 | 142.6±0.6 | 156.4±1.1
    """,
    [Claim("SCSE is below the baseline at every depth", "scse", ("looped",), headers(8, 16, 24, 32, 48))],
)

_AT_95M = headers(4, 8, 16, 24, 32)

SCALE_95M = table(
    "scale95m",
    "Strong baselines at a larger scale",
    loops(4, 8, 16, 24, 32),
    """
    = | | wikitext-103-96m
    looped         | 117.4±0.5 | 117.1±0.5 | 122.1±0.6 | 128.0±0.7 | 133.9±0.9
    tuned-adapter  | 98.9±0.3  | 98.6±0.5  | 103.7±0.7 | 109.8±0.9 | 116.1±0.9
    scse x5        | 97.3±0.2  | 96.9±0.3  | 101.7±0.5 | 107.6±0.6 | 113.7±0.7
    """,
    [
        Claim("SCSE is lowest at every depth", "scse", ("looped", "tuned-adapter"), _AT_95M),
        Claim("The tuned adapter is far below the baseline", "tuned-adapter", ("looped",), _AT_95M),
        *(
            Claim(f"{arm}: T = 8 is better than T = 4", arm, (arm,), ("T=8",), against="T=4")
            for arm in ("looped", "tuned-adapter", "scse")
        ),
    ],
)

LONGER = table(
    "long10k_95m",
    "Twice the training at a larger scale",
    loops(4, 8, 16, 24, 48),
    """
    = | | wikitext-103-96m-10k
    step-adapter x5  | 69.2±0.2 | 68.5±0.2 | 73.6±0.3 | 80.4±0.3 | 103.4±0.8
    scse x5          | 67.5±0.3 | 66.7±0.3 | 70.9±0.4 | 76.9±0.5 | 98.3±1.0
    """,
    [
        Claim("SCSE is below step conditioning at every depth", "scse", ("step-adapter",), headers(4, 8, 16, 24, 48)),
        *(
            Claim(f"{arm}: T = 8 is better than T = 4", arm, (arm,), ("T=8",), against="T=4")
            for arm in ("step-adapter", "scse")
        ),
    ],
)

_BUDGETED = [
    Column("Static T=8", depth=8),
    *(Column(f"Adaptive {budget}", "adaptive", budget=budget) for budget in (8, 16, 24)),
    Column("Static T=48", depth=48),
]
_ALL_BUDGETS = tuple(column.header for column in _BUDGETED)

ADAPTIVE = table(
    "adaptive_wt103",
    "Adaptive depth: mean loop budgets under a ceiling of 48",
    _BUDGETED,
    """
    = | | wikitext-103
    looped                 | 179.8±0.8 | 182.6 | 188.7 | 195.3 | 218.0±0.8
    tuned-adapter x5       | 156.4±0.6 | 157.9 | 165.4 | 174.1 | 204.1±1.4
    step-adapter x5        | 156.7±0.5 | 158.3 | 165.8 | 175.1 | 206.1±1.4
    scse x5: SCSE, s=0.50  | 155.1±0.6 | 156.0 | 163.3 | 171.8 | 200.1±1.3
    """,
    [Claim("SCSE is lowest at every budget", "scse", ("looped", "tuned-adapter", "step-adapter"), _ALL_BUDGETS)],
    figure="exit-depths pareto",
)

ADAPTIVE_SCALE = table(
    "adaptive_scale",
    "Adaptive depth at larger scales",
    _BUDGETED,
    """
    = 50m | 50M | wikitext-103-50m
    looped           | 151.1±0.9 | 153.8 | 158.3 | 162.8 | 178.9±1.3
    step-adapter x5  | 125.7±0.4 | 126.4 | 131.9 | 138.6 | 160.1±0.2
    scse x5          | 123.1±0.2 | 123.5 | 128.9 | 135.5 | 156.4±1.1
    = 96m | 95.6M | wikitext-103-96m
    looped           | 117.1±0.5 | 117.8 | 122.2 | 127.6 | 145.1±1.2
    tuned-adapter    | 98.6±0.5  | 98.9  | 103.1 | 108.4 | 128.7±0.9
    step-adapter x5  | 100.8±0.5 | 101.5 | 105.9 | 111.0 | 130.6±1.0
    scse x5          | 96.9±0.3  | 97.1  | 101.3 | 106.6 | 125.9±0.9
    """,
    [
        Claim("50M: SCSE is lowest at every budget", "scse-50m", named("looped step-adapter", "50m"), _ALL_BUDGETS),
        Claim(
            "95.6M: SCSE is lowest at every budget",
            "scse-96m",
            named("looped tuned-adapter step-adapter", "96m"),
            _ALL_BUDGETS,
        ),
    ],
    figure="exit-depths pareto",
)

# The task counts memory in MiB.
_MB_PER_MIB = 1.048576

PROFILE = table(
    "scale_profile",
    "Quality and cost of one model per method and scale",
    [
        Column("T=8 PPL", depth=8),
        Column("T=8 latency (ms)", "profile", "latency_ms", depth=8),
        Column("T=48 PPL", depth=48),
        Column("T=48 latency (ms)", "profile", "latency_ms", depth=48),
        Column("T=48 throughput (10³ tokens/s)", "profile", "tokens_per_second", depth=48, unit=1e-3, lower=False),
        Column("T=48 peak memory (MB)", "profile", "peak_mib", depth=48, unit=_MB_PER_MIB),
    ],
    """
    = 50m | 50M | wikitext-103-50m
    looped x1         | 150.1 | 24.2 | 178.4 | 75.2  | 27.2 | 1365.5
    step-adapter x1   | 125.3 | 19.2 | 160.4 | 87.5  | 23.4 | 1379.8
    scse x1           | 123.3 | 17.6 | 158.2 | 77.8  | 26.3 | 1373.3
    = 96m | 95.6M | wikitext-103-96m
    looped x1         | 117.3 | 18.3 | 145.4 | 86.9  | 11.8 | 1268.8
    tuned-adapter x1  | 98.0  | 20.0 | 127.7 | 92.9  | 11.0 | 1284.3
    step-adapter x1   | 100.7 | 21.2 | 130.0 | 100.1 | 10.2 | 1294.6
    scse x1           | 96.4  | 19.6 | 124.3 | 89.9  | 11.4 | 1281.4
    """,
    [
        Claim(
            "50M: SCSE has the lowest perplexity",
            "scse-50m",
            named("looped step-adapter", "50m"),
            ("T=8 PPL", "T=48 PPL"),
        ),
        Claim(
            "50M: SCSE is faster than step conditioning",
            "scse-50m",
            ("step-adapter-50m",),
            ("T=8 latency (ms)", "T=48 latency (ms)"),
        ),
        Claim(
            "50M: the baseline is fastest at T = 48",
            "looped-50m",
            named("step-adapter scse", "50m"),
            ("T=48 latency (ms)",),
        ),
        Claim(
            "95.6M: SCSE has the lowest perplexity",
            "scse-96m",
            named("looped tuned-adapter step-adapter", "96m"),
            ("T=8 PPL", "T=48 PPL"),
        ),
    ],
)

SCALING = (STRONG, SCALE_50M, SCALE_95M, LONGER, ADAPTIVE, ADAPTIVE_SCALE, PROFILE)
