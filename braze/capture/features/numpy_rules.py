"""Numpy while tracing: computed for real where everything is known, as ``np.prod(x.shape)``; else the graph ends.

An array made in the trace is an object of the trace. What one from outside holds is not known, and goes into the graph in a tensor over
its memory. That is found at a place below the array (``Step.TENSOR_OF``): each call makes it anew before the graph runs, as
``torch.from_numpy`` does. Its guard says the array's dtype, sizes and strides, so that these may be asked for. Computing with
such an array, or with one made of a tensor's data, is a break.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from typing import Any, NoReturn

import numpy as np
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from braze import native
from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, graph_break
from braze.capture.facts.records import Check, Guard, Source, Step
from braze.capture.facts.values import MISSING, is_constant, words
from braze.capture.graph import literals, tensor_facts
from braze.capture.outside import reads
from braze.capture.outside.looked_into import fill_arguments
from braze.capture.python import operations
from braze.capture.state.handlers import Feature
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import GraphState, Trace
from braze.graph.private import torch_compat, torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.native import torch_state
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
    array_str seterr setbufsize set_printoptions empty empty_like _get_extobj_dict _make_extobj geterrobj seterrobj"""
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
        refuse_unknown(getattr(fn, "__name__", fn))
    return native.unhooked(fn, *args, **kwargs)


def refuse_unknown(what: Any) -> NoReturn:
    """Break at what looks at numbers that only the call tells."""
    reason = f"numpy.{what} computes with what only the call tells"
    graph_break("BZ1014", reason, "use the function of torch", HINT_MOVE)


def called(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """A function of numpy's, or a method of an array or number that the trace knows all of."""
    owner = getattr(fn, "__self__", None)
    if type(fn) in (types.MethodDescriptorType, types.WrapperDescriptorType) and args:
        owner = args[0]
    told = answer(t, fn, args, kwargs)
    if told is not MISSING:
        return told
    if type(owner) is np.ndarray and is_outside(t.outside, owner):
        refuse_unknown(f"ndarray.{fn.__name__}")
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
    if is_outside(t.outside, args[0]) and not kwargs and len(args) == 1:
        return shared(t, args[0])
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
    data_name = "obj" if function is torch.asarray else "data"
    if not args and data_name in kwargs:
        kwargs = dict(kwargs)
        args = (kwargs.pop(data_name),)
    if function is torch.asarray and args and ends_gradients(t.outside, args[0], kwargs):
        if tensor_facts.field(t, args[0], "is_leaf"):
            graph_break("BZ1010", "torch.asarray sets requires_grad of a tensor that comes from outside")
        return t.graph.recorder.call(torch.Tensor.detach, (args[0],), {})
    if len(args) == 1 and is_outside(t.outside, args[0]):
        return tensor_from(t, function, args[0], kwargs)
    if len(args) == 1 and t.outside.unread:
        made = literals.of_outside(t.outside, t.graph, args[0], kwargs)
        if made is not MISSING:
            return made
    if args and type(args[0]) is np.ndarray:
        if function is torch.tensor:
            return literal(t, function, args[0], kwargs)
        made = from_numpy(t, args, {}, tail)
        return t.graph.recorder.call(torch.Tensor.to, (made,), kwargs) if kwargs else made
    if args and holds_numbers(args[0]):  # a type that is asked for may be refused
        dtype = tried(t.graph, function, args, kwargs).dtype
        kwargs = {**kwargs, "dtype": dtype}
    fill_arguments(t.outside, args)
    if len(args) == 1 and kwargs.keys() <= WORDS:
        made = literals.made(t.graph, args[0], kwargs.get("dtype"), kwargs.get("device"))
        if made is not MISSING:
            return made
    data = [with_known_numbers(a) for a in args[:1]]
    return without_constant(t.graph.recorder.call(function, (*data, *args[1:]), kwargs))


def ends_gradients(outside: Outside, x: Any, kwargs: dict[str, Any]) -> bool:
    """Whether ``asarray`` gives a tensor from outside as it is, but for its gradient: a leaf itself, of which it sets the flag, or another detached.

    Fakes are leaves all.
    """
    if not isinstance(x, torch.Tensor) or not x.requires_grad:
        return False
    if outside.tree.node_of(x) is None or kwargs.get("copy"):
        return False
    wanted, device = kwargs.get("requires_grad"), kwargs.get("device")
    if wanted or (wanted is None and asarray_keeps_gradients()):
        return False
    if kwargs.get("dtype") not in (None, x.dtype):
        return False
    place = x.device if device is None else torch.device(device)
    # one with a number is another than one without, and what lies there is copied
    return place.type == x.device.type and place.index in (None, x.device.index)


@functools.cache
def asarray_keeps_gradients() -> bool:
    """Whether ``asarray`` of what wants a gradient wants one where nothing is said: PyTorch before 2.13 takes it away, from the tensor itself."""
    leaf = torch.empty(0, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch_compat.disable_functions(), torch_compat.outside_modes():
            torch.asarray(leaf)
    return leaf.requires_grad


def without_constant(made: torch.Tensor) -> torch.Tensor:
    """A fake that does not tell what it holds: PyTorch would read a size or an index out of it while tracing, and no stage after that could.

    Where it asks, and gets no answer, the call is made with the number (``constant_evaluation.call_with_numbers``).
    """
    if isinstance(made, FakeTensor):
        made.constant = None
    return made


#: with these words alone a tensor is made of numbers that change
WORDS = frozenset({"dtype", "device"})


def tried(graph: GraphState, function: Any, args: Any, kwargs: Any) -> Any:
    """What a call gives, or its refusal, without a place in the graph."""
    trial = graph.recorder.call(function, args, kwargs)
    graph.recorder.forget(trial)
    return trial


@rule(torch.Tensor.new_tensor)
def make_like(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``x.new_tensor(numbers)``."""
    fill_arguments(t.outside, args)
    if "data" in kwargs and len(args) == 1:
        kwargs = dict(kwargs)
        args = (*args, kwargs.pop("data"))
    if len(args) == 2 and t.outside.unread:
        words = {"dtype": args[0].dtype, "device": args[0].device} | {
            k: v for k, v in kwargs.items() if v is not None
        }
        made = literals.of_outside(t.outside, t.graph, args[1], words)
        if made is not MISSING:
            return made
    if any(map(holds_numbers, args[1:2])):
        tried(t.graph, torch.Tensor.new_tensor, args, kwargs)
    if len(args) == 2 and kwargs.keys() <= WORDS:
        like = {"dtype": args[0].dtype, "device": args[0].device}
        made = literals.made(t.graph, args[1], **like | {k: v for k, v in kwargs.items() if v is not None})
        if made is not MISSING:
            return made
    data = [with_known_numbers(a) for a in args[1:2]]
    return without_constant(
        t.graph.recorder.call(torch.Tensor.new_tensor, (*args[:1], *data, *args[2:]), kwargs)
    )


def with_known_numbers(data: Any) -> Any:
    """Numbers that become a tensor's, as they are in this call: PyTorch guards symbols among them, and reads 32 bits of each."""
    if type(data) in (list, tuple, torch.Size):
        return [with_known_numbers(item) for item in data]
    if issubclass(type(data), np.generic):
        return data.item()
    if type(data) is torch.SymInt and not torch_symbols.is_unbacked(data):
        return int(data)
    return data


# -- arrays from outside


#: attributes of an array -> the same of the tensor over its memory
METADATA: dict[str, Any] = {
    "shape": lambda tensor: tuple(tensor.shape),
    "ndim": lambda tensor: tensor.dim(),
    "size": lambda tensor: tensor.numel(),
    "itemsize": lambda tensor: tensor.element_size(),
    "nbytes": lambda tensor: tensor.numel() * tensor.element_size(),
    "strides": lambda tensor: tuple(n * tensor.element_size() for n in tensor.stride()),
}
#: functions of numpy that ask for no more
QUESTIONS = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}
#: functions of numpy that give an array as it is
SAME = (np.asarray, np.asanyarray)


def is_outside(outside: Outside, value: Any) -> bool:
    """Whether this is an array that the trace has not made itself."""
    return type(value) is np.ndarray and outside.tree.node_of(value) is not None


def place_of(t: Trace, array: Any) -> Node | None:
    """The place of the tensor over an array's memory; None where PyTorch makes none."""
    above = t.outside.tree.node_of(array)
    assert above is not None
    node = above.child(Step.TENSOR_OF, "writable" if array.flags.writeable else "read-only")
    if node.real is MISSING:
        try:
            with torch_compat.disable_functions(), torch_compat.outside_modes():
                real = native.unhooked(torch.from_numpy, array)
        except (TypeError, ValueError):
            return None
        reads.wrap(t, node, real)
    return node


def usable(t: Trace, array: Any) -> Node:
    """The place of the tensor over an array's memory, for a program that wants the tensor itself."""
    if t.graph.knew_inference:
        refuse("it would be made before inference mode is entered or left")
    node = place_of(t, array)
    if node is None:
        refuse_array(t.outside, array)
    return node


def shared(t: Trace, array: Any) -> Any:
    """``torch.from_numpy(array)``."""
    node = usable(t, array)
    if node not in t.outside.arrays:
        t.outside.arrays.add(node)
        return node.value
    # another tensor over the same memory
    return t.graph.recorder.call(torch.Tensor.detach, (node.value,), {})


def copied(t: Trace, array: Any, kwargs: dict[str, Any]) -> Any:
    """``torch.tensor(array)``: the array's numbers as they are when the program is there."""
    if not array.flags.writeable:
        flag = attribute(t.outside, array, "flags", "writeable")
        refuse("PyTorch would warn of sharing the memory of one that may not be written", (flag, False))
    node = usable(t, array)
    wanted = dict(kwargs)
    grad = wanted.pop("requires_grad", False)
    made = t.graph.recorder.call(torch.Tensor.to, (node.value,), {**wanted, "copy": True})
    return t.graph.recorder.call(torch.Tensor.requires_grad_, (made,), {}) if grad else made


def attribute(outside: Outside, array: Any, *names: str) -> Source:
    """Where an attribute of an array is, or an attribute of that."""
    place = outside.tree.node_of(array)
    assert place is not None
    source = place.source
    for name in names:
        source = Source(Step.ATTR, name, source)
    return source


def refuse_array(outside: Outside, array: Any) -> NoReturn:
    """Break at an array of which PyTorch makes no tensor: others of its dtype and strides break here too."""
    values: list[tuple[Source, Any]] = [(attribute(outside, array, "dtype", "str"), array.dtype.str)]
    if any(step < 0 for step in array.strides):
        values.append((attribute(outside, array, "strides"), array.strides))
    refuse("PyTorch makes no tensor of such an array", *values)


def tensor_from(t: Trace, function: Any, array: Any, kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``, ``as_tensor`` and ``asarray`` of an array from outside."""
    if kwargs.get("copy") is False and len(kwargs) > 1:
        refuse("it may not be copied, and PyTorch says whether it must be")
    kwargs = {k: v for k, v in kwargs.items() if v is not None and v is not False}
    copies = kwargs.pop("copy", False) or function is torch.tensor
    allowed = {"dtype", "device", "requires_grad"} if copies else {"dtype", "device"}
    if not kwargs.keys() <= allowed:
        refuse(f"torch.{function.__name__} of it with {', '.join(sorted(kwargs.keys() - allowed))}")
    if torch_state.default_device() is not None:
        refuse("tensors are made on another device by default")
    if copies:
        return copied(t, array, kwargs)
    made = shared(t, array)
    return t.graph.recorder.call(torch.Tensor.to, (made,), kwargs) if kwargs else made


def refuse(why: str, *values: tuple[Source, Any]) -> NoReturn:
    """Break at what makes a tensor of an array, where these values are what they are."""
    signal = BreakSignal(
        "BZ1013", f"an array of numpy's goes into a graph: {why}", ("make it a tensor outside",)
    )
    signal.guards = tuple([Guard(source, Check.EQUAL, value) for source, value in values])
    raise signal


def field(t: Trace, array: Any, name: str) -> Any:
    """``array.name``, where the tensor over its memory tells; MISSING elsewhere."""
    if name not in METADATA and name != "dtype":
        return MISSING
    node = place_of(t, array)
    if node is None:
        return MISSING
    if name in METADATA:
        return METADATA[name](node.value)
    if array.dtype.metadata is not None:
        return MISSING
    assert node.parent is not None
    # by what it says: unpickled arrays have dtypes of their own
    dtype = node.parent.child(Step.ATTR, "dtype")
    t.outside.read(dtype, Step.ATTR, "char", array.dtype.char)
    return array.dtype


def length(t: Trace, array: Any) -> Any:
    """``len(array)``."""
    if not is_outside(t.outside, array):
        return MISSING
    shape = t.attribute(array, "shape")
    if not shape:
        raise TypeError("len() of unsized object")
    return shape[0]


def answer(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """What a function of numpy says of an array's metadata, or the array itself; MISSING for any other."""
    if kwargs or len(args) != 1 or not is_outside(t.outside, args[0]):
        return MISSING
    if fn in SAME:
        return args[0]
    return t.attribute(args[0], QUESTIONS[fn]) if fn in QUESTIONS else MISSING


FEATURE.fields[np.ndarray] = field
FEATURE.lengths[np.ndarray] = length
