"""The tables and figures of the paper's main text."""

from __future__ import annotations

from functools import partial

from scse.suites.paper.tables import TIE, change, named, table
from scse.suites.suite import DEFAULT_SEEDS, Claim, Column
from scse.tasks import columns
from scse.tasks.columns import headers, loops

# The paper averages these over three seeds, also where perplexities are of five.
diagnosed = partial(columns.diagnosed, seeds=DEFAULT_SEEDS)
FIRST_BIAS = diagnosed("R_0", "bias_ratio", 0)
LATE_BIAS = diagnosed("R_47", "bias_ratio", 47)
LATE_ENERGY = diagnosed("E_47", "anchor_energy", 47, 1)
RAW = [diagnosed(f"R_{step} before the mask", "raw_bias_ratio", step, beside=True) for step in (0, 47)]
RAW_HEADERS = tuple(column.header for column in RAW)
PUSH = Column("push", "steering", "push", depth=48, digits=2, lower=None)
# A trajectory that never leaves the anchor has no direction, so only the additive model has these.
STEERED = [
    Column(header, "steering", metric, depth=48, unit=unit, digits=digits, lower=None, only=("looped",))
    for header, metric, unit, digits in (
        ("cosine, lowest", "cosine_lowest", 1.0, 2),
        ("cosine, highest", "cosine_highest", 1.0, 2),
        ("share %, lowest", "share_lowest", 100.0, 0),
        ("share %, highest", "share_highest", 100.0, 0),
        ("share %, rms", "share_rms", 100.0, 0),
        ("steps of growth %", "growing_lowest", 100.0, 0),
        ("angle °, lowest", "angle_lowest", 1.0, 0),
        ("angle °, highest", "angle_highest", 1.0, 0),
    )
]
# The paper says "nearly orthogonal" and gives no angle.
NEARLY = 15.0

_THREE = headers(8, 24, 48)

STEP_CONDITIONING = table(
    "stepcond_wt103",
    "step-conditioned",
    "SCSE against recurrent-step-conditioned and other shared-block controls",
    loops(8, 24, 48),
    """
    = 22m | 22M | wikitext-103
    tuned-adapter x5         | 156.4±0.6 | 174.4±0.6 | 204.1±1.4
    step-adapter x5          | 156.7±0.5 | 175.6±0.7 | 206.1±1.4
    scse x5: SCSE, s=0.50    | 155.1±0.6 | 171.1±0.8 | 200.1±1.3
    = 50m | 50M | wikitext-103-50m
    looped                   | 151.1±0.9 | 162.5±1.0 | 178.9±1.3
    step-adapter x5          | 125.7±0.4 | 139.2±0.4 | 160.1±0.2
    scse x5                  | 123.1±0.2 | 135.5±0.4 | 156.4±1.1
    = 96m | 95.6M | wikitext-103-96m
    looped                   | 117.1±0.5 | 128.0±0.7 | 145.1±1.2
    tuned-adapter            | 98.6±0.5  | 109.8±0.9 | 128.7±0.9
    step-adapter x5          | 100.8±0.5 | 111.9±0.3 | 130.6±1.0
    scse x5                  | 96.9±0.3  | 107.6±0.6 | 125.9±0.9
    """,
    [
        Claim("22M: SCSE is lowest at every depth", "scse-22m", named("tuned-adapter step-adapter", "22m"), _THREE),
        Claim(
            "22M: step conditioning and the tuned adapter are tied at T = 8",
            "step-adapter-22m",
            ("tuned-adapter-22m",),
            ("T=8",),
            margin=TIE,
        ),
        Claim(
            "22M: step conditioning trails the tuned adapter at T = 24 and T = 48",
            "tuned-adapter-22m",
            ("step-adapter-22m",),
            headers(24, 48),
        ),
        Claim("50M: step conditioning improves on the baseline", "step-adapter-50m", ("looped-50m",), headers(8, 48)),
        Claim("50M: SCSE is lowest at every depth", "scse-50m", named("looped step-adapter", "50m"), _THREE),
        Claim(
            "95.6M: SCSE is lowest at every depth",
            "scse-96m",
            named("looped tuned-adapter step-adapter", "96m"),
            _THREE,
        ),
    ],
    figure="depth-response",
    printed="tuned-adapter-22m − step-adapter-22m | T=24: -1.2 | T=48: -2.1",
)

_DEEPER = headers(12, 16, 24, 32, 48)
_BEFORE = headers(8, 12, 16, 24, 32)
_METHODS = ("looped", "tuned-adapter", "step-adapter", "scse")

DEPTH_RESPONSE = table(
    "wt103-depth-response",
    "depth-response",
    "Perplexity over loop depth",
    [*loops(4, 8, 12, 16, 24, 32, 48), change(8, 48)],
    """
    = | 95.6M | wikitext-103-96m
    looped           | 117.4±0.5 | 117.1±0.5 | – | 122.1±0.6 | 128.0±0.7 | 133.9±0.9 | 145.1±1.2 | 28.0
    tuned-adapter    | 98.9±0.3  | 98.6±0.5  | – | 103.7±0.7 | 109.8±0.9 | 116.1±0.9 | 128.7±0.9 | 30.1
    step-adapter x5  | –         | 100.8±0.5 | – | –         | 111.9±0.3 | –         | 130.6±1.0 | 29.8
    scse x5          | 97.3±0.2  | 96.9±0.3  | – | 101.7±0.5 | 107.6±0.6 | 113.7±0.7 | 125.9±0.9 | 29.0
    """,
    [
        Claim("SCSE is lowest at every depth", "scse", _METHODS[:3], headers(4, 8, 12, 16, 24, 32, 48)),
        *(
            Claim(f"{arm}: T = 8 is better than T = 4", arm, (arm,), ("T=8",), against=("T=4",))
            for arm in ("looped", "tuned-adapter", "scse")
        ),
        *(
            Claim(
                f"{arm}: beyond the trained depths perplexity rises at each subsequent depth",
                arm,
                (arm,),
                _DEEPER,
                lower=False,
                against=_BEFORE,
            )
            for arm in _METHODS
        ),
    ],
    figure="depth-response",
)

_OTHER_ANCHORS = ("scse-embedding", "scse-initial", "scse-random")

ANCHOR_DESIGN = table(
    "add-anchor-design",
    "anchor-design",
    "Which anchor: learned, the embedding, the initial state, a frozen random projection",
    loops(8, 24, 48, digits=2),
    """
    = | | wikitext-103
    scse x5: Learned h*=e+a_ω(e)           | 155.14±0.61 | 171.12±0.76 | 200.10±1.31
    scse-embedding: Embedding e            | 160.55±1.44 | 177.32±0.99 | 206.16±0.99
    scse-initial: Initial H_0(e)           | 294.37±1.24 | 294.37±1.24 | 294.37±1.24
    scse-random: Frozen random projection  | 159.14±0.78 | 175.74±0.89 | 203.78±0.94
    """,
    [
        Claim("The learned anchor is lowest at every depth", "scse", _OTHER_ANCHORS, _THREE),
        Claim(
            "With the initial state as anchor nothing moves: perplexity does not depend on depth",
            "scse-initial",
            ("scse-initial",),
            headers(24, 48),
            against=("T=8",),
            within=0.0,
            by_construction="from the anchor the update is 0, so every depth reads the same state",
        ),
        Claim(
            "With the initial state as anchor perplexity is far above the other anchors'",
            "scse-initial",
            ("scse-embedding", "scse-random"),
            _THREE,
            lower=False,
        ),
    ],
    figure="depth-response",
)

_ADDITIVE = {"22m": "looped tuned-adapter step-adapter", "50m": "looped step-adapter"}
_ADDITIVE["96m"] = _ADDITIVE["22m"]

_SIZES = (("22m", "22M"), ("50m", "50M"), ("96m", "95.6M"))
_EVERY_SCSE = tuple(f"scse-{size}" for size, _ in _SIZES)

BIAS_CLAIMS = [
    Claim(
        f"{group}: the additive models answer at their anchors, SCSE does not",
        f"scse-{size}",
        named(_ADDITIVE[size], size),
        ("R_0", "R_47"),
    )
    for size, group in _SIZES
]
EXACT_ZERO = Claim(
    "SCSE's response at its anchor is exactly 0",
    _EVERY_SCSE,
    (),
    ("R_0", "R_47"),
    values=(0.0,),
    within=0.0,
    by_construction="its block has no biases, so G(0) = 0, and the mask would make it 0 anyway",
)

BIAS = table(
    "bias_decomp",
    "anchor-response",
    "The response at the anchor of trained models",
    [FIRST_BIAS, LATE_BIAS, LATE_ENERGY, *RAW],
    """
    = 22m | 22M | wikitext-103
    looped         | 1.000 | 4.351 | 44.7   | – | –
    tuned-adapter  | 0.380 | 1.619 | 9.8    | – | –
    step-adapter   | 0.329 | 1.276 | 9.7    | – | –
    scse           | 0.000 | 0.000 | 18.1   | 0 | 0
    = 50m | 50M | wikitext-103-50m
    looped         | 1.000 | 4.296 | 477.2  | – | –
    step-adapter   | 0.264 | 1.053 | 64.7   | – | –
    scse           | 0.000 | 0.000 | 109.9  | 0 | 0
    = 96m | 95.6M | wikitext-103-96m
    looped         | 1.000 | 5.436 | 2129.4 | – | –
    tuned-adapter  | 0.239 | 1.331 | 321.5  | – | –
    step-adapter   | 0.151 | 0.894 | 332.1  | – | –
    scse           | 0.000 | 0.000 | 603.8  | 0 | 0
    """,
    [
        *BIAS_CLAIMS,
        EXACT_ZERO,
        Claim(
            "SCSE's response is exactly 0 before the mask too",
            _EVERY_SCSE,
            (),
            RAW_HEADERS,
            values=(0.0,),
            within=0.0,
            by_construction="its block has no biases, so G(0) = 0",
        ),
        Claim("SCSE still moves: its late energy is not 0", _EVERY_SCSE, (), ("E_47",), lower=False, values=(0.0,)),
    ],
)

ANCHOR_START = table(
    "zdfb-empirical",
    "anchor-start",
    "Started at the anchor: forcing-aligned motion in one model",
    [FIRST_BIAS, LATE_BIAS, PUSH, *STEERED],
    """
    = | | wikitext-2
    looped x1  | – | – | – | 0.78 | 1.00 | 25 | 51 | 36 | – | – | –
    scse x1    | – | – | – | –    | –    | –  | –  | –  | – | – | –
    """,
    [
        Claim(
            "Only the additive model leaves its anchor", "scse", ("looped",), ("R_0", "R_47", "push"), of_models=True
        ),
        Claim(
            "What the injection adds grows at every step",
            "looped",
            (),
            ("steps of growth %",),
            values=(100.0,),
            within=0.0,
            of_models=True,
        ),
        Claim(
            f"What the injection adds is nearly orthogonal to the drift: within {NEARLY:g}° of a right angle",
            "looped",
            (),
            ("angle °, lowest", "angle °, highest"),
            values=(90.0,),
            within=NEARLY,
            of_models=True,
        ),
    ],
    figure="anchor-start",
)

MAIN_TEXT = (STEP_CONDITIONING, DEPTH_RESPONSE, ANCHOR_DESIGN, BIAS, ANCHOR_START)
