"""The one recurrence: every family is this module with other units in its slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scse.nn import apply_layers
from scse.nn.block import Pasts, lets_compile
from scse.recurrence.base import Coordinates, Frame, LoopMemory, Unit, anchor_of
from scse.recurrence.drives import BareState
from scse.recurrence.modifiers import KeepState, NoHalting, NoMask, NoReset
from scse.recurrence.reading import ExitGate, ReadState
from scse.recurrence.slots import Anchor, Core, Drive, Gain, Halting, Keep, Mask, Read, Reset, Start, Update
from scse.recurrence.updates import Direct


def combine(
    recurrence: Recurrence, z: Tensor, x: Tensor, u: Tensor, frame: Frame, masked: bool, memory: LoopMemory | None
) -> Tensor:
    """keep(z, x) + mask(Δ)·gain(z, u)"""
    q: Tensor = recurrence.gain(z, u)
    if masked:
        q = recurrence.mask(recurrence.coordinates, z, frame, q, memory)
    kept: Tensor = recurrence.keep(z, x)
    return kept + q


class Recurrence(nn.Module):
    """z' = halting( z, reset_t( keep(z, x_t) + mask(Δ)·gain(z, u_t) ) )  with  x_t = drive_t(z)  and  u_t = B(x_t), or
    its subtractive form.

    Slots left out are the identity: the core sees the bare state, nothing is masked, leaked, reset or halted, and the
    state is read as it is. `exit` is a gate for exit rules and objectives; the step does not look at it.
    """

    combined: Callable[..., Tensor] = staticmethod(combine)  # or what it was compiled to

    def __init__(
        self,
        core: Core,
        coordinates: Coordinates,
        *,
        start: Start,
        anchor: Anchor,
        gain: Gain,
        drive: Drive | None = None,
        update: Update | None = None,
        mask: Mask | None = None,
        keep: Keep | None = None,
        reset: Reset | None = None,
        halting: Halting | None = None,
        read: Read | None = None,
        exit: ExitGate | None = None,
    ) -> None:
        super().__init__()
        self.core = core
        self.coordinates = coordinates
        self.start = start
        self.anchor = anchor
        self.drive = drive or BareState()
        self.update = update or Direct()
        self.gain = gain
        self.mask = mask or NoMask()
        self.keep = keep or KeepState()
        self.reset = reset or NoReset()
        self.halting = halting or NoHalting()
        self.read = read or ReadState()
        self.exit = exit

    def compile_step(self, **how: Any) -> None:
        """Compile what every step does alike; `how` is told to `torch.compile`.

        That is the layers, and everything from their update to the new state but for a reset. Neither is told the
        number of the step, so that one compilation serves all loops and depths; what does look at it stays outside.
        Steps under a memory are compiled where it is fixed.
        """
        self.core.applied = torch.compile(apply_layers, **how)
        self.combined = torch.compile(combine, **how)

    def begin(self, e: Tensor, positions: Tensor | None = None) -> Frame:
        """Everything the input e fixes, once. Its positions are 0 … L−1 unless others are given [B, L]."""
        e, core_values, coda_values = self.core.carried.embedding(e)
        h = self.start(e, positions)
        hidden_anchor = self.anchor(e, h)
        return Frame(
            embedding=e,
            hidden_anchor=hidden_anchor,
            start=self.coordinates.enter(h, hidden_anchor),
            anchor=self.coordinates.native_anchor(hidden_anchor),
            drive=self.drive.prepare(e, hidden_anchor),
            core_values=core_values,
            coda_values=coda_values,
        )

    def step(self, t: int, z: Tensor, frame: Frame, masked: bool = True, memory: LoopMemory | None = None) -> Tensor:
        """z_t -> z_{t+1}; `masked=False` is the raw map, before the zero-deviation mask.

        With a `memory`, z holds the positions that follow those it has seen, and is remembered in turn.
        """
        x, u = self.update(self.core, self.drive, t, z, frame, memory)
        combined = self.combined if lets_compile(memory) else combine
        following: Tensor = self.halting(z, self.reset(t, combined(self, z, x, u, frame, masked, memory)))
        return following

    def remember(self, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        """Let later positions see, at step t, a state that rests at z and takes no step itself."""
        self.update.remember(self.core, self.drive, t, z, frame, memory)
        self.mask.remember(self.coordinates, z, frame, memory)

    def hidden(self, z: Tensor, frame: Frame) -> Tensor:
        """The hidden state h that z stands for, with what a coda needs for its values behind it."""
        return self.read_with(self.coordinates.hidden(z, frame), frame)

    @staticmethod
    def read_with(h: Tensor, frame: Frame) -> Tensor:
        """A hidden state as the readout takes it."""
        return h if frame.coda_values is None else torch.cat([h, frame.coda_values], dim=-1)

    @property
    def step_dependent(self) -> bool:
        """Whether the map looks at t. If not, sequences at different depths may share one batch."""
        return any(isinstance(unit, Unit) and unit.step_dependent for unit in self.modules())

    @property
    def rests_unchanged(self) -> bool:
        """Whether a position that rests shows later ones the same keys and values at every loop. What the second layer
        of a core sees of it depends on its neighbours, which may still be moving."""
        return not self.step_dependent and len(self.core.layers(0)) == 1

    @property
    def bodies_per_step(self) -> int:
        """How often one step applies the core."""
        return self.update.bodies

    @property
    def zero_preserving(self) -> bool:
        """Claims T_t(0; e) = 0 exactly, before the mask: a zero state gives a zero input, or cancels."""
        native_zero = self.coordinates.anchor_is_zero
        keeps_zero = self.drive.keeps_zero and not self.core.carried.core
        return native_zero and (keeps_zero or self.update.cancels_at_anchor)

    @property
    def anchor_preserving(self) -> bool:
        """Claims T_t(0; e) = 0 exactly for the map as it is used, mask included."""
        return self.zero_preserving or (self.coordinates.anchor_is_zero and self.mask.zeroes_at_anchor)

    def body_applications(self, loops: float) -> float:
        """N_body(T): core applications of an unroll, or of a mean of T loops."""
        return self.bodies_per_step * self.core.applications(loops)


class Centred(Recurrence):
    """Δ' = F(h* + Δ) − F(h*): any recurrence F without what its anchor would produce, in deviation coordinates.

    This is T(Δ) − T(0) of the one-step map T: the forcing at the anchor is gone exactly, and everything else F does
    with the input (recall, decay) stays. F is made of the slots, in hidden coordinates. The two evaluations draw their
    own dropout, as those of `Subtractive` do.
    """

    def step(self, t: int, z: Tensor, frame: Frame, masked: bool = True, memory: LoopMemory | None = None) -> Tensor:
        anchor = anchor_of(frame.hidden_anchor)
        others = None if memory is None else LaterBodies(memory, self.update.bodies)
        at_anchor = super().step(t, anchor, frame, masked, others)
        return super().step(t, anchor + z, frame, masked, memory) - at_anchor

    def remember(self, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        anchor = anchor_of(frame.hidden_anchor)
        super().remember(t, anchor, frame, LaterBodies(memory, self.update.bodies))
        super().remember(t, anchor + z, frame, memory)

    @property
    def bodies_per_step(self) -> int:
        return 2 * self.update.bodies

    @property
    def zero_preserving(self) -> bool:
        return True


@dataclass(frozen=True)
class LaterBodies:
    """A loop's memory for applications of the core that come after the first `skipped`."""

    memory: LoopMemory
    skipped: int

    @property
    def fixed(self) -> bool:
        return lets_compile(self.memory)

    def past(self, body: int) -> Pasts:
        return self.memory.past(self.skipped + body)

    def energy(self, added: Tensor) -> Tensor:
        raise AssertionError("a centred recurrence needs no mask: its anchor is a fixed point without one")


def deviation_map(recurrence: Recurrence, t: int, deviation: Tensor, frame: Frame, masked: bool = True) -> Tensor:
    """T_t(Δ; e) = step_t(anchor + Δ) − anchor: the one-step map in anchor coordinates, for every family."""
    anchor = anchor_of(frame.anchor)
    return recurrence.step(t, anchor + deviation, frame, masked) - anchor
