"""Which floats operators are called with by a call of PyTorch's, forward, backward and backward again: it is made of tensors of its own, and leaves no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from braze.aot.trace.structural import is_composite
from braze.graph.private import torch_compat
from braze.support.nested import every, leaves

#: how often is differentiated
_TIMES = 2


class _Listener(TorchDispatchMode):
    """Notes what operators get that is no tensor of the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.floats: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is torch.ops.prim.device.default:
            return torch_compat.device_of_fake(args[0])
        if func is torch.ops.aten.size.default:  # C++ that knows no symbols
            return tuple(int(n) for n in args[0].shape)
        if is_composite(func):
            with self:
                result = func.decompose(*args, **given)
            if result is not NotImplemented:
                return result
        self.floats += map(_noted, leaves((args, given)))
        return func(*args, **given)


def _noted(value: Any) -> Any:
    """A float, or the text of what else may have been made of one; None of anything else."""
    if type(value) is float:
        return value
    if isinstance(value, torch.SymFloat | torch.SymBool | bool | complex):
        return str(value)
    if isinstance(value, torch.Tensor) and not isinstance(
        value, FakeTensor
    ):  # of a number, past the dispatcher
        return repr(value)
    return None


def heard(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """What is heard of one call, in order; None where it cannot be made of other tensors."""
    if any(type(x) is not FakeTensor for x in every(torch.Tensor, (args, kwargs))):
        return None
    listener, given = _Listener(), _Copies()
    try:
        args, kwargs = given.of(args), given.of(kwargs)
        with listener:
            result = (
                getattr(args[0], target)(*args[1:], **kwargs)
                if type(target) is str
                else target(*args, **kwargs)
            )
        _differentiate(listener, result, given.leaves)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None
    return listener.floats


def _differentiate(listener: _Listener, result: Any, wanted: list[torch.Tensor]) -> None:
    """Go backward from a result, and from the gradients, for as often as PyTorch has formulas."""
    for _ in range(_TIMES):
        ends = [x for x in every(torch.Tensor, result) if x.requires_grad and x.grad_fn is not None]
        if not ends or not wanted:
            return
        tangents = [torch.empty_like(x, requires_grad=True) for x in ends]
        with contextlib.suppress(RuntimeError), listener:
            found = torch.autograd.grad(ends, wanted, tangents, create_graph=True, allow_unused=True)
            result = [x for x in found if x is not None]
            continue
        return


class _Copies:
    """Tensors like those of a call, with histories of their own."""

    def __init__(self) -> None:
        self.leaves: list[torch.Tensor] = []

    def of(self, values: Any) -> Any:
        """Arguments with such for tensors."""
        if isinstance(values, dict):
            return {name: self.of(value) for name, value in values.items()}
        if isinstance(values, tuple | list):
            return type(values)(map(self.of, values)) if type(values) in (tuple, list) else values
        if not isinstance(values, torch.Tensor):
            return values
        leaf = torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device=values.device)
        if not (values.requires_grad and torch.is_grad_enabled()):
            return leaf
        self.leaves.append(leaf.requires_grad_())
        return leaf.clone()  # may be written
