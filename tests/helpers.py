"""What tests of several folders say in the words of the domain."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

import braze
from braze.inspect.explain import Explanation, observe


def explained(fn: Callable[..., Any], *args: Any, backend: Any = "eager", **kwargs: Any) -> Explanation:
    """What a first call compiles."""
    compiled = braze.compile(fn, backend=backend)
    return observe(lambda: compiled(*args, **kwargs), getattr(fn, "__name__", "fn"))


def graphs(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """How many graphs a first call makes."""
    return len(explained(fn, *args, **kwargs).graphs)


def breaks(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[int]:
    """The user lines of a first call's graph breaks."""
    return [found.line for found in explained(fn, *args, **kwargs).breaks]


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """The messages that braze logs inside the block, each once however pytest listens."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger("braze")
    root.addHandler(handler)
    try:
        yield messages
    finally:
        root.removeHandler(handler)


def together(*calls: tuple[Callable[..., Any], *tuple[Any, ...]]) -> list[Any]:
    """What compiled functions give, each followed by its arguments: one graph, so that a capture and a build serve them all.

    Each call has memory of its own, as its arguments lie, so that nothing is shared or fused between them: their kernels are
    those that each has alone.
    """
    functions = [f for f, *_ in calls]
    given = [copy.deepcopy(args) for _, *args in calls]

    def program(given: list[list[Any]]) -> list[Any]:
        return [f(*args) for f, args in zip(functions, given)]

    return braze.compile(program)(given)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors(item)]
    return []


def as_double(value: Any) -> Any:
    """A deep copy with floating-point tensors and modules in float64."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    if isinstance(value, dict):
        return {k: as_double(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(as_double(v) for v in value)
    return value


def assert_like_eager(fn: Callable[..., Any], *args: Any, backend: Any = "braze", **kwargs: Any) -> None:
    """Compiled and eager agree in kind, and compiled is no further from the float64 result than eager.

    "No further" leaves room for rounding: twice eager's error, or a few units in the last place of the largest
    value.
    """
    compiled = braze.compile(fn, backend=backend)
    with torch.no_grad():
        theirs = tensors(fn(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        ours = tensors(compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        exact = tensors(as_double(fn)(*as_double(args), **as_double(kwargs)))
    assert len(ours) == len(theirs)
    for a, b, c in zip(ours, theirs, exact):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        if not b.is_floating_point():
            assert torch.equal(a, b)
            continue
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.isinf(), b.isinf())
        finite = b.isfinite()
        if not finite.any():
            continue
        a, b, c = a[finite].double(), b[finite].double(), c[finite].double()
        room = 8 * torch.finfo(theirs[0].dtype).eps * float(c.abs().max().clamp_min(1e-30))
        assert float((a - c).abs().max()) <= 2 * float((b - c).abs().max()) + room


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, PyTorch computes with so many threads; behind it with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
