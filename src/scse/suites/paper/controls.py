"""The appendix's ablations, forcing-bias controls and mechanism tables."""

from __future__ import annotations

from dataclasses import replace

from scse.suites.paper.main_text import BIAS, BIAS_CLAIMS, EXACT_ZERO, FIRST_BIAS, LATE_BIAS, RAW, diagnosed
from scse.suites.paper.tables import TIE, table
from scse.suites.suite import Arm, Claim
from scse.tasks.columns import headers, loops

_THREE = headers(8, 24, 48)
_ADAPTERS = ("tuned-adapter", "step-adapter")
_SAME_ARITHMETIC = "away from the anchor the mask is 1, so from one seed both runs do the same arithmetic"
_STABILISED = ("looped", "looped-s035", "scalar-gate", "channel-gate", "norm-reset")

ABLATIONS = table(
    "ablations",
    "ablations",
    "Stabilisation and capacity controls",
    loops(8, 24, 48),
    """
    = | Baseline and stabilization controls | wikitext-2
    looped        | 413.2±3.2 | 426.9±3.7 | 451.0±9.0
    looped-s035   | 414.0±2.0 | 429.3±2.8 | 456.3±7.8
    scalar-gate   | 413.5±3.3 | 427.0±3.9 | 451.1±9.4
    channel-gate  | 402.2±3.1 | 421.2±3.0 | 466.5±4.4
    norm-reset    | 387.8±0.9 | 499.0±6.5 | 1045.2±16.1
    = | Capacity and source-centered rows | wikitext-2
    adapter       | 360.0±1.3 | 374.8±1.3 | 397.3±0.9
    unshared-4    | 358.1±2.9 | –         | –
    + unshared-6  | –         | –         | –
    scse          | 355.2±2.4 | 370.1±3.2 | 393.9±3.7
    """,
    [
        Claim("SCSE is the lowest shared block at every depth", "scse", (*_STABILISED, "adapter"), _THREE),
        Claim("At T = 8 SCSE is below four unshared layers of as many parameters", "scse", ("unshared-4",), ("T=8",)),
        Claim("Within the trained depths the periodic reset helps", "norm-reset", ("looped",), ("T=8",)),
        Claim(
            "Beyond the trained depths the periodic reset degrades sharply",
            "norm-reset",
            ("looped", "looped-s035", "scalar-gate", "channel-gate", "adapter", "scse"),
            headers(24, 48),
            lower=False,
        ),
        Claim("The capacity-matched adapter is below every stabilised baseline", "adapter", _STABILISED, _THREE),
    ],
    figure="depth-response",
)

CAUSAL_FORCING = table(
    "add-causal-forcing",
    "forcing-controls",
    "Forcing-bias controls",
    [*loops(8, 24, 48, digits=2), LATE_BIAS, RAW[1]],
    """
    = | | wikitext-103
    tuned-adapter x5       | 156.43±0.58 | 174.40±0.55 | 204.05±1.43 | 1.619
    step-adapter x5        | 156.72±0.49 | 175.61±0.68 | 206.13±1.37 | 1.276
    scse x5: SCSE, s=0.50  | 155.14±0.61 | 171.12±0.76 | 200.10±1.31 | 0
    sc-cond                | 154.66±0.53 | 170.94±0.78 | 200.35±0.98 | 0
    sc-cond-unmasked       | 154.65±0.52 | 170.91±0.79 | 200.31±0.98 | 3.75
    sc-cond-subtractive    | 166.57±0.52 | 174.93±0.87 | 183.07±1.27 | 5.54e-6
    forcing-subtraction    | 156.46±0.23 | 158.86±0.45 | 160.46±0.66 | 0
    """,
    [
        Claim(
            "The mask alone changes nothing",
            "sc-cond-unmasked",
            ("sc-cond",),
            _THREE,
            margin=TIE,
            by_construction=_SAME_ARITHMETIC,
        ),
        Claim("Without the mask the anchor answers", "sc-cond", ("sc-cond-unmasked",), ("R_47",)),
        Claim(
            "Subtracting the anchor's response helps SC-Cond at T = 48", "sc-cond-subtractive", ("sc-cond",), ("T=48",)
        ),
        Claim(
            "Additive forcing subtraction is lowest at T = 24 and T = 48",
            "forcing-subtraction",
            ("tuned-adapter", "step-adapter", "scse", "sc-cond", "sc-cond-unmasked", "sc-cond-subtractive"),
            headers(24, 48),
        ),
        Claim(
            "The adapters answer at their anchors, SCSE does not", "scse", ("tuned-adapter", "step-adapter"), ("R_47",)
        ),
        Claim(
            "Before the mask SC-Cond answers as much as without one",
            "sc-cond",
            ("sc-cond-unmasked",),
            (RAW[1].header,),
            margin=TIE,
            by_construction=_SAME_ARITHMETIC,
        ),
    ],
    figure="depth-response",
)
# Runs of earlier revisions, whose subtractive SC-Cond had the mask on.
_MASKED = Arm(
    "sc-cond-subtractive-masked",
    "sc-cond-subtractive",
    "wikitext-103",
    "SC-Cond, subtractive, with a mask",
    settings={"mask": True},
    beside=True,
    kept=True,
)
CAUSAL_FORCING = replace(CAUSAL_FORCING, arms=(*CAUSAL_FORCING.arms, _MASKED))

STEP_FILM = table(
    "step_film",
    "step-film",
    "A learned modulation per step",
    loops(8, 24, 48, digits=2),
    """
    = | | wikitext-103
    tuned-adapter x5       | 156.43±0.58 | 174.40±0.55 | 204.05±1.43
    step-adapter x5        | 156.72±0.49 | 175.61±0.68 | 206.13±1.37
    film-adapter           | 157.07±0.28 | 178.20±0.99 | 207.65±1.65
    scse x5: SCSE, s=0.50  | 155.14±0.61 | 171.12±0.76 | 200.10±1.31
    """,
    [
        Claim("SCSE is below every adapter", "scse", ("tuned-adapter", "step-adapter", "film-adapter"), _THREE),
        Claim(
            "The tuned adapter is the lowest of the adapters", "tuned-adapter", ("step-adapter", "film-adapter"), _THREE
        ),
    ],
    printed="scse − tuned-adapter | T=8: -1.29 | T=24: -3.28 | T=48: -3.95",
)

BIAS_RATIO = replace(
    BIAS,
    label="forcing_bias_ratio",
    name="forcing-ratio",
    title="The energy of the response at the anchor over that of the update",
    columns=(FIRST_BIAS, LATE_BIAS),
    paper={cell: value for cell, value in BIAS.paper.items() if cell[1] in ("R_0", "R_47")},
    claims=(*BIAS_CLAIMS, EXACT_ZERO),
    figure="bias-ratio",
)

LEAK = table(
    "secondary_condleak",
    "leak",
    "A leak of the deviation",
    loops(8, 48),
    """
    = 22m | WikiText-103 22M fixed depth | wikitext-103
    leak x5  | 155.0±0.6 | 227.5±2.9
    scse x5  | 155.1±0.6 | 200.1±1.3
    = 96m | WikiText-103 95.6M fixed depth | wikitext-103-96m
    leak x5  | 97.4±0.2  | 143.0±1.5
    scse x5  | 96.9±0.3  | 125.9±0.9
    """,
    [
        Claim("22M: tied at T = 8", "leak-22m", ("scse-22m",), ("T=8",), margin=TIE),
        Claim("22M: SCSE is lower at T = 48", "scse-22m", ("leak-22m",), ("T=48",)),
        Claim("95.6M: SCSE is lower at both depths", "scse-96m", ("leak-96m",), headers(8, 48)),
    ],
)

OPERATING_POINT = table(
    "operating_point_mechanism",
    "late-response",
    "Gain, bias and energy late in the loop",
    [
        *loops(48),
        diagnosed("Gain", "gain", 47, 5),
        diagnosed("Bias ratio", "bias_ratio", 47),
        diagnosed("Anchor energy", "anchor_energy", 47, 2),
        diagnosed("Gain at t=0", "gain", 0, beside=True),
    ],
    """
    = | | wikitext-103
    tuned-adapter x5       | 204.1±1.4 | 1.00035 | 1.619 | 9.84  | 1.135±0.002
    scse x5: SCSE, s=0.50  | 200.1±1.3 | 1.00108 | 0.000 | 18.10 | 1.118±0.003
    + looped               | –         | –       | –     | –     | 3.98±0.05
    + step-adapter x5      | –         | –       | –     | –     | 1.135±0.004
    """,
    [
        Claim("SCSE is lower at T = 48", "scse", ("tuned-adapter",), ("T=48",)),
        Claim("SCSE has no bias", "scse", ("tuned-adapter",), ("Bias ratio",)),
        Claim("At t = 0 the adapters' gain is below the baseline's", _ADAPTERS, ("looped",), ("Gain at t=0",)),
        Claim("At t = 0 SCSE's gain is lower still", "scse", _ADAPTERS, ("Gain at t=0",)),
        Claim(
            "Late in the loop the adapters are neutral: their gain is within 0.005 of 1",
            _ADAPTERS,
            (),
            ("Gain",),
            values=(1.0,),
            within=0.005,
        ),
        Claim("Late in the loop SCSE's gain is above 1", "scse", (), ("Gain",), lower=False, values=(1.0,)),
        Claim("Late in the loop SCSE's gain is within 0.005 of 1", "scse", (), ("Gain",), values=(1.0,), within=0.005),
    ],
)

CONTROLS = (ABLATIONS, CAUSAL_FORCING, STEP_FILM, BIAS_RATIO, LEAK, OPERATING_POINT)
