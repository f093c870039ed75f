"""A PyTorch that braze is not tested with: whether a frame may be captured there at all."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from braze.graph.private.torch_checks import ASSUMPTIONS, NOTHING, assumption, refusal
from braze.graph.private.torch_import import tested
from braze.support.errors import Unsupported

#: the modules whose import reads private names, or makes rules of them
LOADED = (
    "braze.graph.private.torch_compat",
    "braze.graph.private.holders",
    "braze.graph.fakes.torch_probes",
    "braze.graph.private.torch_settings",
    "braze.graph.private.torch_symbols",
    "braze.capture.trace.tracer",
)


@assumption("private names", NOTHING, refuses=True)
def _names() -> None:
    for module in LOADED:
        importlib.import_module(module)


@assumption("function modes", NOTHING, refuses=True)
def _function_modes() -> None:
    """What a capture records by: each call of torch on a tensor, its methods and its fields."""
    seen = []

    class Hearing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 2)
    with Hearing():
        _ = torch.add(x, 1), x.sin(), x.mT, x + 1, torch.nn.functional.gelu(x)
    base: Any = torch.Tensor
    wanted = [torch.add, base.sin, base.mT.__get__, base.add, torch.nn.functional.gelu]
    if seen != wanted:
        raise AssertionError(f"a mode sees {seen}, not {wanted}")


def examined() -> Iterator[tuple[str, str, str]]:
    """(name, what is wrong with it or "", what follows) of every assumption, tried on whatever version this is."""
    for known in ASSUMPTIONS:  # trying the first loads the modules that enter the others
        yield known.name, known.fault(), known.otherwise


def refusal_here() -> Unsupported | None:
    """Why nothing can be captured with this PyTorch, if so; tried once. None on the versions that are tested."""
    return None if tested() else _refusal()


@functools.cache
def _refusal() -> Unsupported | None:
    return refusal()


def forget() -> None:
    """Try it again at the next capture."""
    _refusal.cache_clear()
