"""The one recurrence: every family is this module with other units in its slots."""

from __future__ import annotations

from torch import Tensor, nn

from scse.recurrence.anchors import Anchor, EmbeddingStart, ProjectedStart
from scse.recurrence.base import Coordinates, Frame, LoopMemory, Unit, anchor_of
from scse.recurrence.drives import Drive
from scse.recurrence.modifiers import ChannelGate, FixedScale, Keep, NoMask, NoReset, ScalarGate
from scse.recurrence.updates import Core, Direct


class Recurrence(nn.Module):
    """z' = reset_t( keep(z) + mask(Δ)·gain(z, u_t) )  with  u_t = B(drive_t(z)), or its subtractive form.

    Slots left out are the identity: the block sees the bare state, nothing is masked, leaked or reset.
    """

    def __init__(
        self,
        core: Core,
        coordinates: Coordinates,
        *,
        start: EmbeddingStart | ProjectedStart,
        anchor: Anchor,
        gain: FixedScale | ScalarGate | ChannelGate,
        drive: Drive | None = None,
        update: Direct | None = None,
        mask: NoMask | None = None,
        keep: Keep | None = None,
        reset: NoReset | None = None,
    ) -> None:
        super().__init__()
        self.core = core
        self.coordinates = coordinates
        self.start = start
        self.anchor = anchor
        self.drive = drive or Drive()
        self.update = update or Direct()
        self.gain = gain
        self.mask = mask or NoMask()
        self.keep = keep or Keep()
        self.reset = reset or NoReset()

    def begin(self, e: Tensor) -> Frame:
        """Everything the input e fixes, once."""
        h = self.start(e)
        hidden_anchor = self.anchor(e, h)
        return Frame(
            embedding=e,
            hidden_anchor=hidden_anchor,
            start=self.coordinates.enter(h, hidden_anchor),
            anchor=self.coordinates.native_anchor(hidden_anchor),
            drive=self.drive.prepare(e, hidden_anchor),
        )

    def step(self, t: int, z: Tensor, frame: Frame, masked: bool = True, memory: LoopMemory | None = None) -> Tensor:
        """z_t -> z_{t+1}; `masked=False` is the raw map, before the zero-deviation mask.

        With a `memory`, z holds the positions that follow those it has seen, and is remembered in turn.
        """
        q = self.gain(z, self.update(self.core, self.drive, t, z, frame, memory))
        if masked:
            q = self.mask(self.coordinates, z, frame, q, memory)
        following: Tensor = self.reset(t, self.keep(z) + q)
        return following

    def remember(self, t: int, z: Tensor, frame: Frame, memory: LoopMemory) -> None:
        """Let later positions see, at step t, a state that rests at z and takes no step itself."""
        self.update.remember(self.core, self.drive, t, z, frame, memory)
        self.mask.remember(self.coordinates, z, frame, memory)

    def hidden(self, z: Tensor, frame: Frame) -> Tensor:
        """The hidden state h that z stands for."""
        return self.coordinates.hidden(z, frame)

    @property
    def step_dependent(self) -> bool:
        """Whether the map looks at t. If not, sequences at different depths may share one batch."""
        return any(isinstance(unit, Unit) and unit.step_dependent for unit in self.modules())

    @property
    def bodies_per_step(self) -> int:
        """How often one step applies the block."""
        return self.update.bodies

    @property
    def zero_preserving(self) -> bool:
        """Claims T_t(0; e) = 0 exactly, before the mask: a zero state gives a zero input, or cancels."""
        native_zero = self.coordinates.anchor_is_zero
        return native_zero and (self.drive.adds_nothing or self.update.cancels_at_anchor)

    @property
    def anchor_preserving(self) -> bool:
        """Claims T_t(0; e) = 0 exactly for the map as it is used, mask included."""
        return self.zero_preserving or (self.coordinates.anchor_is_zero and self.mask.zeroes_at_anchor)

    def body_applications(self, loops: int) -> int:
        """N_body(T): block applications of an unroll."""
        return self.bodies_per_step * self.core.applications(loops)


def deviation_map(recurrence: Recurrence, t: int, deviation: Tensor, frame: Frame, masked: bool = True) -> Tensor:
    """T_t(Δ; e) = step_t(anchor + Δ) − anchor: the one-step map in anchor coordinates, for every family."""
    anchor = anchor_of(frame.anchor)
    return recurrence.step(t, anchor + deviation, frame, masked) - anchor
