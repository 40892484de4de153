"""Models of names, shapes and types alone, for those who count, check and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """Leaves tensors as they are where torch.nn.init would draw them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"]
        return func(*args, **given)


@contextmanager
def without_storage() -> Iterator[None]:
    """Modules that are built here take no memory, and no time: to draw numbers that are not there, torch would load
    its whole compiler.
    """
    with torch.device("meta"), _Undrawn():
        yield
