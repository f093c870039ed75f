"""How a compiled program is compared with the same program run by Python: everything that a caller can see.

A *scenario* takes ``c``, which compiles a function (or returns it as it is), and yields what it observes. Each
observation is photographed when it is yielded: values, types, strides, which objects are the same object, which
tensors share storage, and for an exception its message and the user's lines of its traceback.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import io
import random
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import braze

Scenario = Callable[[Callable[..., Any]], Iterator[Any]]
SCENARIOS: dict[str, Scenario] = {}
#: the scenarios that are run with braze's own kernels too
WITH_KERNELS: set[str] = set()
#: the scenarios that are captured without a graph break, each function in one graph
WHOLE: set[str] = set()


def scenario(fn: Scenario) -> Scenario:
    """Register a generator function that compiles with its argument and yields what it sees."""
    assert fn.__name__ not in SCENARIOS, fn.__name__
    SCENARIOS[fn.__name__] = fn
    return fn


def whole(fn: Scenario) -> Scenario:
    """A scenario whose functions are captured without a break, and run with kernels too."""
    WHOLE.add(fn.__name__)
    WITH_KERNELS.add(fn.__name__)
    return scenario(fn)


def scenarios_of(module: types.ModuleType) -> list[str]:
    """The names of the scenarios that a module registers."""
    return [name for name, found in SCENARIOS.items() if found.__module__ == module.__name__]


def case(
    *calls: Any, times: int = 2, kernels: bool = False, whole: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function to be called with each tuple of ``calls``, all of them ``times`` times over.

    Every call gets copies of its arguments (made together, so what is shared stays shared); the arguments are
    looked at after the call. ``whole``: no call breaks the graph.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(c: Callable[..., Any]) -> Iterator[Any]:
            compiled = c(fn)
            for args in (calls or ((),)) * times:
                fresh = copy.deepcopy(args)
                yield attempt(compiled, *fresh), fresh

        run.__name__ = fn.__name__
        scenario(run)
        if kernels:
            WITH_KERNELS.add(fn.__name__)
        if whole:
            WHOLE.add(fn.__name__)
        return fn

    return register


def attempt(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        return error


def said(fn: Callable[[], Any]) -> Any:
    """What a call returns, or the kind and message of its exception."""
    try:
        return fn()
    except Exception as error:
        return type(error), str(error)


def observe(name: str, c: Callable[..., Any], *, exact: bool = True) -> list[Any]:
    """Photographs of all that a scenario yields, then what it printed and how far random numbers moved."""
    torch.manual_seed(0)
    random.seed(0)
    camera = Camera(exact)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        seen = [camera.photo(value) for value in SCENARIOS[name](c)]
    state = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
    seen += [("printed", out.getvalue()), ("modes", state), ("random", random.random())]
    if exact:
        seen.append(("torch.rand", float(torch.rand(()))))
    return seen


def check_like_python(name: str, *, kernels: bool = False) -> None:
    """Compiled, a scenario shows what it shows in Python: bit for bit, or with kernels up to rounding."""
    backend = "braze" if kernels else "eager"
    expected = observe(name, lambda fn: fn, exact=not kernels)
    seen = observe(name, lambda fn: braze.compile(fn, backend=backend), exact=not kernels)
    for ours, theirs in zip(seen, expected):
        assert ours == theirs
    assert len(seen) == len(expected)


class Values:
    """A tensor's values; equal bit for bit (any NaN is the same), or up to rounding."""

    def __init__(self, tensor: torch.Tensor, exact: bool) -> None:
        self.tensor = tensor.detach().as_subclass(torch.Tensor).clone()
        self.exact = exact or not tensor.dtype.is_floating_point

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Values):
            return NotImplemented
        a, b = self.tensor, other.tensor
        if self.exact and a.dtype == b.dtype and a.dtype.is_floating_point:
            return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) and torch.equal(
                a.signbit(), b.signbit()
            )
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)

    def __repr__(self) -> str:
        return str(self.tensor.tolist())


class Number:
    """A float that may come from a tensor: equal up to rounding."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number):
            return NotImplemented
        a, b = self.value, other.value
        return repr(a) == repr(b) or abs(a - b) <= 1e-6 + 1e-5 * abs(b) < float("inf")

    def __repr__(self) -> str:
        return repr(self.value)


class Camera:
    """Turns values into descriptions that compare equal when a caller could not tell the values apart."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.numbers: dict[int, int] = {}
        self.kept: list[Any] = []
        self.open: set[int] = set()  # what is being described: it may contain itself

    def number(self, value: Any) -> tuple[int, bool]:
        """Which object this is, in the order of first sight, and whether this is the first sight."""
        first = id(value) not in self.numbers
        if first:
            self.numbers[id(value)] = len(self.numbers)
            self.kept.append(value)
        return self.numbers[id(value)], first

    def storage(self, tensor: torch.Tensor) -> int:
        """Which memory a tensor uses, in the order of first sight."""
        memory = tensor.untyped_storage()
        key = -1 - memory._cdata
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.kept.append(memory)
        return self.numbers[key]

    def photo(self, value: Any) -> Any:
        kind = type(value).__qualname__
        if type(value) is float and not self.exact:
            return kind, Number(value)
        if value is None or isinstance(
            value, (bool, int, float, complex, str, bytes, enum.Enum, np.generic, range, slice)
        ):
            return kind, repr(value)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            return kind, getattr(value, "__name__", "?")
        if isinstance(value, torch.Tensor):
            return self.tensor(value, kind)
        if isinstance(value, tuple):
            return kind, [self.photo(item) for item in value]
        if isinstance(value, frozenset):
            return kind, sorted(map(repr, value))
        number, first = self.number(value)
        if id(value) in self.open or not (first or is_plain(value)):
            return kind, number
        self.open.add(id(value))
        described = kind, number, self.inside(value)
        self.open.remove(id(value))
        return described

    def tensor(self, value: torch.Tensor, kind: str) -> Any:
        where = (self.number(value)[0], self.storage(value), value.storage_offset(), value.stride())
        autograd = (value.requires_grad, value.is_leaf)
        return kind, value.dtype, tuple(value.shape), where, autograd, Values(value, self.exact)

    def inside(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return self.exception(value)
        if isinstance(value, dict):
            extra = (
                {k: v for k, v in vars(value).items() if v not in (None, {})}
                if hasattr(value, "__dict__")
                else {}
            )
            return [(self.photo(k), self.photo(v)) for k, v in value.items()], sorted(extra)
        if isinstance(value, (list, deque)):
            return [self.photo(item) for item in value]
        if isinstance(value, set):
            return sorted(map(repr, value))
        if isinstance(value, np.ndarray):
            return repr(value)
        if isinstance(value, nn.Module):
            return value.training, [(k, self.photo(v)) for k, v in value.state_dict(keep_vars=True).items()]
        if isinstance(value, (torch.dtype, torch.device)):
            return repr(value)
        return [(k, self.photo(v)) for k, v in getattr(value, "__dict__", {}).items()]

    def exception(self, error: BaseException) -> Any:
        lines = [
            (f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if "corpus_" in f.filename
        ]
        chained = [type(e).__name__ for e in (error.__cause__, error.__context__) if e is not None]
        return str(error), lines, chained, error.__suppress_context__


def is_plain(value: Any) -> bool:
    """Whether a container is looked at again each time it is seen: it may have changed since."""
    return isinstance(value, (list, dict, set, deque, nn.Module)) or bool(getattr(value, "__dict__", None))
