"""Arrays of numpy that come from outside: what they hold is not known, and goes into the graph in tensors over their memory.

Such a tensor is found at a place below the array (``Step.TENSOR_OF``): each call makes it anew before the graph runs, as
``torch.from_numpy`` does. Its guard says the array's dtype, sizes and strides, so that these may be asked for.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
import torch.fx

from braze import native
from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, graph_break
from braze.capture.facts.records import Check, Guard, Source, Step
from braze.capture.facts.values import MISSING
from braze.capture.outside import reads
from braze.capture.state.handlers import Feature
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace
from braze.graph import torch_compat
from braze.native import torch_state

FEATURE = Feature()

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
    return t.graph.recorder.call(
        torch.Tensor.detach, (node.value,), {}
    )  # another tensor over the same memory


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


def refuse_method(name: str) -> NoReturn:
    """Break at a method that looks at what an array holds."""
    graph_break(
        "BZ1014",
        f"numpy.ndarray.{name} computes with what only the call tells",
        "use the function of torch",
        HINT_MOVE,
    )


FEATURE.fields[np.ndarray] = field
FEATURE.lengths[np.ndarray] = length
