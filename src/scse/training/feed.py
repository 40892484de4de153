"""Batches on their way to the device."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from scse.devices import send
from scse.training.batches import BatchSource

Batch = tuple[Tensor, Tensor]


class Feed:
    """The batches of a source. On an accelerator the next one is cut while the device works on the last: a batch is a
    pure function of its step and depth, so that it can be made before it is asked for. A CPU has no time to spare.
    """

    def __init__(self, source: BatchSource, device: torch.device) -> None:
        self.source, self.device = source, device
        self.ahead: dict[int, Future[Batch]] = {}
        self.maker = ThreadPoolExecutor(1) if device.type != "cpu" else None

    def batch(self, step: int, loops: int | np.ndarray) -> Batch:
        """On the host."""
        waiting = self.ahead.pop(step, None)
        self.ahead.clear()
        return self.source.batch(step, loops) if waiting is None else waiting.result()

    def prepare(self, step: int, loops: int | np.ndarray) -> None:
        """Begin with a batch that will be asked for, at the depth that its step always has."""
        if self.maker is not None:
            self.ahead[step] = self.maker.submit(self.source.batch, step, loops)

    def sent(self, batch: Batch, parts: int, mine: range) -> list[Batch]:
        """Those of the batch's parts that are ours, on the device."""
        ids, targets = (part.chunk(parts) for part in batch)
        return [(send(ids[index], self.device), send(targets[index], self.device)) for index in mine]
