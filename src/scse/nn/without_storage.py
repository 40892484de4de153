"""Models of names, shapes and types alone, for those who count, check, compare and divide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
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
        if getattr(func, "__module__", "") == "torch.nn.init" and given["tensor"].is_meta:
            return given["tensor"]
        if func is torch.eye and getattr(given.get("out"), "is_meta", False):
            return given["out"]  # what torch.nn.init.eye_ calls
        return func(*args, **given)


@contextmanager
def without_storage() -> Iterator[None]:
    """Modules that are built here take no memory, and no time: to draw numbers that are not there, torch would load
    its whole compiler.
    """
    with torch.device("meta"), _Undrawn():
        yield


@contextmanager
def matrices_without_storage() -> Iterator[None]:
    """Linear maps and embeddings that are built here take no memory; every other parameter has its value."""

    def forgotten(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if not isinstance(module, nn.Linear | nn.Embedding):
            return None
        return nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)

    hook = register_module_parameter_registration_hook(forgotten)  # type: ignore[arg-type]  # it may return one
    try:
        with _Undrawn():
            yield
    finally:
        hook.remove()
