"""Functions of TorchScript: programs over tensors that C++ runs, so that a call of one is a node of the graph."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import BreakSignal, graph_break
from braze.capture.outside.shadows import fill_arguments
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()

#: where PyTorch notes the Python function that a scripted one was made from
ORIGINAL = "_torchdynamo_inline"


class Scripted:
    """A scripted function as a node's target: graphs name their targets by module and name."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = function.name or "scripted"
        self.__module__ = __name__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


#: the targets that graphs hold: a scripted function is let go with the last graph that calls it
_scripted: weakref.WeakValueDictionary[int, Scripted] = weakref.WeakValueDictionary()


def scripted(function: Any) -> Scripted:
    """The one target for a scripted function."""
    found = _scripted.get(id(function))
    if found is None:  # a target keeps its function, so that no other has this identity while it lives
        found = _scripted[id(function)] = Scripted(function)
    return found


def call_scripted(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """One node; with symbolic sizes, which TorchScript would fix, the Python function that it was made from."""
    original = vars(fn).get(ORIGINAL)
    if t.graph.mode.env is not None and original is not None and vars(fn).get("__name__") is not None:
        # scripted, not traced: a trace holds what was true of its examples only
        return t.call(original, args, kwargs, tail)
    if t.graph.mode.env is not None:
        graph_break("BZ1002", f"the TorchScript function {fn.name} is called with sizes that are symbols")
    fill_arguments(t.outside, args)
    target = scripted(fn)
    try:
        result = t.graph.mode.call(target, tuple(args), kwargs or {})
        if original is None or not is_real(result):
            return t.graph.recorder.call(target, tuple(args), kwargs or {})
    except (
        BreakSignal,
        RuntimeError,
    ) as error:  # what fakes cannot tell comes out as an error of TorchScript's
        if isinstance(error, BreakSignal) and error.code not in ("BZ1003", "BZ1004", "BZ1013"):
            raise
        graph_break("BZ1002", f"the TorchScript function {fn.name} cannot run on metadata alone")
    return t.call(original, args, kwargs, tail)


def is_real(result: Any) -> bool:
    """Whether a tensor was made of numbers within, where PyTorch's versions before 2.12 make no fake."""
    if isinstance(result, (list, tuple)):
        return any(map(is_real, result))
    return isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor)


FEATURE.objects[torch.jit.ScriptFunction] = call_scripted
