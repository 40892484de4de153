"""Arrays as short text that a page can carry: rounded, bytes sorted by their weight, deflated, base64.

Numbers that decide something (the loss, the statistics of the exit rules) keep all 24 bits of their float32; the others
are rounded to as many as a reader can use. The page states these precisions. Bytes of equal weight stand together, so
that those which hardly change from loop to loop deflate to almost nothing.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

SIGNIFICANT_BITS = 11  # of a float32's 24: 1 part in 4,096
SMALLEST_CHANCE = 1e-6  # of the ten candidates; what is below counts as nothing
ATTENTION_LEVELS = (255, 127, 63, 31, 15)
ATTENTION_BYTES = 120_000  # deflated, of one run

Packed = dict[str, Any]


def rounded(values: np.ndarray, bits: int) -> np.ndarray:
    """float32 with only its `bits` leading significant bits, rounded to nearest."""
    drop = 24 - bits
    words = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    kept = ((words.astype(np.uint64) + (1 << (drop - 1))) >> drop << drop).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), kept, values).astype(np.float32)


def pack(values: np.ndarray) -> Packed:
    """An array of float32 or of unsigned integers."""
    plain = np.ascontiguousarray(values)
    planes = plain.view(np.uint8).reshape(-1, plain.itemsize).T
    return {"type": plain.dtype.str[1:], "shape": list(plain.shape), "data": deflated(planes.tobytes())}


def deflated(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def pack_attention(weights: Sequence[Tensor | None], budget: int = ATTENTION_BYTES) -> Packed | None:
    """The weights of all loops [A, H, L, L], on a square-root scale of as many levels as fit the budget.

    Per application, head and loop the lower triangle, row by row, as the difference from the loop before: where the
    states settle, so do the weights, and nothing is left to store. Loops without attention are those not in 'loops'.
    """
    loops = [t for t, found in enumerate(weights) if found is not None]
    if not loops:
        return None
    stacked = np.stack([found.numpy() for found in weights if found is not None])  # [loops, A, H, L, L]
    length = stacked.shape[-1]
    below = np.tril_indices(length)
    roots = np.sqrt(stacked[..., below[0], below[1]]).transpose(1, 2, 0, 3)  # [A, H, loops, L(L+1)/2]
    for levels in ATTENTION_LEVELS:
        steps = np.rint(np.nan_to_num(roots) * levels).astype(np.uint8)
        steps[:, :, 1:] -= steps[:, :, :-1].copy()
        data = deflated(steps.tobytes())
        if len(data) * 3 // 4 <= budget:
            break
    return {"levels": levels, "loops": loops, "shape": list(roots.shape), "length": length, "data": data}


def decoded_attention(packed: Packed | None) -> dict[int, np.ndarray]:
    """{loop: weights [A·H, L, L]} as the page reads them."""
    if packed is None:
        return {}
    steps = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8).reshape(packed["shape"])
    roots = np.cumsum(steps, axis=2, dtype=np.uint8) / packed["levels"]
    below = np.tril_indices(packed["length"])
    found = {}
    for place, loop in enumerate(packed["loops"]):
        weights = np.zeros((roots.shape[0] * roots.shape[1], packed["length"], packed["length"]))
        weights[:, below[0], below[1]] = roots[:, :, place].reshape(len(weights), -1) ** 2
        found[loop] = weights
    return found
