"""Whether anybody but the caller holds a tensor: then its memory may not be written over.

The counts of references that tell are those of PyTorch and Python, compared with what they are for a tensor of which it is known
who holds it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from braze import native
from braze.graph.private.torch_checks import assumption


def is_held_once(tensor: torch.Tensor) -> bool:
    """Whether one variable of the caller is all that holds a tensor, and the tensor all that holds its memory.

    Autograd holds what a retained graph saves, hooks may hold what is saved, and views hold memory: then no.
    """
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not holder_counts.holds():
        return False
    # the caller's variable, and this call's own
    if _holders(tensor) != (_held_by_a_call(), *_holders_of_one()):
        return False
    return owns_all(tensor)


@functools.cache
def held_once() -> Callable[[torch.Tensor], bool]:
    """``is_held_once`` for who asks in each call: the C core's, if there is one."""
    made = native.held_once(*_holders_of_one()) if holder_counts.holds() else None
    return made or is_held_once


def owns_all(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is PyTorch's own, none that it shares with an array of numpy's, and all there is of it."""
    storage = tensor.untyped_storage()
    return tensor.storage_offset() == 0 and storage.nbytes() == tensor.nbytes and storage.resizable()


def _holders(tensor: torch.Tensor) -> tuple[int, int, int]:
    """References to the tensor object beside one variable, of C++ to the tensor, and of either to its memory."""
    storage = tensor.untyped_storage()
    uses = tensor._use_count()  # type: ignore[attr-defined]
    return sys.getrefcount(tensor) - _seen_in_a_call(), uses, torch._C._storage_Use_Count(storage._cdata)


def _seen_in_a_call() -> int:
    """What a call counts of an object that one variable of its caller holds.

    One more where something watches frames, such as braze's own hook or a profiler: CPython then keeps arguments on the
    caller's stack while the call runs. So it is asked each time.
    """
    mark = object()
    return _references(mark)


def _references(mark: object) -> int:
    return sys.getrefcount(mark)


def _held_by_a_call() -> int:
    """How many references a call holds to an argument."""
    return _seen_in_a_call() - 2  # the caller's variable, and the count's own


@functools.cache
def _holders_of_one() -> tuple[int, int]:
    """The last two that ``_holders`` says of a tensor that one variable holds."""
    return _holders(torch.empty(1))[1:]


def taken_over(gradients: tuple[torch.Tensor | None, ...], least: int) -> list[torch.Tensor | None]:
    """The arguments of a ``Function.backward``, of which those of ``least`` bytes or more are the caller's alone.

    The engine holds gradients until the backward returns. Where nobody else does (no hook, no retained gradient, no
    variable of the user's), their memory changes hands, and the engine's tensor is left empty.
    """
    made: list[torch.Tensor | None] = []
    if not holder_counts.holds():
        return list(gradients)
    for i in range(len(gradients)):
        made.append(_taken(gradients, i) if _is_large(gradients[i], least) else gradients[i])
    return made


def _is_large(gradient: torch.Tensor | None, least: int) -> bool:
    if type(gradient) is not torch.Tensor or gradient.nbytes < least or gradient.requires_grad:
        return False
    return owns_all(gradient)


def _taken(gradients: tuple[torch.Tensor | None, ...], i: int) -> torch.Tensor | None:
    gradient = gradients[i]
    if gradient is None or _holders(gradient) != _holders_of_argument():
        return gradient
    own = gradient.detach()
    gradient.data = own.new_empty(0)
    return own


@functools.cache
def held_by_engine() -> tuple[int, int, int] | None:
    """What the C core counts of a gradient that only the engine holds: references, uses of the tensor, uses of its memory; None where counts do not tell."""
    if not holder_counts.holds():
        return None
    _Looked._backward_cls.apply = native.look()  # type: ignore[attr-defined]
    with torch.enable_grad():
        y = _Looked.apply(torch.zeros(4, requires_grad=True))
        (y * torch.ones(4)).sum().backward()
    return y.grad_fn.references, *_holders_of_argument()[1:]


class _Looked(torch.autograd.Function):
    """Its step back is the core's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


class _Probe(torch.autograd.Function):
    """Notes how a gradient is held that only the engine holds."""

    found: tuple[int, int, int]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _Probe.found = _look(gradients)
        return gradients[0]


def _look(gradients: tuple[torch.Tensor, ...]) -> tuple[int, int, int]:
    return _look_at(gradients, 0)


def _look_at(gradients: tuple[torch.Tensor, ...], i: int) -> tuple[int, int, int]:
    gradient = gradients[i]
    return _holders(gradient)


@functools.cache
def _holders_of_argument() -> tuple[int, int, int]:
    with torch.enable_grad():
        x = torch.zeros(4, requires_grad=True)
        (_Probe.apply(x) * torch.ones(4)).sum().backward()
    return _Probe.found


@assumption("counts of who holds a tensor", "no memory changes hands: training takes more of it")
def holder_counts() -> None:
    """A tensor that one variable holds is told from one that a variable, a view, a list or a graph holds too."""
    alone, twice, viewed, shared, listed, saved = (torch.ones(4) for _ in range(6))
    with torch.enable_grad():
        held = (twice, viewed[1:], shared.detach(), [listed], torch.ones(4, requires_grad=True) * saved)
    others = [
        is_held_once(twice),
        is_held_once(viewed),
        is_held_once(shared),
        is_held_once(listed),
        is_held_once(saved),
    ]
    if not is_held_once(alone) or any(others) or len(held) != 5:
        raise AssertionError(f"of one variable: {is_held_once(alone)}; of more: {others}")
    if min(_holders_of_argument()) < 1:
        raise AssertionError(f"a gradient is held by {_holders_of_argument()}")
