"""Numpy while tracing: computed for real where everything is known, as ``np.prod(x.shape)``; else the graph ends.

An array made in the trace is an object of the trace. Of one from outside (arrays.py) the metadata are known, and tensors
are made of it; computing with it, or with one made of a tensor's data, is a break.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import torch

from braze import native
from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.values import MISSING, is_constant, words
from braze.capture.features import arrays
from braze.capture.outside.filling import fill_arguments
from braze.capture.python import operations
from braze.capture.state.handlers import Feature
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace
from braze.graph.torch_symbols import SYMBOLIC
from braze.support.dtypes import SHORT

FEATURE = Feature()
rule = FEATURE.call

#: elements of an array that is written into the graph, at most
LARGEST = 4096
IMPURE = ("numpy.random", "numpy.lib._npyio_impl", "numpy.lib.npyio")
#: functions that touch files, or settings of numpy's
IMPURE_FUNCTIONS = frozenset(
    words(
        """load save savez savez_compressed loadtxt savetxt genfromtxt fromfile fromregex array2string array_repr
    array_str seterr setbufsize set_printoptions empty empty_like"""
    )
)
#: methods of arrays that touch the outside
IMPURE_METHODS = frozenset({"dump", "dumps", "tofile", "setflags"})
NUMPY = (np.ndarray, np.generic, np.dtype)
#: functions of numpy written in C, and those that may be overridden for other array types
KINDS = (np.ufunc, type(np.prod))


def is_numpy(fn: Any) -> bool:
    """Whether this is a function of numpy that computes and does nothing else."""
    if issubclass(type(fn), np.ufunc):
        return vars(np).get(fn.__name__) is fn  # others may be made of Python functions
    module = getattr(fn, "__module__", None) or ""
    if module.partition(".")[0] != "numpy" or module.startswith(IMPURE) or fn.__name__ in IMPURE_FUNCTIONS:
        return False
    return issubclass(type(fn), (*KINDS, types.BuiltinFunctionType)) or fn is np.dtype or is_number(fn)


def is_number(cls: Any) -> bool:
    """Whether this is a class of numpy's numbers."""
    return issubclass(type(cls), type) and issubclass(cls, np.generic) and cls.__module__ == "numpy"


def known(outside: Outside, value: Any, depth: int = 4) -> bool:
    """Whether all that C code can see in a value is known while tracing."""
    if is_constant(value) or issubclass(type(value), np.generic | np.dtype | type | torch.Size):
        return True
    if type(value) is np.ndarray:
        return outside.tree.node_of(value) is None and value.dtype != object
    if depth and type(value) in (list, tuple):
        return all(known(outside, v, depth - 1) for v in value)
    return depth > 0 and type(value) is dict and all(known(outside, v, depth - 1) for v in dict.values(value))


def settled(value: Any) -> Any:
    """A value without symbols: numpy gets the numbers, which are guarded."""
    if issubclass(type(value), list | tuple) and any(type(v) in SYMBOLIC for v in value):
        return tuple(map(operations.number, value)) if isinstance(value, tuple) else list(map(settled, value))
    return operations.number(value)


def call(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Run a function of numpy."""
    fill_arguments(t.outside, args)
    args, kwargs = tuple(map(settled, args)), {k: settled(v) for k, v in (kwargs or {}).items()}
    if not known(t.outside, args) or not known(t.outside, kwargs):
        graph_break(
            "BZ1014",
            f"numpy.{getattr(fn, '__name__', fn)} computes with what only the call tells",
            "use the function of torch",
            HINT_MOVE,
        )
    return native.unhooked(fn, *args, **kwargs)


def called(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """A function of numpy's, or a method of an array or number that the trace knows all of."""
    owner = getattr(fn, "__self__", None)
    if type(fn) in (types.MethodDescriptorType, types.WrapperDescriptorType) and args:
        owner = args[0]
    answer = arrays.answer(t, fn, args, kwargs)
    if answer is not MISSING:
        return answer
    if type(owner) is np.ndarray and arrays.is_outside(t.outside, owner):
        arrays.refuse_method(fn.__name__)
    if is_numpy(fn) or (
        issubclass(type(owner), NUMPY) and fn.__name__ not in IMPURE_METHODS and known(t.outside, owner)
    ):
        return call(t, fn, args, kwargs)
    return MISSING


FEATURE.libraries.append(called)


# -- arrays and numbers become tensors


def literal(t: Trace, function: Any, array: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor of an array's elements, written into the graph."""
    if not known(t.outside, array) or not 0 < array.size <= LARGEST:
        graph_break("BZ1013", "an array of numpy's goes into a graph", "make it a tensor outside")
    dtype = kwargs.get("dtype") or DTYPES.get(array.dtype.name)
    if dtype is None:
        graph_break("BZ1013", f"an array of {array.dtype} goes into a graph", "make it a tensor outside")
    return t.graph.recorder.call(function, (array.tolist(),), {**kwargs, "dtype": dtype})


#: numpy calls the types that both have by PyTorch's names
DTYPES = {
    name: getattr(torch, name)
    for name in SHORT
    if name in ("bool", "uint8") or (hasattr(np, name) and name[0] != "u")
}
#: references to an array that only the call holds
TEMPORARY = 5


@rule(torch.from_numpy)
def from_numpy(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A tensor that shares its memory with an array: with one that nothing else holds, a literal."""
    if arrays.is_outside(t.outside, args[0]) and not kwargs and len(args) == 1:
        return arrays.shared(t, args[0])
    if type(args[0]) is not np.ndarray or args[0].base is not None or not is_temporary(t, args):
        graph_break("BZ1014", "a tensor shares its memory with an array of numpy's", "use torch.tensor")
    return literal(t, torch.tensor, args[0], {})


def is_temporary(t: Trace, args: Any) -> bool:
    """Whether no variable holds the array."""
    array = args[0]
    held = [v for f in t.frames.stack for v in (*f.locals, *f.stack) if v is array]
    return not held and t.outside.tree.node_of(array) is None and sys.getrefcount(array) <= TEMPORARY


def holds_numbers(value: Any) -> bool:
    """Whether a number of numpy's is in a value."""
    if issubclass(type(value), list | tuple):
        return any(map(holds_numbers, value))
    return issubclass(type(value), np.generic)


@FEATURE.each(torch.tensor, torch.as_tensor, torch.asarray)
def make(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``torch.tensor`` and its like: numbers of numpy's bring their dtype."""
    if len(args) == 1 and arrays.is_outside(t.outside, args[0]):
        return arrays.tensor_from(t, function, args[0], kwargs)
    if args and type(args[0]) is np.ndarray:
        if function is torch.tensor:
            return literal(t, function, args[0], kwargs)
        made = from_numpy(t, args, {}, tail)
        return t.graph.recorder.call(torch.Tensor.to, (made,), kwargs) if kwargs else made
    if args and holds_numbers(args[0]) and kwargs.get("dtype") is None:
        trial = t.graph.recorder.call(function, args, kwargs)
        t.graph.recorder.forget(trial)
        kwargs = {**kwargs, "dtype": trial.dtype}
    fill_arguments(t.outside, args)
    return t.graph.recorder.call(function, tuple(args), kwargs)
