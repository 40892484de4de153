"""An accelerator that is not there: tensors that say they are on 'cuda:0', with the numbers of real ones of the host.

Within `accelerator()` everything that asks for that device gets such tensors. An operation that mixes them with a
host's tensor, or with a host's generator, raises `Mixed`, as a real device would; and whatever would make the host wait
for the device is counted, under the line of ours that asked for it. Torch's own fake tensors have no numbers, and no
backward pass on a machine without CUDA.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import scse

DEVICE = torch.device("cuda:0")
HOST = torch.device("cpu")
PACKAGE = str(Path(scse.__file__).parent)
WAITING = {
    "aten::_local_scalar_dense": "a number",
    "aten::nonzero": "nonzero",
    "aten::equal": "equal",
    "aten::masked_select": "a mask",
    "aten::is_nonzero": "a truth",
    "aten::unique_dim": "unique",
    "aten::_unique2": "unique",
}


class Mixed(RuntimeError):
    """Tensors of two devices met."""


class Remote(Tensor):
    """A host's tensor that says it is elsewhere."""

    @staticmethod
    def __new__(cls, host: Tensor, requires_grad: bool = False):
        about = {"strides": host.stride(), "storage_offset": host.storage_offset(), "dtype": host.dtype}
        return Tensor._make_wrapper_subclass(cls, host.size(), **about, device=HOST, requires_grad=requires_grad)

    def __init__(self, host: Tensor, requires_grad: bool = False) -> None:
        self.host = host

    def __deepcopy__(self, memo: dict):
        if id(self) not in memo:
            copied = Remote(self.host.detach().clone())
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]

    def __repr__(self, **_) -> str:
        return f"Remote({self.host})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a tensor of the device outlived it")


ANSWERS = {Tensor.device: DEVICE, Tensor.is_cuda: True, Tensor.is_cpu: False}


def _leaves(parts: Iterable) -> Iterator:
    for x in parts:
        if isinstance(x, list | tuple):
            yield from _leaves(x)
        else:
            yield x


def _mapped(change: Callable, x):
    return type(x)(_mapped(change, part) for part in x) if type(x) in (list, tuple) else change(x)


def _host(x):
    return x.host if isinstance(x, Remote) else x


def _known(same: dict[int, Remote], x):
    """A result as a tensor of the device; one that an operation was given is that one."""
    if type(x) is not Tensor:
        return x
    known = same.get(id(x))
    return Remote(x) if known is None else known


def is_remote(x: object) -> bool:
    """Whether a tensor is on the device, also below the wrappers of torch.func."""
    if isinstance(x, Remote) or not isinstance(x, Tensor):
        return isinstance(x, Remote)
    while isinstance(x, Tensor) and functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return isinstance(x, Remote)


def _remote_device(device: object) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _line() -> str:
    """The line of ours that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


class Watch:
    """What the host waited for: {(what, where): how often}"""

    def __init__(self) -> None:
        self.waits: Counter[tuple[str, str]] = Counter()

    def add(self, what: str) -> None:
        self.waits[what, _line()] += 1

    @property
    def total(self) -> int:
        return sum(self.waits.values())


class _Operations(TorchDispatchMode):
    """Runs operations on the numbers, and sees to it that all of them are in one place."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch, self.inside = watch, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = list(_leaves((*args, *kwargs.values())))
        remote = [x for x in given if isinstance(x, Remote)]
        name = func._schema.name
        if remote:
            self._refuse_mixture(name, given)
            if name in WAITING:
                self.watch.add(WAITING[name])
            if name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
                x.dtype == torch.bool for x in args[1] if isinstance(x, Tensor)
            ):
                self.watch.add("a mask")
        args = [_mapped(_host, x) for x in args]
        kwargs = {key: _mapped(_host, x) for key, x in kwargs.items()}
        if name == "aten::_efficientzerotensor":
            func = torch.zeros  # a tangent without storage, which a kernel that is called directly would read
        found = func(*args, **kwargs)
        if not (remote or self.inside):
            return found
        same = {id(x.host): x for x in remote}
        return _mapped(lambda x: _known(same, x), found)

    def _refuse_mixture(self, name: str, given: list) -> None:
        if name == "aten::copy_":
            return  # between devices, as it is meant
        for x in given:
            if isinstance(x, torch.Generator):
                raise Mixed(f"{name} on the device draws from a generator of the host at {_line()}")
            if isinstance(x, Tensor) and not isinstance(x, Remote) and x.dim():
                raise Mixed(f"{name} takes tensors of the device and of the host at {_line()}")


class _Functions(TorchFunctionMode):
    """Answers what only a device would know, and moves tensors."""

    def __init__(self, watch: Watch, operations: _Operations) -> None:
        super().__init__()
        self.watch, self.operations = watch, operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            owner = func.__self__
            return ANSWERS[owner] if owner in ANSWERS and is_remote(args[0]) else func(*args)
        if name == "backward" and is_remote(args[0]):
            return self._backward(args[0])
        if name in ("to", "cpu", "cuda", "pin_memory") and isinstance(args[0], Tensor):
            return self._moved(name, func, args, kwargs)
        if name in ("numpy", "__array__") and is_remote(args[0]):
            raise Mixed(f"a tensor of the device is taken for an array of the host at {_line()}")
        if name == "tolist" and is_remote(args[0]):
            self.watch.add("a list")
            return args[0].host.tolist()
        return self._run(func, args, kwargs)

    def _run(self, func, args, kwargs):
        if _remote_device(kwargs.get("device")):
            kwargs["device"] = HOST
            with self._within(True):
                found = func(*args, **kwargs)
            return _mapped(lambda x: Remote(x) if isinstance(x, Tensor) and not is_remote(x) else x, found)
        elsewhere = kwargs.get("device") is None and any(map(is_remote, _leaves((*args, *kwargs.values()))))
        with self._within(elsewhere):
            return func(*args, **kwargs)

    def _moved(self, name: str, func, args, kwargs):
        tensor, *rest = args
        wanted = [x for x in (*rest, *kwargs.values()) if isinstance(x, str | torch.device | Tensor)]
        to_remote = is_remote(tensor)
        if name == "cpu":
            to_remote = False
        elif name == "cuda":
            to_remote = True
        elif wanted:
            place = wanted[0]
            to_remote = is_remote(place) if isinstance(place, Tensor) else _remote_device(place)
        if to_remote == is_remote(tensor) and name != "to":
            return tensor
        if sys._getframe(2).f_code.co_filename.endswith("clip_grad.py"):
            return tensor  # torch groups gradients by the device that only its own code sees
        here = [self._here(x) for x in rest]
        with self._within(is_remote(tensor)):
            if name == "to":
                kwargs = {key: self._here(value) for key, value in kwargs.items()}
                found = func(tensor, *here, **kwargs) if here or kwargs else tensor
            else:
                found = tensor
        if to_remote == is_remote(found):
            return found
        if to_remote:
            return Remote(found.detach())
        self.watch.add("a copy")
        return found.detach().host

    @staticmethod
    def _here(x):
        """What stands for a place, as the numbers' own."""
        if isinstance(x, Tensor):
            return x.dtype
        return HOST if isinstance(x, str | torch.device) else x

    @contextmanager
    def _within(self, inside: bool) -> Iterator[None]:
        before, self.operations.inside = self.operations.inside, inside
        try:
            yield
        finally:
            self.operations.inside = before

    def _backward(self, tensor: Tensor) -> None:
        """In its course our own code may run again, as it does when loops are recomputed."""
        with self, self._within(True):
            torch.autograd.backward(tensor)


@contextmanager
def accelerator() -> Iterator[Watch]:
    """A machine with one accelerator."""
    watch = Watch()
    operations = _Operations(watch)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with operations, _Functions(watch, operations):
            yield watch
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
