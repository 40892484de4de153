"""Suites about depth itself: problems that need it, training for it, and exits that save it. No torch here.

None of them is in the paper, so there are no printed values. The claims were written down before the runs, except for
those of `depth-training-small` and the one about solved examples, which state what runs had shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from scse.config import FOR_DEPTH, protocol
from scse.families import FAMILIES
from scse.suites.suite import Arm, Claim, Column, Settings, Suite
from scse.tasks.columns import headers, loops, right, share

# The pointer chase small enough for minutes: the hardest answers are five hops away, and twice that still fits.
HOPS = 5
TWICE = 2 * HOPS
MINI_STEPS = 700
CHASE: dict[str, object] = {"nodes": 12, "hops": HOPS, "roots": 30}
FULL_DEPTH = HOPS + 2  # the deepest that training goes
FAR = 48
_CHASE_DEPTHS = (1, FULL_DEPTH, 16, FAR)
# A layer of its own for each loop of the full depth, all so narrow that there are as many parameters as in the loops.
UNSHARED = f"unshared-{FULL_DEPTH}"
NARROW: Settings = {"width": 26, "ff_width": 104}
LEAD = 30  # points


def chase(steps: int) -> dict[str, object]:
    """The pointer chase in so many steps; the depths grow over the first two thirds of them."""
    return {**protocol("pointer-chase"), "steps": steps, "depth_warmup": steps * 9 // 14}


def answers(difficulty: int | None, depth: int) -> Column:
    """The share of right answers so many hops away after so many loops, in percent."""
    what = "all" if difficulty is None else f"{difficulty} hops"
    return right(f"{what}, T={depth}", depth, difficulty)


def solved(depth: int) -> Column:
    """The share of examples with every answer right after so many loops, in percent."""
    return share(f"solved, T={depth}", "accuracy", "exact", depth)


def chase_arm(family: str, label: str = "", name: str = "", group: str = "", **changes: object) -> Arm:
    """A family that learns the chase."""
    label = label or FAMILIES.find(family).label
    about = name or family, family, "pointer-chase", label, group
    return Arm(*about, settings={**CHASE, **changes}, mini=chase(MINI_STEPS) | CHASE | changes)


def kept(text: str, arm: str, depth: int) -> Claim:
    """An arm answers as much at the deepest as at this depth, to one point."""
    return Claim(text, arm, (arm,), (answers(None, FAR).header,), against=(answers(None, depth).header,), within=1.0)


_LIMIT, _ALL = answers(HOPS, FULL_DEPTH).header, answers(None, FULL_DEPTH).header
_SHALLOW = answers(None, 1).header
_FURTHER = answers(TWICE, 16).header
_LOOPED = ("looped", "channel-gate", "leak", "tuned-adapter", "step-adapter", "scse", "sc-cond")
_RIVALS = ("parcae", "orthogonal-injection", "huginn", "centred-parcae", "scse-recall")

DEPTH_TASKS = Suite(
    name="depth-tasks",
    title=f"Pointer chase, 12 nodes, trained to {HOPS} hops with 1 to {FULL_DEPTH} loops: right answers in %",
    arms=(
        *(chase_arm(family, group="The paper's families") for family in _LOOPED),
        *(chase_arm(family, group="Rivals") for family in _RIVALS),
        chase_arm(UNSHARED, "Unshared, equal parameters", "narrow", "Layers of their own", **NARROW),
        chase_arm(UNSHARED, "Unshared, equal FLOPs", "wide", "Layers of their own"),
    ),
    columns=(
        *(answers(HOPS, depth) for depth in (1, FULL_DEPTH, FAR)),
        *(answers(None, depth) for depth in _CHASE_DEPTHS),
        *(answers(TWICE, depth) for depth in (12, 16, FAR)),
        *(solved(depth) for depth in (FULL_DEPTH, FAR)),
    ),
    claims=(
        *(
            Claim(f"{family}: depth is used", family, (family,), (_ALL,), lower=False, against=(_SHALLOW,))
            for family in ("looped", "scse", "parcae")
        ),
        Claim("SCSE is above the looped baseline at the trained limit", "scse", ("looped",), (_LIMIT,), lower=False),
        Claim(
            "Loops are above unshared layers of as many parameters, and of as many FLOPs, at the trained limit",
            ("looped", "scse", "parcae"),
            ("narrow", "wide"),
            (_LIMIT,),
            lower=False,
        ),
        Claim(
            f"Loops get whole examples right {LEAD} points more often than unshared layers of as many parameters",
            ("looped", "scse", "parcae"),
            ("narrow",),
            (solved(FULL_DEPTH).header,),
            lower=False,
            by=LEAD,
        ),
        Claim(
            "A recurrence that sees its input again goes further: Parcae is above SCSE at twice the hops",
            "parcae",
            ("scse",),
            (_FURTHER,),
            lower=False,
        ),
        *(
            kept(f"{name} keeps its accuracy at T = {FAR} (within 1 point of T = {FULL_DEPTH})", arm, FULL_DEPTH)
            for name, arm in (("SCSE", "scse"), ("Parcae", "parcae"))
        ),
    ),
    figure="accuracy-response",
)

# Ways to train for depth: the paper's; Huginn's depths, and with terms more; and depths spread over the octaves, added
# after Huginn's had been seen to teach the pointer chase less well (one seed).
RECIPES: dict[str, tuple[str, Settings]] = {
    "uniform": ("T uniform, all gradients (the paper's)", {}),
    "poisson": ("T log-normal Poisson around 8, last 4 loops", {"depths": "lognormal-poisson:8", "backprop": 4}),
    "fixed-point": (
        "… + 0.05 fixed-point",
        {"depths": "lognormal-poisson:8", "backprop": 4, "objective": "last+0.05*fixed-point"},
    ),
    "expansion": (
        "… + 0.05 fixed-point + 0.05 expansion",
        {"depths": "lognormal-poisson:8", "backprop": 4, "objective": "last+0.05*fixed-point+0.05*expansion"},
    ),
    "consistency": (
        "… + 0.1 short + 0.1 consistency",
        {"depths": "lognormal-poisson:8", "backprop": 4, "objective": "last+0.1*short+0.1*consistency"},
    ),
    "octaves": ("T log-uniform to 32, last 8 loops", FOR_DEPTH),
}
_TRAINED = ("scse", "looped")
STEPS = 2000


def _recipes(family: str, chase: bool) -> Sequence[Arm]:
    found = []
    for recipe, (label, changes) in RECIPES.items():
        name, group = f"{family}-{recipe}", FAMILIES.find(family).label
        if chase:
            found.append(chase_arm(family, label, name, group, **changes))
        else:
            found.append(
                Arm(name, family, "wikitext-2", label, group, settings=changes, mini={"steps": STEPS, **changes})
            )
    return found


DEPTH_TRAINING = Suite(
    name="depth-training",
    title="Training for depth: perplexity over the loops, by how the depth is drawn and what is minimised",
    arms=tuple(arm for family in _TRAINED for arm in _recipes(family, chase=False)),
    columns=tuple(loops(1, 4, 8, 12, 16, 24, 48)),
    claims=tuple(
        Claim(
            f"SCSE, {RECIPES[recipe][0]}: T = 48 is at most 2 % above T = 8",
            f"scse-{recipe}",
            (f"scse-{recipe}",),
            headers(48),
            against=headers(8),
            margin=0.02,
            no_worse=True,
        )
        for recipe in RECIPES
    )
    + tuple(
        Claim(
            f"SCSE, {RECIPES[recipe][0]}: T = 8 is at most 1 % above the paper's way to train",
            f"scse-{recipe}",
            ("scse-uniform",),
            headers(8),
            margin=0.01,
            no_worse=True,
        )
        for recipe in RECIPES
        if recipe != "uniform"
    ),
    figure="depth-response",
)

DEPTH_TRAINING_CHASE = Suite(
    name="depth-training-chase",
    title="Training for depth on the pointer chase: right answers in %",
    arms=tuple(arm for family in _TRAINED for arm in _recipes(family, chase=True)),
    columns=(*(answers(HOPS, depth) for depth in (8, FAR)), *(answers(None, depth) for depth in (1, 8, 16, FAR))),
    claims=tuple(
        kept(f"SCSE, {RECIPES[recipe][0]}: T = {FAR} is within 1 point of T = 8", f"scse-{recipe}", 8)
        for recipe in RECIPES
    ),
    figure="accuracy-response",
)

# The same question at a fifth of the cost: every answer at most three hops away.
SMALL: Settings = {"nodes": 8, "hops": 3, "batch": 32, "steps": 400, "depth_warmup": 257}
_SMALL_LIMIT, _SMALL_DEPTH = 3, 5
_SMALL_RECIPES = ("uniform", "octaves")
_SMALL_ALL, _SMALL_FAR = answers(None, _SMALL_DEPTH).header, answers(None, FAR).header

DEPTH_TRAINING_SMALL = Suite(
    name="depth-training-small",
    title=f"Training for depth on a small pointer chase, 8 nodes and {_SMALL_LIMIT} hops: right answers in %",
    arms=tuple(
        chase_arm(family, label, f"{family}-{recipe}", FAMILIES.find(family).label, **{**SMALL, **changes})
        for family in _TRAINED
        for recipe, (label, changes) in RECIPES.items()
        if recipe in _SMALL_RECIPES
    ),
    columns=(
        *(answers(_SMALL_LIMIT, depth) for depth in (_SMALL_DEPTH, FAR)),
        *(answers(None, depth) for depth in (1, _SMALL_DEPTH, 16, FAR)),
    ),
    claims=(
        *(
            kept(
                f"SCSE, {RECIPES[recipe][0]}: T = {FAR} is within 1 point of T = {_SMALL_DEPTH}",
                f"scse-{recipe}",
                _SMALL_DEPTH,
            )
            for recipe in _SMALL_RECIPES
        ),
        Claim(
            f"SCSE: depths over the octaves are above the paper's at T = {FAR}",
            "scse-octaves",
            ("scse-uniform",),
            (_SMALL_FAR,),
            lower=False,
        ),
        Claim(
            f"SCSE: depths over the octaves cost less than 1 point at T = {_SMALL_DEPTH}",
            "scse-octaves",
            ("scse-uniform",),
            (_SMALL_ALL,),
            lower=False,
            within=1.0,
            no_worse=True,
        ),
    ),
    figure="accuracy-response",
)

_RULES = ("update", "relative", "kl", "margin", "lookahead", "gate")
_LEARNED = ("gate", "lookahead")


EXITS = Suite(
    name="exits",
    title="Exit rules at a loss of at most 0.5 % of perplexity: loops saved against the best fixed depth, in %",
    arms=tuple(
        Arm(name, name, "wikitext-2", FAMILIES.find(name).label, mini={"steps": STEPS}) for name in ("scse", "looped")
    ),
    columns=(
        *(share(f"{rule}, loops saved", "exits", "saved", rule=rule) for rule in _RULES),
        *(Column(f"{rule}, perplexity change", "exits", "ppl_change", unit=100, rule=rule) for rule in _RULES),
        *(Column(f"{rule}, time over fixed", "exits", "time", rule=rule) for rule in _RULES),
    ),
    claims=(
        Claim(
            "SCSE: a learned or a lookahead exit saves a quarter of the loops",
            "scse",
            (),
            tuple(f"{rule}, loops saved" for rule in _LEARNED),
            lower=False,
            values=(25.0,),
            any=True,
        ),
    ),
)

DEPTH_SUITES = (DEPTH_TASKS, DEPTH_TRAINING, DEPTH_TRAINING_CHASE, DEPTH_TRAINING_SMALL, EXITS)
