"""The appendix's tables on WikiText-103: strong baselines, scale, longer training, adaptive depth, profile."""

from __future__ import annotations

from scse.suites.paper.tables import change, named, table
from scse.suites.suite import Claim, Column
from scse.tasks.columns import budgeted, headers, loops

STRONG = table(
    "strong_followup",
    "strong-baselines",
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
    "scale-50m",
    "A larger scale through T = 48",
    loops(8, 16, 24, 32, 48),
    """
    = | | wikitext-103-50m
    looped   | 151.1±0.9 | 156.4±0.9 | 162.5±1.0 | 168.3±1.0 | 178.9±1.3
    scse x5  | 123.1±0.2 | 128.6±0.2 | 135.5±0.4 | 142.6±0.6 | 156.4±1.1
    """,
    [Claim("SCSE is below the baseline at every depth", "scse", ("looped",), headers(8, 16, 24, 32, 48))],
    printed="scse − looped | T=8: -28.0±2.6 | T=24: -26.9±3.4 | T=48: -22.2±5.5",
)

_AT_95M = headers(4, 8, 16, 24, 32)
_AT_96M = named("looped tuned-adapter step-adapter scse", "96m")

SCALE_95M = table(
    "scale95m",
    "scale-96m",
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
            Claim(f"{arm}: T = 8 is better than T = 4", arm, (arm,), ("T=8",), against=("T=4",))
            for arm in ("looped", "tuned-adapter", "scse")
        ),
    ],
)

LONGER = table(
    "long10k_95m",
    "longer-96m",
    "Twice the training at a larger scale",
    [*loops(4, 8, 16, 24, 48), change(4, 8)],
    """
    = | | wikitext-103-96m-10k
    step-adapter x5    | 69.2±0.2 | 68.5±0.2  | 73.6±0.3  | 80.4±0.3  | 103.4±0.8 | -0.7
    scse x5            | 67.5±0.3 | 66.7±0.3  | 70.9±0.4  | 76.9±0.5  | 98.3±1.0  | -0.8
    = 5k | 5k steps, from other tables | wikitext-103-96m
    + step-adapter x5  | –        | 100.8±0.5 | –         | 111.9±0.3 | 130.6±1.0
    + scse x5          | 97.3±0.2 | 96.9±0.3  | 101.7±0.5 | 107.6±0.6 | 125.9±0.9
    """,
    [
        Claim("SCSE is below step conditioning at every depth", "scse", ("step-adapter",), headers(4, 8, 16, 24, 48)),
        *(
            Claim(f"{arm}: 10k steps are far better than 5k", arm, (f"{arm}-5k",), headers(4, 8, 16, 24, 48))
            for arm in ("step-adapter", "scse")
        ),
        *(
            Claim(
                f"{arm}: from T = 4 to T = 8 perplexity falls by more after 10k steps than after 5k",
                arm,
                (f"{arm}-5k",),
                ("T=4 → 8",),
            )
            for arm in ("step-adapter", "scse")
        ),
        *(
            Claim(f"{arm}: T = 8 is better than T = 4", arm, (arm,), ("T=8",), against=("T=4",))
            for arm in ("step-adapter", "scse")
        ),
    ],
    printed="""
    scse − step-adapter | T=8: -1.80 [-2.13, -1.49] | T=24: -3.45 [-3.85, -2.98] | T=48: -5.10 [-6.11, -3.99]
    step-adapter | T=8 − T=4: -0.7
    scse | T=8 − T=4: -0.8
    """,
)

_BUDGETS = (8, 16, 24)
_BUDGETED = [
    Column("Static T=8", depth=8),
    *budgeted(*_BUDGETS),
    Column("Static T=48", depth=48),
]
_ALL_BUDGETS = tuple(column.header for column in _BUDGETED)
_ACHIEVED = [
    Column(f"Mean depth at {budget}", "adaptive", "mean_depth", budget=budget, digits=2, lower=None, beside=True)
    for budget in _BUDGETS
]
_ACHIEVED_HEADERS = tuple(column.header for column in _ACHIEVED)


def _calibrated(arms: tuple[str, ...]) -> list[Claim]:
    """What the paper says of the mean depths that its thresholds reach on the test set."""
    targets = tuple(map(float, _BUDGETS))
    return [
        Claim(
            f"{'Most' if most else 'All'} mean depths are within {loops} loops of their budget",
            arms,
            (),
            _ACHIEVED_HEADERS,
            values=targets,
            within=loops,
            most=most,
        )
        for loops, most in ((0.4, True), (1.2, False))
    ]


ADAPTIVE = table(
    "adaptive_wt103",
    "adaptive-22m",
    "Adaptive depth: mean loop budgets under a ceiling of 48",
    [*_BUDGETED, *_ACHIEVED],
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
    "adaptive-scales",
    "Adaptive depth at larger scales",
    [*_BUDGETED, *_ACHIEVED],
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
        *_calibrated((*named("looped step-adapter scse", "50m"), *_AT_96M)),
    ],
    figure="exit-depths pareto",
)

# The task counts memory in MiB.
_MB_PER_MIB = 1.048576
_QUALITY = ("T=8 PPL", "T=48 PPL")
_LATENCY = ("T=8 latency (ms)", "T=48 latency (ms)")
_MEMORY = ("T=48 peak memory (MB)",)
# The paper says "close to the fastest" (7 % and 3.5 % slower) and "closely clustered" (1 % and 2 % apart).
_CLOSE, _CLUSTERED = 0.12, 0.03

PROFILE = table(
    "scale_profile",
    "cost-profile",
    "Quality and cost of one model per method and scale",
    [
        Column("T=8 PPL", depth=8),
        Column("T=8 latency (ms)", "profile", "latency_ms", depth=8),
        Column("T=48 PPL", depth=48),
        Column("T=48 latency (ms)", "profile", "latency_ms", depth=48),
        Column("T=48 throughput (10³ tokens/s)", "profile", "tokens_per_second", depth=48, unit=1e-3, lower=False),
        Column("T=48 peak memory (MB)", "profile", "peak_allocated_mib", depth=48, unit=_MB_PER_MIB),
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
            _QUALITY,
            of_models=True,
        ),
        Claim(
            "50M: SCSE is faster than step conditioning", "scse-50m", ("step-adapter-50m",), _LATENCY, of_models=True
        ),
        Claim(
            "50M: at T = 8 SCSE is faster than the baseline", "scse-50m", ("looped-50m",), _LATENCY[:1], of_models=True
        ),
        Claim(
            "50M: the baseline is fastest at T = 48",
            "looped-50m",
            named("step-adapter scse", "50m"),
            _LATENCY[1:],
            of_models=True,
        ),
        Claim("95.6M: SCSE has the lowest perplexity", "scse-96m", _AT_96M[:3], _QUALITY, of_models=True),
        Claim(
            "95.6M: SCSE is close to the fastest, the baseline",
            "scse-96m",
            ("looped-96m",),
            _LATENCY,
            margin=_CLOSE,
            of_models=True,
        ),
        *(
            Claim(
                f"{group}: peak memory is closely clustered",
                arms[1:],
                arms[:1],
                _MEMORY,
                margin=_CLUSTERED,
                of_models=True,
            )
            for group, arms in (("50M", named("looped step-adapter scse", "50m")), ("95.6M", _AT_96M))
        ),
    ],
)

SCALING = (STRONG, SCALE_50M, SCALE_95M, LONGER, ADAPTIVE, ADAPTIVE_SCALE, PROFILE)
