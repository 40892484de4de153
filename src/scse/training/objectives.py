"""What a training step minimises: terms over one unroll, added up with their weights.

Shapes: T loops of a step, B batch, L positions, d width. L_t = Σ −log p(target) after t loops, over the targets that
count, of which there are N. Every term is a sum like L_t: a mean over positions or examples is multiplied by N, so that
weights do not depend on how a batch is split.

Only the last k loops get gradients where a run says `backprop=k`; terms over many loops then are over those.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scse.config import TrainConfig
from scse.config.objective import EXPECTED, LAST, TERMS_TABLE, Weighted, parse_objective
from scse.devices import send
from scse.errors import UserError
from scse.model import LoopedLM, State
from scse.nn.loss import counted, head_nll
from scse.nn.without_storage import without_storage
from scse.recurrence import Recurrence, build
from scse.registry import Registry

SMALLEST = 1e-12


@dataclass(frozen=True)
class Walk:
    """A micro-batch taken through its loops: the states that terms look at, the last one at the end.

    `states` are those after the loops with gradients, and the one before them; only the last where no term needs more.
    """

    model: LoopedLM
    targets: Tensor
    states: Sequence[State]
    recompute: bool = False

    @property
    def last(self) -> State:
        return self.states[-1]

    @property
    def loops(self) -> int:
        """T"""
        return self.last.t

    @property
    def moved(self) -> Sequence[State]:
        """The states after each loop with gradients."""
        return self.states[1:]

    @property
    def counted(self) -> Tensor:
        """N"""
        return (self.targets >= 0).sum()

    def halfway(self) -> State:
        """The state after S = ⌈T/2⌉ loops, or the first with gradients after that."""
        return next(state for state in self.moved if state.t >= math.ceil(self.loops / 2))

    def shared_nll(self, shares: Tensor) -> Tensor:
        """Σ_t Σ_i s_{t,i} · (−log p_t(target_i)) for shares [t, B, L]; all loops go through the head in chunks."""
        model, chosen = self.model, counted(self.targets)
        outputs = torch.stack([model.normed(model.outputs(state.hidden)).flatten(0, 1) for state in self.moved])
        shares, targets = shares.flatten(1), self.targets.flatten()
        if chosen is not None:
            outputs, shares, targets = outputs[:, chosen], shares[:, chosen], targets[chosen]
        repeated = targets.repeat(len(outputs))
        return head_nll(outputs.flatten(0, 1), model.head_weight, repeated, shares=shares.flatten().to(outputs.dtype))


class Term(ABC):
    """One part of an objective. `every`: it needs the states of all loops with gradients, not only the last.

    Its docstring is its equation. Yours is registered with `scse.register(MyTerm())`. `number` is what stands after
    a colon behind its name, `default` where nothing does; one that takes none says so with `numbered = False`. `extra`
    counts steps taken beyond the T of the unroll. `predicts`: it looks at predictions.
    """

    name: ClassVar[str]
    table: ClassVar[str] = TERMS_TABLE
    every: ClassVar[bool] = False
    default: ClassVar[float] = 0.0
    numbered: ClassVar[bool] = True
    extra: ClassVar[int] = 0
    predicts: ClassVar[bool] = True

    def check(self, recurrence: Recurrence) -> None:
        """Refuse a recurrence that lacks what the term is about."""
        return

    @abstractmethod
    def value(self, walk: Walk, number: float) -> Tensor: ...


class Last(Term):
    """L_T"""

    name = LAST
    numbered = False

    def value(self, walk: Walk, number: float) -> Tensor:
        return walk.model.state_nll(walk.last.hidden, walk.targets)


class Mean(Term):
    """Σ_t w_t L_t with w_t = t^p / Σ_s s^p; `mean:1` weighs later loops more, `mean` all alike (p = 0)."""

    name = "mean"
    every = True

    def value(self, walk: Walk, number: float) -> Tensor:
        times = walk.last.z.new_tensor([float(state.t) for state in walk.moved])
        shares = torch.softmax(number * times.log(), 0)  # no power overflows
        return walk.shared_nll(shares[:, None, None].expand(-1, *walk.targets.shape))


class Short(Term):
    """L_S with S = ⌈T/2⌉"""

    name = "short"
    numbered = False
    every = True

    def value(self, walk: Walk, number: float) -> Tensor:
        return walk.model.state_nll(walk.halfway().hidden, walk.targets)


class Consistency(Term):
    """N · mean ‖h_S − h_T‖² / ‖h_T‖² with S = ⌈T/2⌉ and h_T taken as given: the deep state teaches the shallow one."""

    name = "consistency"
    numbered = False
    predicts = False
    every = True

    def value(self, walk: Walk, number: float) -> Tensor:
        return walk.counted * _distance(walk.halfway().hidden, walk.last.hidden.detach())


class FixedPoint(Term):
    """N · mean ‖h_{T+1} − h_T‖² / ‖h_T‖²: one more loop should change nothing."""

    name = "fixed-point"
    numbered = False
    predicts = False
    extra = 1

    def value(self, walk: Walk, number: float) -> Tensor:
        return walk.counted * _distance(walk.last.step(walk.recompute).hidden, walk.last.hidden)


class Expansion(Term):
    """N · mean max(0, ‖J v‖² / ‖v‖² − 1) with J the Jacobian of step T at z_T and v a normal direction per example."""

    name = "expansion"
    numbered = False
    predicts = False
    extra = 2  # a step and its derivative

    def value(self, walk: Walk, number: float) -> Tensor:
        state = walk.last
        direction = torch.randn(state.z.shape, device=state.z.device).to(state.z.dtype)

        def step(z: Tensor) -> Tensor:
            return state.recurrence.step(state.t, z, state.frame)

        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward mode
            pushed: Tensor = torch.func.jvp(step, (state.z,), (direction,))[1]
        gain: Tensor = pushed.flatten(1).square().sum(1) / direction.flatten(1).square().sum(1)
        return walk.counted * (gain - 1).clamp_min(0).mean()


class Ponder(Term):
    """N · mean (n + r) over positions, the ponder cost of ACT: n loops until a position has halted (or T), and
    r = 1 − p for the probability p that it had spent before the last of them."""

    name = "ponder"
    numbered = False
    predicts = False
    every = True

    def check(self, recurrence: Recurrence) -> None:
        if not recurrence.halting.spends:
            raise UserError(
                "objective 'ponder' needs halting probabilities, and this recurrence has none; take --family universal"
            )

    def value(self, walk: Walk, number: float) -> Tensor:
        halting = walk.model.recurrence.halting
        spent = [halting.spent(state.z) for state in walk.states]
        before = torch.stack([probability for probability in spent[:-1] if probability is not None])
        going = before < 1
        return walk.counted * (going.sum(0) + 1 - torch.where(going, before, 0).amax(0)).mean()


class Expected(Term):
    """Σ_t p_t L_t − β·H(p), token by token, with p_t = λ_t ∏_{j<t}(1 − λ_j) of the exit gate; β is its number."""

    name = EXPECTED
    every = True
    default = 0.05

    def check(self, recurrence: Recurrence) -> None:
        if recurrence.exit is None:
            raise UserError(
                "objective 'expected' trains an exit gate, and this model has none; begin a run with it, or let "
                "'scse train-exit' give a finished run one"
            )

    def value(self, walk: Walk, number: float) -> Tensor:
        gate = walk.model.recurrence.exit
        assert gate is not None, "checked"
        shares = gate.distribution([state.hidden for state in walk.states])
        entropy = -(shares * shares.clamp_min(SMALLEST).log()).sum(0)
        return walk.shared_nll(shares) - number * (entropy * (walk.targets >= 0)).sum()


TERMS: Registry[Term] = Registry(
    "objective", (Last(), Mean(), Short(), Consistency(), FixedPoint(), Expansion(), Ponder(), Expected())
)


def find_term(wanted: Weighted) -> Term:
    """The term of a name. A number that it would ignore is refused."""
    term = TERMS.find(wanted.name)
    if wanted.number is not None and not term.numbered:
        weighed = replace(wanted, weight=wanted.number if wanted.weight == 1 else wanted.weight, number=None)
        raise UserError(f"'{term.name}' takes no number, got '{wanted}'; weights stand before names: {weighed}")
    return term


def check_run(config: TrainConfig) -> None:
    """Refuse what does not go together, units with their options and terms with the recurrence, before any work."""
    with without_storage():
        recurrence = build(config.model)
    check_terms(config.objective, recurrence)
    if not any(wanted.weight and find_term(wanted).predicts for wanted in parse_objective(config.objective)):
        raise UserError(f"objective '{config.objective}' has no term that looks at predictions; begin it with last+")
    if recurrence.core.trained_depth is not None and (config.backprop or config.depths != TrainConfig.depths):
        raise UserError(
            f"{config.model.family} has layers of its own in the place of loops; leave --depths and --backprop out"
        )


def check_terms(objective: str, recurrence: Recurrence) -> None:
    for wanted in parse_objective(objective):
        find_term(wanted).check(recurrence)


def steps_beyond(objective: str) -> int:
    """Steps that the terms of an objective take beyond the loops of the unroll."""
    return sum(find_term(term).extra for term in parse_objective(objective))


class Objective(nn.Module):
    """A training loss as a module, so that wrappers see one forward call: the weighted terms of a micro-batch."""

    def __init__(self, model: LoopedLM, objective: str = LAST, backprop: int = 0, recompute: bool = False) -> None:
        super().__init__()
        check_terms(objective, model.recurrence)
        self.model = model
        self.backprop = backprop
        self.recompute = recompute
        wanted = [(find_term(term), term) for term in parse_objective(objective)]
        self.terms = [(term, w.weight, term.default if w.number is None else w.number) for term, w in wanted]

    @property
    def leaves_weights_out(self) -> bool:
        """Whether some weights may get no gradient in a step: those of the first loops, or a gate without its term."""
        gated = self.model.recurrence.exit is not None and not any(term.name == EXPECTED for term, _, _ in self.terms)
        return bool(self.backprop) or gated

    def forward(self, ids: Tensor, targets: Tensor, loops: int | np.ndarray) -> Tensor:
        """`loops` is the depth of all sequences, or of each; those of one depth go through their loops together."""
        value = self._sum(ids, targets, loops)
        if not self.leaves_weights_out:
            return value
        # Every weight gets a gradient, if only zero: processes at different depths must exchange the same ones.
        used = [parameter.flatten()[0] for parameter in self.parameters() if parameter.requires_grad]
        return value + 0 * torch.stack(used).sum()

    def _sum(self, ids: Tensor, targets: Tensor, loops: int | np.ndarray) -> Tensor:
        if isinstance(loops, int):
            return self._value(ids, targets, loops)
        values = []
        for depth in np.unique(loops):
            rows = send(torch.from_numpy(np.flatnonzero(loops == depth)), ids.device)
            values.append(self._value(ids[rows], targets[rows], int(depth)))
        return torch.stack(values).sum()

    def _value(self, ids: Tensor, targets: Tensor, loops: int) -> Tensor:
        every = any(term.every for term, _, _ in self.terms)
        walk = Walk(self.model, targets, self._states(ids, loops, every), self.recompute)
        total: Tensor | None = None
        for term, weight, number in self.terms:
            value = term.value(walk, number)
            value = value if weight == 1 else weight * value
            total = value if total is None else total + value
        assert total is not None
        return total

    def _states(self, ids: Tensor, loops: int, every: bool) -> list[State]:
        """The states that a walk holds. Loops before the last `backprop` leave nothing behind for the backward pass."""
        first = max(0, loops - self.backprop) if self.backprop else 0
        unrolled = self.model.unroll(ids, self.recompute)
        state = next(unrolled)
        kept = [state]
        while state.t < loops:
            with torch.set_grad_enabled(torch.is_grad_enabled() and state.t >= first):
                state = unrolled.send(state)
            kept = [*kept, state] if every and state.t > first else [state]
        return kept


def _distance(here: Tensor, there: Tensor) -> Tensor:
    """mean ‖here − there‖² / ‖there‖² over positions"""
    size = there.square().sum(-1).clamp_min(SMALLEST)
    return ((here - there).square().sum(-1) / size).mean()
