"""What tensors from outside are besides their metadata: the fakes that stand for them do not know."""

from __future__ import annotations

from typing import Any

import torch

from braze import native
from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Step
from braze.capture.facts.values import words
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace
from braze.graph.fakes.fakes import was_given_history
from braze.graph.private.torch_compat import storage_key
from braze.native import calibrate, torch_state

#: attributes that tell a tensor's place in autograd: read of the tensor itself, and guarded
READ = frozenset(words("is_leaf retains_grad output_nr grad_fn"))
#: attributes that nobody can know before the graph runs
REFUSED = frozenset(
    words(
        """_grad_fn _backward_hooks _post_accumulate_grad_hooks _cdata _base _version __dict__
        _python_dispatch _has_symbolic_sizes_strides"""
    )
)
FIELDS = READ | REFUSED
#: methods that tell where a tensor's memory is
OF_MEMORY = frozenset(words("storage_offset is_shared is_pinned is_set_to"))
METHODS = OF_MEMORY | {"is_inference", "_is_view"}


def field(t: Trace, obj: torch.Tensor, name: str) -> Any:
    """``tensor.name`` for a name of ``FIELDS``."""
    if name in REFUSED:
        graph_break("BZ1004", f"Tensor.{name} is read")
    node = t.outside.tree.node_of(obj)
    if node is not None and was_given_history(obj):
        graph_break("BZ1004", f"Tensor.{name} is read of an argument to whose history the graph has added")
    value = getattr(obj if node is None else node.real, name)
    if name == "grad_fn" and (value is not None or (node is None and not obj.is_leaf)):
        graph_break("BZ1004", "Tensor.grad_fn is read of a tensor that has one")
    return value if node is None else t.outside.read(node, Step.ATTR, name, value)


def query(t: Trace, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of ``METHODS``, given its descriptor."""
    name = fn.__name__
    if name == "is_inference":
        return is_inference(t, args[0])
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if name == "_is_view" or any(is_outside(t.outside, tensor) for tensor in tensors):
        graph_break("BZ1004", f"Tensor.{name}() of a tensor that comes from outside")
    return fn(*args, **kwargs)


def is_outside(outside: Outside, tensor: torch.Tensor) -> bool:
    """Whether a tensor is over memory that comes from outside."""
    memory = storage_key(tensor)
    inputs = [node.value for node in outside.tree.inputs]
    return any(storage_key(value) == memory for value in inputs if isinstance(value, torch.Tensor))


def tell_memory(t: Trace, tensor: torch.Tensor) -> None:
    """Guard how what comes from outside lies in its memory, where a tensor is of that: PyTorch lays a tangent in as much, unless both begin theirs.

    Of sizes that vary the fake is all of its memory. A part goes on in Python: its memory varies with the sizes in no way that a guard could tell.
    """
    while (stand_in := t.graph.stand_ins.get(storage_key(tensor))) is not None:
        tensor = stand_in[1]
    for node in t.outside.tree.inputs:
        value = node.value
        if not isinstance(value, torch.Tensor) or storage_key(value) != storage_key(tensor):
            continue
        if native.native_available and calibrate.facts() is None:
            graph_break("BZ1019", "how an argument lies in its memory cannot be guarded")
        varies = not all(type(n) is int for n in (*value.shape, *value.stride()))
        itemsize = value.itemsize if varies else 0
        lies = torch_state.memory(node.real, itemsize)
        if varies and not lies:
            graph_break("BZ1019", "it goes forward from a part of an argument's memory, and sizes vary")
        t.outside.tree.tell(node.child(Step.MEMORY, itemsize), lies, t.frames.here())


def is_given_whole(outside: Outside, tensor: torch.Tensor) -> bool:
    """Whether a tensor that is detached in place comes from outside. There it is no view, of which eager refuses that; a fake does not know."""
    node = outside.tree.node_of(tensor)
    if node is None:
        return False
    if node.real._base is not None:
        graph_break("BZ1010", "a view that comes from outside is detached in place")
    outside.read(node, Step.ATTR, "_base", None)
    return True


def is_inference(t: Trace, tensor: torch.Tensor) -> bool:
    """Whether a tensor was made in inference mode. Guards on tensors from outside see that in their dispatch keys."""
    if t.options.keep_captures:  # guards of what is read back have the keys of the tensors met then
        graph_break("BZ1004", "Tensor.is_inference() in a capture to be kept")
    node = t.outside.tree.node_of(tensor)
    if node is not None:
        return bool(node.real.is_inference())
    kinds = {
        bool(at.real.is_inference()) for at in t.outside.tree.inputs if isinstance(at.real, torch.Tensor)
    }
    # a view is what its base is, anything else as the mode
    if t.graph.knew_inference or kinds - {t.outside.settings.inference}:
        graph_break("BZ1004", "Tensor.is_inference() of a tensor that the graph makes")
    return t.outside.settings.inference
