"""Every table and figure of the paper as a suite. No torch here."""

from __future__ import annotations

from dataclasses import replace

from scse.suites.paper.controls import CONTROLS
from scse.suites.paper.corpora_and_contexts import TEXT_AND_CONTEXT
from scse.suites.paper.main_text import MAIN_TEXT
from scse.suites.paper.scaling import SCALING

# The label in the paper's source, by which a suite is declared, and the name it goes by here.
NAMES = {
    "stepcond_wt103": "step-conditioned",
    "wt103-depth-response": "depth-response",
    "add-anchor-design": "anchor-design",
    "bias_decomp": "anchor-response",
    "zdfb-empirical": "anchor-start",
    "strong_followup": "strong-baselines",
    "scale50m_x48": "scale-50m",
    "scale95m": "scale-96m",
    "long10k_95m": "longer-96m",
    "adaptive_wt103": "adaptive-22m",
    "adaptive_scale": "adaptive-scales",
    "scale_profile": "cost-profile",
    "contexts": "contexts",
    "owt_train": "openwebtext",
    "c4_train": "c4",
    "heldout_transfer": "transfer",
    "lambada": "lambada",
    "add-scale-real-corpus": "c4-137m",
    "add-c4-long50k": "c4-137m-longer",
    "ablations": "ablations",
    "add-causal-forcing": "forcing-controls",
    "step_film": "step-film",
    "forcing_bias_ratio": "forcing-ratio",
    "secondary_condleak": "leak",
    "operating_point_mechanism": "late-response",
}

PAPER_SUITES = tuple(
    replace(suite, name=NAMES[suite.name], label=suite.name)
    for suite in (*MAIN_TEXT, *SCALING, *TEXT_AND_CONTEXT, *CONTROLS)
)
