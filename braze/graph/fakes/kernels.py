"""Kernels that the program registers for ATen's operators (``torch.library.Library("aten", "IMPL")``).

In eager such a kernel runs wherever its operator is called. One for a backend runs below autograd: compiled code calls the
operator as one of the program's own (``aot/trace/recorder.py``). One above that (under Autograd, Autocast, or instead of PyTorch's composition)
is Python that would run on the fakes of a trace: a graph ends before what reaches such an operator.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.fakes import torch_composites
from braze.graph.private import torch_compat
from braze.runtime.operators.purity import added_kernels, forget_kernels
from braze.support.errors import Unsupported

#: dispatch keys of kernels that compute, below autograd
BACKENDS = frozenset(
    {"CPU", "CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "BackendSelect"}
)


def called() -> frozenset[OpOverload]:
    """The operators that have a kernel of the program's below autograd: they are called."""
    return _of(added_kernels(), True)


def above() -> frozenset[OpOverload]:
    """Those that have one above it: they end a graph."""
    return _of(added_kernels(), False)


@functools.lru_cache(maxsize=4)
def _of(kernels: frozenset[tuple[str, str]], below: bool) -> frozenset[OpOverload]:
    return frozenset(_overload(name) for name, key in kernels if (key in BACKENDS) is below)


def _overload(name: str) -> OpOverload:
    """The operator of ``add.Tensor`` or ``relu``."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")  # type: ignore[no-any-return]


def refusing() -> contextlib.AbstractContextManager[None]:
    """Inside, an operator with a kernel of the program's above autograd raises Unsupported BZ2032 instead of running that."""
    ops = above()
    return torch_composites.instead_of(ops, _refuse) if ops else contextlib.nullcontext()


def _refuse(op: OpOverload) -> Any:
    raise Unsupported(
        "BZ2032",
        f"{op}, for which the program has registered a kernel above autograd",
        why="what it does is Python that runs at each call; a trace would run it on tensors without data",
    )


def watch(changed: Callable[[], None]) -> None:
    """Call ``changed`` whenever the program registers a kernel for an operator of ATen's from now on, or takes one back."""
    if changed in _watchers:
        return
    _watchers.append(changed)
    if len(_watchers) == 1:
        global _told
        _told = added_kernels()
        register = torch.library.Library.impl

        @functools.wraps(register)
        def impl(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return register(self, *args, **kwargs)
            finally:
                if self.ns == "aten":  # another library's are none for ATen's
                    _look_again()
                else:
                    forget_kernels()

        torch.library.Library.impl = impl  # type: ignore[assignment,method-assign]
        torch_compat.after_libraries_end(_look_again)


def _look_again() -> None:
    """Tell the watchers if the program's kernels are others than they were told of last."""
    global _told
    forget_kernels()
    now = added_kernels()
    if now != _told:
        _told = now
        for each in _watchers:
            each()


_watchers: list[Callable[[], None]] = []
#: the kernels that they know of
_told: frozenset[tuple[str, str]] = frozenset()


def key() -> Any:
    """What tells one state of the program's kernels from another; None where there are none."""
    return added_kernels() or None
