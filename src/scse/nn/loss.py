"""Cross-entropy over a large vocabulary without ever holding all logits.

Shapes: N tokens, d width, V vocabulary. The head dominates a small model's step: at 22m and 4,096 tokens the logits
alone are 0.8 GB, and eager autograd passes over several copies of them. Here a chunk of tokens at a time goes through
logits -> softmax -> gradient in one buffer, and both gradients are formed during the forward pass.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from scse.nn.products import RoundedLinear, by_onednn, product

CHUNK_TOKENS = 512
READ_TOKENS = 256  # without gradients, where logits may be a tensor of their own: the C library keeps no larger ones
ADDED_ROWS = 2048


def counted(targets: Tensor) -> Tensor | None:
    """Which targets count, flattened [N]; None where all do, as in text. A negative target does not.

    Also None on an accelerator: to ask would be to wait for it. There the head passes over those that do not count.
    """
    if targets.device.type != "cpu":
        return None
    chosen = targets.flatten() >= 0
    return None if chosen.all() else chosen


def head_nll(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int = CHUNK_TOKENS, shares: Tensor | None = None
) -> Tensor:
    """Σ_i s_i · (−log softmax(hidden_i · weightᵀ)[targets_i]), differentiable once in `hidden`, `weight` and `shares`.

    Without `shares` every s_i is 1. On an accelerator targets may be negative and then do not count; on a CPU `counted`
    has left them out.
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    if torch.is_grad_enabled():
        total: Tensor = _HeadNLL.apply(flat, weight, targets.reshape(-1), shares, chunk)
        return total
    losses = token_nll(flat, weight, targets.reshape(-1), min(chunk, READ_TOKENS))
    return losses.sum() if shares is None else (losses * shares).sum()


@torch.no_grad()
def token_nll(hidden: Tensor, weight: Tensor | RoundedLinear, targets: Tensor, chunk: int = READ_TOKENS) -> Tensor:
    """−log softmax(hidden · weightᵀ)[targets] for each token [N]; no gradients."""
    if isinstance(weight, RoundedLinear):
        pairs = zip(hidden.split(chunk), targets.split(chunk), strict=True)
        return torch.cat([F.cross_entropy(weight(h), y, ignore_index=-1, reduction="none") for h, y in pairs])
    head = _ChunkedHead(hidden, weight, chunk)
    return torch.cat([-head.picked(head.log_probabilities(h), y) for h, y in head.chunks(targets)])


class _HeadNLL(torch.autograd.Function):
    """Forward computes the loss and both gradients, chunk by chunk; backward scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, shares: Tensor | None, chunk: int) -> Tensor:
        head = _ChunkedHead(hidden, weight, chunk)
        total = torch.zeros((), dtype=head.wide, device=hidden.device)
        grad_weight = torch.zeros_like(weight)
        grad_hidden, losses = [], []
        parts = [None] * len(targets.split(chunk)) if shares is None else shares.detach().split(chunk)
        for (h, y), share in zip(head.chunks(targets), parts, strict=True):
            p, picked = head.probabilities(h, y)
            total -= picked.sum() if share is None else (picked * share).sum()
            losses.append(-picked)
            gradient = head.gradient(p, y)
            if share is not None:
                gradient *= share[:, None]
            gradient = head.rounded(gradient)
            grad_hidden.append((gradient @ head.table).to(hidden.dtype))
            _add_product(grad_weight, gradient.t(), h)
        ctx.save_for_backward(torch.cat(grad_hidden), grad_weight, None if shares is None else torch.cat(losses))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, Tensor | None, None]:
        grad_hidden, grad_weight, losses = ctx.saved_tensors
        (given,) = grad_outputs
        scale = Tensor.mul if _asked_again() else Tensor.mul_
        grad_shares = None if losses is None else scale(losses, given)
        return scale(grad_hidden, given), scale(grad_weight, given), None, grad_shares, None


def _asked_again() -> bool:
    """Whether this backward pass keeps its graph. If not, a gradient as large as the head need not be held twice."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)  # as torch's own compiler asks
    return asked is None or bool(asked())


class _ChunkedHead:
    """The head's products in the precision that autocast asks for, everything else in float32 or better. Logits, and
    what is rounded of them and of their gradients, have a buffer each that all chunks use.

    `passes_over`: targets may be negative, and then count nothing.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, chunk: int) -> None:
        kind = hidden.device.type
        self.passes_over = kind != "cpu"
        self.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        self.table = weight.detach().to(self.dtype)
        self.hidden = hidden.detach()
        self.chunk = chunk
        self.wide = torch.promote_types(hidden.dtype, torch.float32)

    @cached_property
    def buffer(self) -> Tensor:
        rows = min(self.chunk, self.hidden.shape[0])
        return torch.empty(rows, self.table.shape[0], dtype=self.wide, device=self.hidden.device)

    @cached_property
    def low(self) -> Tensor:
        return self.buffer if self.dtype == self.wide else torch.empty_like(self.buffer, dtype=self.dtype)

    def chunks(self, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        hidden = (part.to(self.dtype) for part in self.hidden.split(self.chunk))
        return list(zip(hidden, targets.split(self.chunk), strict=True))

    def logits(self, h: Tensor) -> Tensor:
        if by_onednn(h, self.table):
            return product(h, self.table)
        logits, low = self.buffer[: h.shape[0]], self.low[: h.shape[0]]
        torch.mm(h, self.table.t(), out=low)
        if low.dtype != logits.dtype:
            logits.copy_(low)
        return logits

    def log_probabilities(self, h: Tensor) -> Tensor:
        logits = self.logits(h)
        return torch.log_softmax(logits, 1, out=logits)

    def probabilities(self, h: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """softmax(l) of the logits l, and log p(target) = l_target − max l + log max p of each token [n].

        The last term is −log Σ exp(l − max l). On a processor exponentials by themselves take longer than a softmax.
        """
        logits = self.logits(h)
        above = logits.amax(1)
        wanted = logits.gather(1, self._places(targets))[:, 0]
        p = torch.softmax(logits, 1, out=logits)
        return p, self._counting(wanted - above + p.amax(1).log(), targets)

    def rounded(self, gradient: Tensor) -> Tensor:
        """The gradient of a chunk's logits as the products take it."""
        return gradient if self.dtype == self.wide else self.low[: gradient.shape[0]].copy_(gradient)

    def picked(self, log_p: Tensor, targets: Tensor) -> Tensor:
        """log p(target) of each token [n]"""
        return self._counting(log_p.gather(1, self._places(targets))[:, 0], targets)

    def _places(self, targets: Tensor) -> Tensor:
        return (targets.clamp_min(0) if self.passes_over else targets)[:, None]

    def _counting(self, found: Tensor, targets: Tensor) -> Tensor:
        return torch.where(targets >= 0, found, torch.zeros_like(found)) if self.passes_over else found

    def gradient(self, p: Tensor, targets: Tensor) -> Tensor:
        """d nll / d logits = softmax − onehot(target), written over the softmax."""
        places = self._places(targets)
        found = p.scatter_add_(1, places, p.new_full(places.shape, -1.0))
        return found.mul_((targets >= 0)[:, None]) if self.passes_over else found


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right, in place where the types allow it."""
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, out=total)
        return
    # Some rows at a time: torch converts a product of another type before it adds it, and both stay in the cache.
    for sums, rows in zip(total.split(ADDED_ROWS), left.split(ADDED_ROWS), strict=True):
        sums += rows @ right
