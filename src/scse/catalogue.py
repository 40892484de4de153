"""The catalogue of families: what is known of each recurrence without building it. No torch here.

This is the one place that knows families by name. A row says what a family is called, its equation, its options with
their defaults, what a step costs and what it claims at its anchor; `composer` names the function that builds it
(`scse.recurrence.families` holds ours). Whoever lists, resolves, counts or draws families reads this table, and a law
holds what a row says to what its recurrence does. `docs/adding-a-family.md` walks through adding one.

Notation: B = G the block's update, n parameter-free RMS normalisation, m the zero-deviation mask, σ the sigmoid.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scse.errors import UserError, unknown_name

OptionValue = bool | int | float | str
LARGEST_INTEGER = 10**15

# The paper's values: SCSE's s, the tuned rows' s, the initial α and κ, ε. Which families share them: docs/readings.md
STEP_SCALE = 0.5
TUNED_STEP_SCALE = 0.35
SOURCE_GAIN = 0.15
MASK_THRESHOLD = 1e-8


@dataclass(frozen=True)
class Family:
    """One row of the catalogue.

    `label` is the row's name in tables. `composer` is a function from a shape and the options to a recurrence, or where
    it stands ("package.module:function"). `bodies` counts the block's applications in a step, `uses_t` says whether the
    step looks at t, and `fixed_point` whether the anchor is one, exactly: "raw" before the mask, "masked" by the mask
    alone, "" not. A row named `…-N` stands for every number N, which becomes the option called `numbered` and bounds
    the depth. `paper_extra_matrices` counts d×d matrices that the paper's parameter counts include although its equation
    never uses them. `colour` and `marker` are the family's in every figure.
    """

    name: str
    label: str
    equation: str
    composer: str | Callable[..., Any]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    bodies: int = 1
    uses_t: bool = False
    fixed_point: str = ""
    numbered: str = ""
    paper_extra_matrices: int = 0
    colour: str = "#000000"
    marker: str = "_"

    @classmethod
    def of(cls, name: str, composer: Callable[..., Any], label: str = "", **facts: Any) -> Family:
        """A row for a function: its docstring's first line is the equation, its keyword arguments are the options."""
        parameters = inspect.signature(composer).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        for option, default in options.items():
            if default is inspect.Parameter.empty:
                raise UserError(f"option '{option}' of family '{name}' has no default; give its argument one")
        equation = inspect.cleandoc(composer.__doc__ or "").partition("\n")[0]
        return cls(name, label or name, equation, composer, options, **facts)

    def resolve(self, overrides: Mapping[str, object]) -> dict[str, OptionValue]:
        """All options, the overrides checked against the names and types of the defaults."""
        options = dict(self.options)
        for name, value in overrides.items():
            if name not in options:
                raise unknown_name(f"option of family '{self.name}'", name, options)
            options[name] = typed_like(name, options[name], value)
        return options

    def body_applications(self, loops: float) -> float:
        """N_body(T); a mean number of loops gives the mean number of applications."""
        most = int(self.options[self.numbered]) if self.numbered else math.inf
        return self.bodies * min(loops, most)


def typed_like(name: str, default: OptionValue, value: object) -> OptionValue:
    """`value` (also as written on a command line) as the type of `default`."""
    kind = type(default)
    text = str(value).strip().lower()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text]
        if kind is int and not isinstance(value, float) and abs(int(text)) <= LARGEST_INTEGER:
            return int(text)
        if kind is float and not isinstance(value, bool):
            number = float(text)
            if math.isfinite(number):
                return number
        if kind is str:
            return str(value)
    except (KeyError, ValueError):
        pass
    wanted = {bool: "true or false", int: "a whole number of sensible size", float: "a finite number"}[kind]
    raise UserError(f"option '{name}' must be {wanted}, got '{value}'")


class Catalogue:
    """The rows by name, in order."""

    def __init__(self, *rows: Family) -> None:
        self.rows = {row.name: row for row in rows}

    def __iter__(self) -> Iterator[Family]:
        return iter(self.rows.values())

    def register(self, row: Family) -> None:
        """Add a row from outside the package; a name that is taken is an error, never a replacement."""
        if row.name in self.rows:
            raise UserError(f"there is already a family '{row.name}'; register yours under another name")
        self.rows[row.name] = row

    def find(self, name: str) -> Family:
        """The row called `name`; a row `…-N` is found under every number."""
        if name in self.rows:
            return self.rows[name]
        stem, _, number = name.rpartition("-")
        row = self.rows.get(f"{stem}-N")
        if row is not None and number.isascii() and number.isdigit():
            return replace(row, name=name, options={**row.options, row.numbered: int(number)})
        raise unknown_name("family", name, self.rows, hint="'scse families' lists all")


def _row(name: str, composer: str, label: str, equation: str, look: str, options: Mapping[str, OptionValue], **facts: Any) -> Family:
    colour, marker = look.split()
    return Family(name, label, equation, f"scse.recurrence.families:{composer}", options, colour=colour, marker=marker, **facts)


_ADDITIVE = {"step_scale": STEP_SCALE, "source_gain": SOURCE_GAIN}
_TUNED = {**_ADDITIVE, "step_scale": TUNED_STEP_SCALE}
_PROJECTED = {"normalise_projections": True}
_MASKED = {"mask": True, "mask_threshold": MASK_THRESHOLD}
_SCSE = {"step_scale": STEP_SCALE, "anchor": "learned", **_MASKED, **_PROJECTED}
_CONDITIONED = {**_ADDITIVE, **_MASKED, **_PROJECTED}

_LOOPED = "h' = h + s·B(h + αW_in e)"
_ADAPTED = "h' = h + s·B(h + αW_in h*)"
_CENTERED = "Δ' = Δ + m·s·G(Δ)"

FAMILIES = Catalogue(
    _row("looped", "looped", "Looped Transformer baseline", _LOOPED, "#D55E00 s", _ADDITIVE),
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
    _row("scse", "scse", "SCSE", _CENTERED, "#009E73 o", _SCSE, fixed_point="raw", paper_extra_matrices=1),
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
