"""The one model and the one unroll loop.

Shapes: B batch, L positions, d width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import methodcaller
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scse.config.model import ModelConfig, Shape, scale
from scse.devices import autocast, send
from scse.errors import UserError
from scse.families import FAMILIES
from scse.nn import Block, RMSNorm, apply_layers
from scse.nn.block import Pasts, blocks_of
from scse.nn.dropout import Dropout
from scse.nn.loss import counted, head_nll, token_nll
from scse.nn.products import ROUNDED, FewRows, RoundedLinear, turn
from scse.precision import BFLOAT16, EXACT
from scse.recurrence import Frame, Memory, Recurrence, build
from scse.recurrence.base import Rows, Unit, by_layer
from scse.trajectory import PARTS, Trajectory, record


@dataclass(frozen=True)
class State:
    """The state after `t` loops: native coordinates `z` in the frame of its input.

    With a `memory`, the input is what follows the positions it has seen.
    """

    t: int
    z: Tensor
    frame: Frame
    recurrence: Recurrence
    memory: Memory | None = None

    @property
    def hidden(self) -> Tensor:
        """h_t as the readout takes it: behind it is what a coda needs for its values, where it has any."""
        return self.recurrence.hidden(self.z, self.frame)

    @property
    def bare(self) -> Tensor:
        """h_t alone [B, L, d]"""
        return self.recurrence.coordinates.hidden(self.z, self.frame)

    @property
    def deviation(self) -> Tensor:
        """Δ_t = h_t − h*"""
        return self.recurrence.coordinates.deviation(self.z, self.frame)

    def rows(self, keep: Rows) -> State:
        """The state of some rows of the batch."""
        memory = None if self.memory is None else self.memory.rows(keep)
        return replace(self, z=self.z[keep], frame=self.frame.rows(keep), memory=memory)

    def rest(self) -> None:
        """Leave this state in the memory as it is, for later positions that go deeper."""
        if self.memory is not None:
            self.memory.rest(self.recurrence, self.t, self.z, self.frame)

    def step(self, recompute: bool = False) -> State:
        """The state after one more loop."""
        step = partial(checkpoint, self.recurrence.step, use_reentrant=False) if recompute else self.recurrence.step
        memory = None if self.memory is None else self.memory.loop(self.t)
        z = step(self.t, self.z, self.frame, memory=memory)
        return State(self.t + 1, z, self.frame, self.recurrence, self.memory)


def unroll(
    recurrence: Recurrence,
    frame: Frame,
    start: Tensor | None = None,
    recompute: bool = False,
    memory: Memory | None = None,
) -> Generator[State, State | None, None]:
    """The states after 0, 1, 2, … loops, without end: whoever consumes them decides how deep to go.

    This is the only loop over depth there is. Nothing of a state is kept here, so what a consumer drops is freed.
    A consumer may `send` another state to go on from, for example with finished rows replaced. With `recompute`, the
    backward pass computes the inside of each step again instead of keeping it.
    """
    state = State(0, frame.start if start is None else start, frame, recurrence, memory)
    while True:
        state = ((yield state) or state).step(recompute)


class LoopedLM(nn.Module):
    """logits = E · RMSNorm(coda(read(h_T))), with h_T the state after T loops of the recurrence on e = prelude(P(x)),
    P(x) the token embedding, plus a learned vector per position unless positions are rotations.

    The head E is the token embedding itself unless the shape unties them. Without layers in prelude and coda, which
    are residual blocks like those of the core, this is the paper's E · RMSNorm(h_T). A family whose states have left
    their step through a learned norm already is read without another, unless a coda comes between.
    Weights are drawn from `seed`, matrices from N(0, init_std); units may have other start values.
    """

    laid_out = False
    precision = EXACT
    compiled = False

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        shape = config.shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width) if shape.positions == "learned" else None
        self.dropout = Dropout(shape.dropout)
        self.prelude = nn.ModuleList(Block(shape, shape.valued(number)) for number in range(shape.prelude))
        self.recurrence = build(config)
        after = shape.prelude + shape.core
        self.coda = nn.ModuleList(Block(shape, shape.valued(after + number)) for number in range(shape.coda))
        self.values = nn.ModuleList(
            nn.Embedding(shape.vocabulary, shape.kv_width) for _ in filter(shape.valued, range(shape.layers))
        )
        normed = self.recurrence.reset.normalises and not shape.coda
        self.final_norm = None if normed else RMSNorm(shape.width, shape.norm_eps)
        self.unembedding = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.rounded_head: RoundedLinear | None = None
        self.few_rows = FewRows()
        self.init_weights(seed)

    @torch.no_grad()
    def init_weights(
        self,
        seed: int,
        put: Callable[[Tensor, Tensor], object] = Tensor.copy_,
        start: Callable[[Unit], None] = methodcaller("start_values"),
    ) -> None:
        """Draw every matrix in the order of the modules, independently of torch's global random state.

        Where weights are spread over processes, `put` and `start` say how one gets its numbers and a unit its start.
        """
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding) and not module.weight.is_meta:
                drawn = torch.empty(module.weight.shape).normal_(0.0, self.config.shape.init_std, generator=generator)
                put(module.weight, drawn)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        for module in self.modules():
            if isinstance(module, Unit):
                start(module)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where ids and targets must be."""
        return self.tokens.weight.device

    def compile_step(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile the step of the recurrence, once for all loops and depths; under a cache, where that is fixed."""
        # Dropout is then drawn as it is without compiling.
        options = {"fallback_random": True} if backend == "inductor" else None
        self.recurrence.compile_step(backend=backend, options=options)
        self.compiled = True

    def lay_out(self, precision: str = EXACT) -> None:
        """Prepare for inference. In float32 the matrices of the recurrence, prelude and coda lie as few rows are
        multiplied fastest, and the head may keep copies of its weights for them. With a lower precision the weights of
        all blocks and of the head are rounded for good, and the model can no longer be trained; but for bfloat16 on an
        accelerator or in compiled steps, where `inference` lets torch round as it goes."""
        if self.rounded_head is not None:
            return
        self.laid_out, self.precision = True, precision
        if precision not in ROUNDED or self._rounds_as_it_goes:
            for part in (self.prelude, self.recurrence, self.coda):
                turn(part)
            return
        for block in [module for module in self.modules() if isinstance(module, Block)]:
            block.round_weights(ROUNDED[precision])
        self.rounded_head = ROUNDED[precision](self.head_weight)

    def inference(self) -> AbstractContextManager[object]:
        """Within it, products are formed in the precision that the model was laid out for."""
        return autocast(self.precision if self._rounds_as_it_goes else EXACT, self.device)

    @property
    def _rounds_as_it_goes(self) -> bool:
        return self.precision == BFLOAT16 and (self.compiled or self.device.type != "cpu")

    def place(self, ids: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """A host's batch of ids, and whatever belongs to it, on the model's device.

        The ids are checked here: on an accelerator, looking at them would mean waiting for it.
        """
        self._check_ids(ids)
        return tuple(send(tensor, self.device) for tensor in (ids, *others))

    @property
    def head_weight(self) -> Tensor:
        """The head E [V, d]"""
        return self.tokens.weight if self.unembedding is None else self.unembedding.weight

    def embed(self, ids: Tensor, memory: Memory | None = None) -> Tensor:
        """e = prelude(P(x)) [B, L, d], at positions 0 … L−1, or those that follow what the memory has seen.

        Behind it are the embeddings that layers after the prelude add to their values, where there are any (`Carried`).
        """
        self._check_ids(ids)
        e: Tensor = self.tokens(ids)
        if self.config.shape.embed_scale != 1:
            e = self.config.shape.embed_scale * e
        if self.positions is not None:
            places = torch.arange(ids.shape[1], device=ids.device) if memory is None else memory.positions
            e = e + self.positions(places)
        e = self.dropout(e)
        values = [table(ids) for table in self.values]
        if self.prelude:
            blocks, pasts = blocks_of(self.prelude), None if memory is None else memory.prelude()
            mine, values = values[: (count := sum(b.valued for b in blocks))], values[count:]
            given = by_layer(torch.cat(mine, dim=-1) if mine else None, blocks)
            e = e + apply_layers(blocks, e, pasts, embedded=given)
        return self.recurrence.core.carried.load(e, values)

    def unroll(
        self, ids: Tensor, recompute: bool = False, memory: Memory | None = None
    ) -> Generator[State, State | None, None]:
        """The states of an input after 0, 1, 2, … loops; take as many as you need."""
        frame = self.recurrence.begin(self.embed(ids, memory), None if memory is None else memory.positions)
        return unroll(self.recurrence, frame, recompute=recompute, memory=memory)

    def hidden(self, ids: Tensor, loops: int, recompute: bool = False) -> Tensor:
        """h_T after `loops` loops [B, L, d]"""
        if loops < 1:
            raise UserError(f"loops must be at least 1, got {loops}")
        return next(islice(self.unroll(ids, recompute), loops, None)).hidden

    def trajectory(self, ids: Tensor, loops: int, keep: Collection[str] = PARTS) -> Trajectory:
        """States, deviations, updates and predictions of every loop; `keep` names those to return."""
        return record(self, ids, loops, keep)

    def outputs(self, hidden: Tensor, pasts: Pasts | None = None) -> Tensor:
        """coda(read(h)) [B, L, d], what the head takes. `pasts` is a memory's coda.

        A coda looks at the positions before each, so it needs them all, from the first or from where `pasts` end.
        Without one, every position is read by itself, and h may be states of any positions [..., d].
        """
        h, values = self.recurrence.core.carried.hidden(hidden)
        y: Tensor = self.recurrence.read(h).to(h.dtype)
        if not self.coda:
            return y
        blocks = blocks_of(self.coda)
        return y + apply_layers(blocks, y, pasts, embedded=by_layer(values, blocks))

    def normed(self, outputs: Tensor) -> Tensor:
        """The outputs as the head multiplies them [..., d]"""
        return outputs if self.final_norm is None else self.final_norm(outputs)

    def head(self, outputs: Tensor) -> Tensor:
        """C(RMSNorm(y)) [..., V] of outputs y"""
        y = self.normed(outputs)
        if self.rounded_head is not None:
            logits: Tensor = self.rounded_head(y)
            return logits
        return self.few_rows.product(y, self.head_weight) if self.laid_out else F.linear(y, self.head_weight)

    def readout(self, hidden: Tensor) -> Tensor:
        """C(RMSNorm(coda(read(h)))) [..., V]; see `outputs` for which states that needs."""
        return self.head(self.outputs(hidden))

    def nll(self, ids: Tensor, targets: Tensor, loops: int, recompute: bool = False) -> Tensor:
        """Σ −log p(target) over the targets that count, the training objective; never holds all logits.

        A negative target does not count; what stands at such a position is not even predicted.
        `recompute` keeps only the states between loops for the backward pass and computes the rest again.
        """
        return self.state_nll(self.hidden(ids, loops, recompute), targets)

    def state_nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The same of states h [B, L, d]"""
        outputs = self.outputs(hidden)
        chosen = counted(targets)
        if chosen is not None:
            outputs, targets = outputs.flatten(0, 1)[chosen], targets.flatten()[chosen]
        return head_nll(self.normed(outputs), self.head_weight, targets)

    def token_nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """−log p(target) of each token [B·L] for states h; no gradients."""
        return self.output_nll(self.outputs(hidden), targets)

    def output_nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """−log p(target) of each token [B·L] for what the head takes, 0 where it does not count; no gradients."""
        flat, targets, chosen = self.normed(outputs).flatten(0, 1), targets.flatten(), counted(targets)
        head = self.head_weight if self.rounded_head is None else self.rounded_head
        if chosen is None:
            return token_nll(flat, head, targets)
        losses = flat.new_zeros(len(flat))
        if chosen.any():
            losses[chosen] = token_nll(flat[chosen], head, targets[chosen]).to(losses.dtype)
        return losses

    def forward(self, ids: Tensor, loops: int) -> Tensor:
        """Next-token logits [B, L, V] after `loops` loops."""
        return self.readout(self.hidden(ids, loops))

    def _check_ids(self, ids: Tensor) -> None:
        shape = self.config.shape
        if ids.dim() != 2 or 0 in ids.shape:
            raise UserError(f"token ids must have the shape [batch, positions], got {list(ids.shape)}")
        if ids.shape[1] > shape.context:
            raise UserError(
                f"{ids.shape[1]} tokens are more than the model's {shape.context} positions; "
                f"cut the input to its last {shape.context} tokens or train with a longer context"
            )
        if ids.device.type != "cpu":
            return  # see `place`
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= shape.vocabulary:
            raise UserError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {shape.vocabulary}; "
                "encode the text with the tokenizer this model was trained with"
            )


@contextmanager
def evaluating(model: LoopedLM) -> Iterator[None]:
    """Without dropout; a model in training goes on training afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def model_config(
    family: str,
    shape: str | Shape = "22m",
    options: Mapping[str, object] | None = None,
) -> ModelConfig:
    """The resolved configuration of a family at a scale, for example `model_config("tuned-adapter", "22m")`."""
    row = FAMILIES.find(family)
    resolved = scale(shape) if isinstance(shape, str) else shape
    return ModelConfig(family=row.name, shape=resolved, options=row.resolve(options or {}))


def trainable_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
