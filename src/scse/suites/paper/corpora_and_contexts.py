"""The appendix's tables on longer contexts and on other text: web corpora, transfer, completion."""

from __future__ import annotations

from scse.suites.paper.tables import TIE, named, table
from scse.suites.suite import Claim, Column
from scse.tasks.columns import headers, loops, share

_FIVE = headers(4, 8, 16, 24, 48)
# Two bytes for each number that is trained.
WEIGHTS = Column("Weights at 16 bits (MB)", "size", "parameters", unit=2e-6, digits=0, beside=True)

CONTEXTS = table(
    "contexts",
    "contexts",
    "Longer contexts",
    [*loops(4, 8, 16, 24, 48), WEIGHTS],
    """
    = 512 | Context 512 | wikitext-103-ctx512
    looped         | 229.8±2.1 | 230.1±1.9 | 237.8±1.6 | 246.6±1.4 | 273.8±0.7
    tuned-adapter  | 193.3±1.2 | 191.8±1.2 | 200.7±1.2 | 212.3±1.2 | 249.5±1.6
    scse           | 190.8±0.5 | 188.4±0.5 | 195.6±0.5 | 205.9±0.6 | 240.1±1.7 | 45
    unshared-8     | –         | 153.7±0.8 | 153.7±0.8 | 153.7±0.8 | 153.7±0.8 | 77
    = 1024 | Context 1024 | wikitext-103-ctx1024
    looped x5      | 264.2±2.0 | 264.9±2.1 | 272.5±2.1 | 281.1±2.1 | 308.5±2.1
    tuned-adapter  | 226.5±0.5 | 224.7±0.6 | 232.9±0.7 | 243.8±0.7 | 278.6±0.7
    scse x5        | 223.7±1.3 | 221.1±1.2 | 228.0±1.1 | 238.1±1.0 | 272.6±2.1 | 45
    unshared-8     | –         | 181.6±1.9 | 181.6±1.9 | 181.6±1.9 | 181.6±1.9 | 77
    """,
    [
        Claim(
            f"Context {context}: SCSE is the lowest shared-block method at every depth",
            f"scse-{context}",
            named("looped tuned-adapter", context),
            _FIVE,
        )
        for context in ("512", "1024")
    ]
    + [
        Claim(
            f"Context {context}: eight unshared layers are below every shared block at T = 8",
            f"unshared-8-{context}",
            named("looped tuned-adapter scse", context),
            ("T=8",),
        )
        for context in ("512", "1024")
    ]
    + [
        Claim(
            f"Context {context}: eight unshared layers take more memory for their weights",
            f"unshared-8-{context}",
            (f"scse-{context}",),
            (WEIGHTS.header,),
            lower=False,
            by_construction="weights are counted, not measured",
        )
        for context in ("512", "1024")
    ],
    printed="""
    scse-512 − tuned-adapter-512    | T=8: -3.34±3.81 | T=24: -6.45±2.91 | T=48: -9.41±3.06
    scse-1024 − tuned-adapter-1024  | T=8: -4.15±3.17 | T=24: -5.94±3.38 | T=48: -5.00±6.31
    """,
)

_WEB = headers(8, 16, 24, 48)
_WEB_CLAIMS = [
    Claim("SCSE is the lowest shared-block method at every depth", "scse", ("looped", "tuned-adapter"), _WEB),
]

OPENWEBTEXT = table(
    "owt_train",
    "openwebtext",
    "Another training corpus",
    loops(8, 16, 24, 48),
    """
    = | | openwebtext
    looped         | 285.7±0.3 | 295.3±0.2 | 306.3±0.2 | 336.8±0.5
    tuned-adapter  | 255.3±0.9 | 265.9±1.3 | 279.7±2.2 | 328.0±9.4
    scse           | 253.3±0.8 | 262.4±1.0 | 274.5±1.2 | 317.5±3.6
    unshared-8     | 222.0±0.8 | 222.0±0.8 | 222.0±0.8 | 222.0±0.8
    """,
    _WEB_CLAIMS,
    printed="scse − tuned-adapter | T=8: -1.96±1.98 | T=24: -5.12±3.13 | T=48: -10.42±14.41",
)

C4 = table(
    "c4_train",
    "c4",
    "A third training corpus",
    loops(8, 16, 24, 48),
    """
    = | | c4
    looped            | 348.8±3.7 | 360.2±3.5 | 372.8±3.4 | 407.5±3.3
    tuned-adapter x5  | 304.8±0.6 | 318.0±0.6 | 334.5±0.8 | 383.2±2.0
    scse x5           | 301.5±1.0 | 312.5±1.1 | 327.4±1.4 | 374.4±2.4
    unshared-8        | 265.0±0.3 | 265.0±0.3 | 265.0±0.3 | 265.0±0.3
    """,
    _WEB_CLAIMS,
    printed="""
    scse − tuned-adapter | T=8: -3.32±1.28 [-3.97, -2.40] | T=24: -7.12±1.30 [-7.94, -6.23] \
        | T=48: -8.74±2.36 [-10.47, -7.60]
    """,
)

_OWT = ("OpenWebText T=8", "OpenWebText T=48")
_C4 = ("C4 T=8", "C4 T=48")


def _heldout(name: str, data: str) -> list[Column]:
    return [
        Column(f"{name} T={depth}", depth=depth, data=data, split="heldout", unit=1e-3, digits=2) for depth in (8, 48)
    ]


def _transfer_claims(size: str, group: str, others: str, best_at_8: str) -> list[Claim]:
    best, scse = f"{best_at_8}-{size}", f"scse-{size}"
    shared = (*named(others, size), scse)
    beaten = tuple(arm for arm in shared if arm != best)
    return [
        Claim(f"{group}: {best_at_8} is lowest on OpenWebText at T = 8", best, beaten, _OWT[:1]),
        Claim(f"{group}: SCSE is lowest on OpenWebText at T = 48", scse, named(others, size), _OWT[1:]),
        Claim(f"{group}: SCSE is lowest on C4 at both depths", scse, named(others, size), _C4),
        Claim(f"{group}: extra loops help SCSE on OpenWebText", scse, (scse,), _OWT[1:], against=_OWT[:1]),
        *(
            Claim(f"{group}: extra loops hurt {arm} on OpenWebText", arm, (arm,), _OWT[1:], False, against=_OWT[:1])
            for arm in named(others, size)
        ),
    ]


TRANSFER = table(
    "heldout_transfer",
    "transfer",
    "Transfer to held-out text of another kind (perplexity in thousands)",
    [*_heldout("OpenWebText", "openwebtext"), *_heldout("C4", "c4")],
    """
    = 22m | 22M WikiText-103 5k trained weights | wikitext-103
    tuned-adapter  | 4.03±0.28 | 4.09±0.45 | 3.36±0.17 | 3.55±0.25
    step-adapter   | 4.10±0.54 | 4.55±0.84 | 3.73±0.38 | 4.19±0.54
    scse           | 4.06±0.26 | 3.87±0.32 | 3.26±0.06 | 3.30±0.17
    unshared-8     | 4.11±0.30 | 4.11±0.30 | 3.00±0.09 | 3.00±0.09
    = 50m | 50M WikiText-103 5k trained weights | wikitext-103-50m
    looped         | 3.81±0.11 | 3.94±0.14 | 3.08±0.11 | 3.24±0.07
    step-adapter   | 3.66±0.33 | 4.02±0.36 | 2.80±0.14 | 3.14±0.20
    scse           | 3.69±0.07 | 3.47±0.22 | 2.72±0.04 | 2.70±0.15
    = 96m | 95.6M WikiText-103 5k trained weights | wikitext-103-96m
    looped         | 3.69±0.13 | 3.75±0.18 | 2.85±0.01 | 2.97±0.04
    tuned-adapter  | 3.53±0.21 | 3.60±0.23 | 2.68±0.08 | 2.83±0.13
    step-adapter   | 3.56±0.14 | 3.70±0.20 | 2.75±0.07 | 2.93±0.13
    scse           | 3.60±0.20 | 3.42±0.31 | 2.62±0.04 | 2.65±0.10
    """,
    [
        *_transfer_claims("22m", "22M", "tuned-adapter step-adapter", "tuned-adapter"),
        *_transfer_claims("50m", "50M", "looped step-adapter", "step-adapter"),
        *_transfer_claims("96m", "95.6M", "looped tuned-adapter step-adapter", "tuned-adapter"),
    ],
    printed="""
    scse-96m − step-adapter-96m | C4 T=8: -0.136 [-0.207, -0.054] | C4 T=48: -0.284 [-0.394, -0.137]
    tuned-adapter-96m           | OpenWebText T=48 − OpenWebText T=8: 0.071
    step-adapter-96m            | OpenWebText T=48 − OpenWebText T=8: 0.140
    """,
)


def _completion(depth: int) -> list[Column]:
    return [
        Column(f"T={depth} PPL (10³)", "completion", "target_ppl", depth, unit=1e-3, data="lambada"),
        share(f"T={depth} accuracy (%)", "completion", "target_accuracy", depth, digits=2, data="lambada"),
    ]


EXACT = [
    share(f"T={depth} exact (%)", "completion", "exact_accuracy", depth, digits=2, data="lambada", beside=True)
    for depth in (8, 32, 48)
]
# The paper: "group means at most about 0.13 %".
EXACT_AT_MOST = 0.15
# The paper says that it "can approach"; at 95.6M its means are 3 % and 0 % apart.
APPROACHING = 0.05


def _answers(deep: int) -> tuple[str, str]:
    return "T=8 PPL (10³)", f"T={deep} PPL (10³)"


def _exact(deep: int) -> tuple[str, str]:
    return "T=8 exact (%)", f"T={deep} exact (%)"


def _completion_claims(size: str, group: str, others: str, deep: int) -> list[Claim]:
    rivals = named(others, size)
    return [
        Claim(
            f"{group}: SCSE has the lowest perplexity of the answers",
            f"scse-{size}",
            rivals,
            _answers(deep),
        ),
        Claim(
            f"{group}: SCSE is most often right",
            f"scse-{size}",
            rivals,
            ("T=8 accuracy (%)", f"T={deep} accuracy (%)"),
            lower=False,
        ),
    ]


LAMBADA = table(
    "lambada",
    "lambada",
    "LAMBADA: the last word of a passage",
    [*_completion(8), *_completion(32), *_completion(48), *EXACT],
    """
    = 22m | 22M WikiText-103 5k | wikitext-103
    tuned-adapter    | 23.8±1.2 | 1.27±0.19 | – | – | 25.9±2.5 | 0.64±0.16
    step-adapter     | 30.3±4.3 | 1.33±0.36 | – | – | 34.5±7.1 | 0.55±0.15
    scse             | 23.7±1.2 | 1.52±0.11 | – | – | 24.2±0.5 | 0.84±0.19
    unshared-8       | 21.1±0.9 | 1.33±0.06 | – | – | 21.1±0.9 | 1.33±0.06
    = 50m | 50M WikiText-103 5k | wikitext-103-50m
    looped           | 25.0±1.2 | 0.97±0.13 | – | – | 26.5±3.5 | 0.59±0.10
    step-adapter     | 20.6±2.0 | 2.37±0.09 | – | – | 24.3±2.5 | 1.43±0.19
    scse             | 18.2±0.1 | 2.72±0.32 | – | – | 19.8±0.8 | 1.69±0.15
    = 96m | 95.6M WikiText-103 5k | wikitext-103-96m
    looped           | 23.0±0.3 | 1.60±0.12 | 23.4±0.7 | 1.20±0.25 | – | –
    tuned-adapter    | 18.5±1.4 | 2.86±0.04 | 19.9±1.3 | 2.13±0.08 | – | –
    step-adapter x5  | 18.0±0.8 | 2.69±0.17 | 19.9±1.6 | 1.92±0.08 | – | –
    scse x5          | 16.9±0.8 | 3.42±0.16 | 17.1±1.1 | 2.55±0.16 | – | –
    """,
    [
        *_completion_claims("22m", "22M", "tuned-adapter step-adapter", 48),
        *_completion_claims("50m", "50M", "looped step-adapter", 48),
        *_completion_claims("96m", "95.6M", "looped tuned-adapter step-adapter", 32),
        *(
            Claim(
                f"{group}: step conditioning improves the baseline's perplexity of the answers",
                f"step-adapter-{size}",
                (f"looped-{size}",),
                _answers(deep),
            )
            for size, group, deep in (("50m", "50M", 48), ("96m", "95.6M", 32))
        ),
        Claim(
            "95.6M: step conditioning approaches the tuned adapter's perplexity of the answers",
            "step-adapter-96m",
            ("tuned-adapter-96m",),
            _answers(32),
            margin=APPROACHING,
        ),
        *(
            Claim(
                f"{group}: the last word is hardly ever exact, in {EXACT_AT_MOST} % of the passages or fewer",
                named(arms, size),
                (),
                _exact(deep),
                values=(EXACT_AT_MOST,),
            )
            for size, group, arms, deep in (
                ("22m", "22M", "tuned-adapter step-adapter scse", 48),
                ("50m", "50M", "looped step-adapter scse", 48),
                ("96m", "95.6M", "looped tuned-adapter step-adapter scse", 32),
            )
        ),
    ],
    printed="scse-96m − step-adapter-96m | T=8 PPL (10³): -1.09 [-2.04, -0.13] | T=32 PPL (10³): -2.87 [-4.43, -1.47]",
)

C4_SCALE = table(
    "add-scale-real-corpus",
    "c4-137m",
    "A third training corpus at the largest scale",
    loops(8, 24, 48, digits=2),
    """
    = | | c4-137m
    tuned-adapter                                             | 227.29±1.01 | 249.40±1.57 | 287.76±1.94
    step-adapter: Recurrent-step-conditioned adapter, 139.2M  | 234.21±0.27 | 255.10±0.42 | 289.34±1.09
    scse                                                      | 221.46±0.59 | 242.57±0.70 | 278.24±1.53
    """,
    [Claim("SCSE is lowest at every depth", "scse", ("tuned-adapter", "step-adapter"), headers(8, 24, 48))],
    printed="""
    scse − tuned-adapter | T=8: -5.83  | T=24: -6.83  | T=48: -9.52
    scse − step-adapter  | T=8: -12.75 | T=24: -12.53 | T=48: -11.10
    """,
)

C4_LONG = table(
    "add-c4-long50k",
    "c4-137m-longer",
    "Much longer training at the largest scale",
    loops(8, 16, 32, 48, 96, digits=2),
    """
    = | | c4-137m-50k
    tuned-adapter: C4 tuned adapter, s=0.35, 136.5M, 50k \
        | 93.86±0.23 | 101.79±0.44 | 132.03±1.56 | 178.50±3.71 | 405.20±19.35
    step-adapter: C4 recurrent-step-conditioned adapter, 139.2M, 50k \
        | 94.69±0.31 | 103.46±1.00 | 135.77±5.28 | 180.60±10.67 | 370.09±36.81
    scse: C4 SCSE, 136.5M, 50k \
        | 94.11±0.28 | 101.80±0.20 | 130.65±1.15 | 173.08±2.68 | 369.37±9.67
    = 5k | 5k steps, from another table | c4-137m
    + tuned-adapter                                             | 227.29±1.01 | – | – | 287.76±1.94 | –
    + step-adapter: Recurrent-step-conditioned adapter, 139.2M  | 234.21±0.27 | – | – | 289.34±1.09 | –
    + scse                                                      | 221.46±0.59 | – | – | 278.24±1.53 | –
    """,
    [
        Claim("At T = 8 the tuned adapter is below SCSE", "tuned-adapter", ("scse",), ("T=8",)),
        Claim("At T = 16 the two are tied", "scse", ("tuned-adapter",), ("T=16",), margin=TIE),
        Claim("At T = 32 and deeper SCSE is lowest", "scse", ("tuned-adapter", "step-adapter"), headers(32, 48, 96)),
        *(
            Claim(f"{arm}: 50k steps are better than 5k", arm, (f"{arm}-5k",), headers(8, 48))
            for arm in ("tuned-adapter", "step-adapter", "scse")
        ),
    ],
    printed="""
    tuned-adapter − scse | T=8: -0.25
    scse − tuned-adapter | T=32: -1.38 | T=48: -5.42 | T=96: -35.83
    scse − step-adapter  | T=32: -5.12 | T=48: -7.52 | T=96: -0.72
    """,
)

TEXT_AND_CONTEXT = (CONTEXTS, OPENWEBTEXT, C4, TRANSFER, LAMBADA, C4_SCALE, C4_LONG)
