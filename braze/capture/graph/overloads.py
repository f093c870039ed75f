"""Objects that stand for tensors by a ``__torch_function__`` of their own, among the arguments of a torch function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import CONSTANTS, MISSING
from braze.capture.state.trace import Interpreter
from braze.support.caches import remembered

#: of such nothing is asked that the program's code might answer
ORDINARY = CONSTANTS | {FakeTensor, torch.nn.Parameter, torch.dtype, torch.device, torch.SymInt, torch.Size}


@remembered(4096)
def speaks_for_itself(cls: type) -> bool:
    """Whether instances of a class want to be asked what a torch function does with them."""
    return hasattr(cls, "__torch_function__") and not issubclass(cls, torch.Tensor)


def overloaded(values: Iterable[Any]) -> list[Any]:
    """The objects to be asked, one of each class; PyTorch looks into lists and tuples too."""
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in ORDINARY:
            continue
        inside = (
            overloaded(value) if kind is list or kind is tuple else [value] if speaks_for_itself(kind) else []
        )
        found += [v for v in inside if all(type(v) is not type(w) for w in found)]
    return found


def ask(t: Interpreter, objects: list[Any], func: Any, args: Any, kwargs: Any) -> Any:
    """The answer of the first that has one: subclasses before their bases, else from left to right."""
    order: list[Any] = []
    for value in objects:
        place = next((i for i, v in enumerate(order) if issubclass(type(value), type(v))), len(order))
        order.insert(place, value)
    types = tuple(map(type, order))
    for value in order:
        found = t.call(t.attribute(value, "__torch_function__"), (func, types, args, kwargs))
        if found is not NotImplemented:
            return found
    graph_break(
        "BZ1013", f"{getattr(func, '__name__', func)} is refused by all objects that stand for tensors"
    )


def answer(t: Interpreter, func: Any, values: Iterable[Any], args: Any, kwargs: Any) -> Any:
    """What objects among the arguments (``values``: both kinds) say the function gives; MISSING where there are none."""
    objects = overloaded(values)
    return ask(t, objects, func, args, kwargs) if objects else MISSING
