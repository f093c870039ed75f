"""Making tensors, parameters and modules while tracing, by the constructors of PyTorch's classes; calling functions of TorchScript."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import BreakSignal, graph_break
from braze.capture.outside.looked_into import fill_arguments
from braze.capture.python import calls, higher_order
from braze.capture.python.iteration import elements
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()
rule = FEATURE.call

#: legacy classes of CPU tensors, and what they hold
LEGACY = {
    torch.Tensor: None, torch.FloatTensor: torch.float32, torch.DoubleTensor: torch.float64, torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16, torch.LongTensor: torch.int64, torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16, torch.CharTensor: torch.int8, torch.ByteTensor: torch.uint8, torch.BoolTensor: torch.bool,
}  # fmt: skip


@FEATURE.each(*LEGACY)
def legacy(cls: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``torch.FloatTensor(2, 3)`` is uninitialised, ``torch.FloatTensor([1, 2])`` holds these numbers."""
    wanted = {"dtype": LEGACY[cls] or torch.get_default_dtype(), "device": "cpu"}
    if not kwargs and all(type(a) in (int, torch.SymInt) for a in args):
        return t.graph.recorder.call(torch.empty, (tuple(args) or (0,),), wanted)
    if not kwargs and len(args) == 1 and type(args[0]) is torch.Size:
        return t.graph.recorder.call(torch.empty, (args[0],), wanted)
    if not kwargs and len(args) == 1 and type(args[0]) in (list, tuple) and numbers_only(args[0]):
        return t.graph.recorder.call(torch.tensor, (args[0],), wanted)
    graph_break("BZ1002", f"an instance of {cls.__name__} is made while tracing", "use torch.tensor")


def numbers_only(values: Any) -> bool:
    """Whether nested lists hold plain numbers only."""
    return all(numbers_only(v) if type(v) in (list, tuple) else type(v) in (int, float, bool) for v in values)


@rule(nn.Parameter)
def parameter(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A parameter that lives as long as the trace; one that gets out is made by the program."""
    given = dict(zip(("data", "requires_grad"), args, strict=False), **kwargs)
    data, wanted = given.get("data"), given.get("requires_grad", True)
    if (
        len(args) > 2
        or type(data) is not FakeTensor
        or type(wanted) is not bool
        or set(given) - {"data", "requires_grad"}
    ):
        graph_break(
            "BZ1002",
            "an instance of Parameter is made while tracing",
            "make it outside, or use a plain tensor",
        )
    made = t.graph.recorder.call(torch.Tensor.detach, (data,), {})
    if wanted:
        made = t.graph.recorder.call(torch.Tensor.requires_grad_, (made, True), {})
    made._is_param = True
    t.done.make_leaf(made)
    return made


# -- whole calls


@FEATURE.each(copy.copy, copy.deepcopy)
def copying(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Modules and tensors are copied outside the graph, whole; anything else is copied as Python does it."""
    if issubclass(type(args[0]), torch.Tensor):
        higher_order.break_around(f"a tensor is copied by {function.__name__}")
    if issubclass(type(args[0]), nn.Module) and function is copy.deepcopy:
        higher_order.break_around(f"a {type(args[0]).__name__} is copied by deepcopy")
    return calls.interpret(t, function, args, kwargs, tail)


@FEATURE.each(*higher_order.TUNING)
def tune(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Schedulers and scalers of gradients run between two graphs, as the optimizer that they are for does."""
    graph_break("BZ1022", f"{function.__qualname__} goes by numbers that are others at each step")


@rule(nn.Module._apply)
def apply(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """What ``to``, ``half``, ``cuda`` and their like do to all tensors of a module; often nothing."""
    module, function = args[0], args[1]
    if len(args) == 2 and not kwargs and function.__module__ == nn.Module.__module__:
        state = [*elements(t, t.call(t.attribute(module, "parameters"), ()))]
        state += elements(t, t.call(t.attribute(module, "buffers"), ()))
        if all(t.call(function, (tensor,), None) is tensor for tensor in state):
            return module
    higher_order.break_around("the tensors of a module are moved or converted")


# -- functions of TorchScript: programs over tensors that C++ runs, so that a call of one is a node of the graph


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
    except (BreakSignal, RuntimeError) as error:
        # what fakes cannot tell comes out as an error of TorchScript's
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
