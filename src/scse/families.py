"""The table of families, and the one place that knows them by name. No torch here.

A row says what a family is called, its equation, its options with their defaults, what a step costs and what it claims
at its anchor, and which function of `scse.recurrence` composes it. Whoever lists, resolves, counts or draws families
reads this table, and a law holds what a row says to what its recurrence does. `docs/adding-a-family.md` walks through
adding one.

Notation: B = G the core's update, R(x) = x + B(x), n parameter-free and n_w learned RMS normalisation, m the
zero-deviation mask, σ the sigmoid (or a deviation), ε truncated normal noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scse.catalogue import Catalogue, Family, OptionValue

Options = Mapping[str, OptionValue]

# The families that other code has a reason to name; it takes their names from here.
SCSE, LOOPED = "scse", "looped"
HUGINN, OURO, PARCAE = "huginn", "ouro", "parcae"
DEFAULT_FAMILY = SCSE

# The paper's values: SCSE's s, the tuned rows' s, the initial α and κ, ε. Which families share them: docs/readings.md
STEP_SCALE = 0.5
TUNED_STEP_SCALE = 0.35
SOURCE_GAIN = 0.15
MASK_THRESHOLD = 1e-8


def _row(name: str, composer: str, label: str, equation: str, look: str, options: Options, **facts: Any) -> Family:
    """A row whose composer is a function of `scse.recurrence`; `look` is its colour and marker."""
    colour, marker = look.split()
    return Family(name, label, equation, composer, options, colour=colour, marker=marker, **facts)


_ADDITIVE: Options = {"step_scale": STEP_SCALE, "source_gain": SOURCE_GAIN}
_TUNED: Options = {**_ADDITIVE, "step_scale": TUNED_STEP_SCALE}
_PROJECTED: Options = {"normalise_projections": True}
_MASKED: Options = {"mask": True, "mask_threshold": MASK_THRESHOLD}
_SCSE: Options = {"step_scale": STEP_SCALE, "anchor": "learned", **_MASKED, **_PROJECTED}
_CONDITIONED: Options = {**_ADDITIVE, **_MASKED, **_PROJECTED}

_LOOPED = "h' = h + s·B(h + αW_in e)"
_ADAPTED = "h' = h + s·B(h + αW_in h*)"
_CENTERED = "Δ' = Δ + m·s·G(Δ)"

_PAPER = (
    _row(LOOPED, "looped", "Looped Transformer baseline", _LOOPED, "#D55E00 s", _ADDITIVE),
    _row("looped-s035", "looped", "Residual step scale s=0.35", _LOOPED, "#D55E00 v", _TUNED),
    _row(
        "scalar-gate",
        "scalar_gate",
        "Learned scalar gate",
        "h' = h + g·B(h + αW_in e), g learned",
        "#E69F00 s",
        {"gate_start": STEP_SCALE, "source_gain": SOURCE_GAIN},
    ),
    _row(
        "channel-gate",
        "channel_gate",
        "Channel recurrent gate",
        "h' = h + σ(W_g n(h) + b_g) ⊙ B(h + αW_in e)",
        "#E69F00 D",
        {"source_gain": SOURCE_GAIN},
    ),
    _row(
        "norm-reset",
        "norm_reset",
        "Periodic normalization reset",
        f"{_LOOPED}; after every p-th step h' ← n(h')",
        "#CC79A7 s",
        {**_ADDITIVE, "reset_period": 4},
        uses_t=True,
    ),
    _row("adapter", "adapter", "Capacity-matched adapter", _ADAPTED, "#0072B2 v", {**_ADDITIVE, **_PROJECTED}),
    _row("tuned-adapter", "adapter", "Tuned adapter, s=0.35", _ADAPTED, "#0072B2 ^", {**_TUNED, **_PROJECTED}),
    _row(
        "step-adapter",
        "step_adapter",
        "Recurrent-step-conditioned adapter",
        "h' = h + s·B(h + αW_in h* + τP_step γ_t)",
        "#56B4E9 D",
        {**_TUNED, "step_signal": 0.015, **_PROJECTED},
        uses_t=True,
    ),
    _row(
        "film-adapter",
        "film_adapter",
        "Step-FiLM adapter",
        "h' = h + s·B((1 + ρg_t) ⊙ (h + αW_in h*) + ρb_t)",
        "#56B4E9 P",
        {**_TUNED, "film_scale": 0.1, "film_steps": 8, **_PROJECTED},
        uses_t=True,
    ),
    # The paper's counts for SCSE include a conditioning matrix W_c that its recurrence never applies.
    _row(SCSE, "scse", "SCSE", _CENTERED, "#009E73 o", _SCSE, fixed_point="raw", paper_extra_matrices=1),
    *(
        _row(
            f"scse-{anchor}",
            "scse",
            f"SCSE, {words}",
            _CENTERED,
            f"#009E73 {marker}",
            {**_SCSE, "anchor": anchor},
            fixed_point="raw",
            paper_extra_matrices=1,
        )
        for anchor, words, marker in (
            ("embedding", "anchor e", "v"),
            ("initial", "anchor H_0(e)", "x"),
            ("random", "frozen random anchor", "d"),
        )
    ),
    _row(
        "sc-cond",
        "sc_cond",
        "SC-Cond, masked",
        "Δ' = Δ + m·s·G(Δ + κW_c h*)",
        "#F0E442 o",
        _CONDITIONED,
        fixed_point="masked",
    ),
    _row(
        "sc-cond-unmasked",
        "sc_cond",
        "SC-Cond, no mask",
        "Δ' = Δ + s·G(Δ + κW_c h*)",
        "#F0E442 v",
        {**_CONDITIONED, "mask": False},
    ),
    _row(
        "sc-cond-subtractive",
        "sc_cond_subtractive",
        "SC-Cond, subtractive",
        "Δ' = Δ + s·(G(Δ + c) − G(c)), c = κW_c h*",
        "#999933 o",
        {**_CONDITIONED, "mask": False},
        bodies=2,
        fixed_point="raw",
    ),
    _row(
        "forcing-subtraction",
        "forcing_subtraction",
        "Additive + forcing subtraction",
        "Δ' = Δ + s·(B(h* + Δ + αW_in e) − B(h* + αW_in e))",
        "#CC79A7 o",
        {**_ADDITIVE, **_PROJECTED},
        bodies=2,
        fixed_point="raw",
    ),
    _row(
        "leak",
        "leak",
        "Leak diagnostic",
        "Δ' = (1 − λ)Δ + m·s·G(Δ + κW_c h*)",
        "#999999 o",
        {**_CONDITIONED, "leak": 0.02},
        fixed_point="masked",
    ),
    _row(
        "unshared-N",
        "unshared",
        "Unshared Transformer-N",
        "h' = h + B_t(h) for t < N, then h' = h",
        "#000000 _",
        {"layers": 8},
        uses_t=True,
        numbered="layers",
    ),
)

_NOISE: Options = {"start": "noise", "noise": 1.0, "noise_seed": 0}
_NORMED: Options = {"normalise_input": True}
_CENTRED: Options = {"anchor": "learned", **_NORMED, **_PROJECTED}
_CONCATENATED = "n_w(R(A[h; n(e)]))"
_DECAYED = "R(λ ⊙ h + δ ⊙ (W n(e)))"
_ORTHOGONAL = "R(r − (⟨r, u⟩/(‖u‖² + ε))u + u)"
_WITHOUT_FORCING = "Δ' = F(h* + Δ) − F(h*), F(h) = "

# Recurrences of other projects: docs/rivals.md says where each comes from and what differs.
_RIVALS = (
    _row(
        HUGINN,
        "huginn",
        "Huginn (recurrent depth)",
        f"h' = {_CONCATENATED}, h_0 = σε",
        "#882255 o",
        {**_NOISE, **_NORMED, "step_norm": True},
    ),
    _row(
        PARCAE,
        "parcae",
        "Parcae",
        f"h' = {_DECAYED}, λ = exp(−δ ⊙ e^A), h_0 = σε, read as C h",
        "#332288 o",
        {**_NOISE, **_NORMED, "recall": True, "decay": True, "step_scale": 1.0, "state_norm": False},
    ),
    _row(
        "orthogonal-injection",
        "orthogonal_injection",
        "Orthogonal injection",
        f"h' = {_ORTHOGONAL}, r = λ ⊙ h, u = δ ⊙ (W n(e)), h_0 = σε, read as C h",
        "#88CCEE o",
        {**_NOISE, **_NORMED},
    ),
    _row(OURO, "ouro", "Ouro (LoopLM)", "h' = n_w(R(h)), h_0 = e", "#117733 s", {"exit_gate": False}),
    _row(
        "loopformer",
        "loopformer",
        "LoopFormer",
        "h' = h + B(h; τ_t, δ), τ_t = tδ, δ = 1/N, h_0 = e",
        "#AA4499 ^",
        {"time_steps": 8},
        uses_t=True,
    ),
    _row(
        "universal",
        "universal",
        "Universal Transformer with ACT",
        "h' = R(h + τγ_t), read as Σ_j p_j h_j with halting probabilities p_j = σ(w·h_j + b) that add up to 1",
        "#DDCC77 D",
        {"step_signal": 0.015, "halting_bias": -2.0, "halting_epsilon": 0.01},
        uses_t=True,
    ),
    _row(
        "centred-huginn",
        "centred_huginn",
        "Huginn, source-centred",
        f"{_WITHOUT_FORCING}{_CONCATENATED}",
        "#882255 v",
        {**_CENTRED, "step_norm": True},
        bodies=2,
        fixed_point="raw",
    ),
    _row(
        "centred-parcae",
        "centred_parcae",
        "Parcae, source-centred",
        f"{_WITHOUT_FORCING}{_DECAYED}, read as C h",
        "#332288 v",
        _CENTRED,
        bodies=2,
        fixed_point="raw",
    ),
    _row(
        "centred-orthogonal-injection",
        "centred_orthogonal_injection",
        "Orthogonal injection, source-centred",
        f"{_WITHOUT_FORCING}{_ORTHOGONAL}, r = λ ⊙ h, read as C h",
        "#88CCEE v",
        _CENTRED,
        bodies=2,
        fixed_point="raw",
    ),
)

# What the comparison with the rivals led to: docs/rivals.md.
_OURS = (
    _row(
        "scse-recall",
        "scse_recall",
        "SCSE, decayed, with recall",
        "Δ' = λ ⊙ Δ + s·G(Δ + γρ(Δ)n(u)), u = W n(e) less its part along h*, ρ the rms, λ = exp(−softplus(d))",
        "#44AA99 o",
        {
            "step_scale": STEP_SCALE,
            "anchor": "learned",
            "decay": True,
            "recall": "orthogonal",
            "state_norm": False,
            "normalise_source": False,
            **_PROJECTED,
        },
        fixed_point="raw",
    ),
)

FAMILIES = Catalogue("family", (*_PAPER, *_RIVALS, *_OURS), hint="'scse families' lists all")
