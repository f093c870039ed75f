"""Tensors in the interpreter: attributes and methods, recorded where they compute."""

from __future__ import annotations

import types
from typing import Any, NoReturn

import torch

from braze.capture.facts.breaks import GIVES_MEMORY, graph_break
from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING, lookup_in_mro, words
from braze.capture.graph import tensor_facts
from braze.capture.graph.recorder import METADATA, refuse_unfaked, wanted_gradient
from braze.capture.outside.relied_upon import trust_method
from braze.capture.outside.shadows import instance_dict, keep, write_instance
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Recording, Trace

#: methods that give metadata and never change anything
QUERIES = frozenset(
    words(
        """size dim stride numel nelement element_size is_contiguous is_floating_point is_complex is_signed
    get_device type_as_tuple ndimension is_conj is_neg is_same_size is_distributed sym_size has_names
    dense_dim sparse_dim q_scale __len__ __hash__"""
    )
)
#: methods that change a tensor's own metadata: of a graph's input its guards would no longer be true
RESHAPED_IN_PLACE = frozenset(
    words(
        """transpose_ t_ squeeze_ unsqueeze_ resize_ resize_as_ swapaxes_ swapdims_ as_strided_ set_
    rename_ sparse_resize_"""
    )
)
#: methods that parameters have of their own; a fake of one is of the class of all fakes
PARAMETERS_OWN = frozenset({"__deepcopy__", "__reduce_ex__", "__repr__"})


def tensor_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """``tensor.name``."""
    if t.outside.unfaked:
        if name == "__class__":
            return type(obj) if id(obj) in t.outside.unfaked else dense_class(obj)
        refuse_unfaked(t.outside, (obj,))
    found, _ = lookup_in_mro(torch.Tensor, name)
    own = trust_method(t.outside, name)
    if own and name in METADATA:
        return getattr(obj, name)
    if own and name in tensor_facts.FIELDS:
        return tensor_facts.field(t, obj, name)
    if name in PARAMETERS_OWN and isinstance(obj, torch.nn.Parameter):
        found = vars(torch.nn.Parameter)[name]
    kind = type(found)
    if name == "__class__":
        if not own:
            refuse_replaced(name)
        return dense_class(obj)
    if (
        kind is types.MethodDescriptorType
        or kind is types.WrapperDescriptorType
        or kind is types.FunctionType
    ):
        return types.MethodType(found, obj)
    node = t.outside.tree.node_of(obj)
    if name == "grad":
        if node is None:
            return None
        if node.slots is not None and "grad" in node.slots:
            return node.slots["grad"]
        return t.outside.read(node, Step.ATTR, "grad", node.real.grad)
    if kind is types.GetSetDescriptorType:
        return t.graph.recorder.call(found.__get__, (obj,), {})
    if kind is property:
        return (
            getattr(obj, name)
            if own and name in ("device", "is_meta")
            else t.call(found.fget, (obj,), None, tail)
        )
    if not own:
        refuse_replaced(name)
    value = MISSING
    if node is not None:
        shadow = instance_dict(t.outside, node)
        value = shadow.get(t.outside, name) if shadow is not None else MISSING
        if value is MISSING and type(node.real) is not torch.Tensor:
            value = getattr(type(node.real), name, MISSING)
    elif id(obj) in t.done.tensor_fields:
        value = t.done.tensor_fields[id(obj)][1].get(name, MISSING)
    if value is not MISSING:
        return value
    raise AttributeError(f"'Tensor' object has no attribute '{name}'")


def require_own(outside: Outside, *names: str) -> None:
    """Guard that the special methods by which an operator works on tensors are PyTorch's; what the program has put there Python calls."""
    for name in names:
        if not trust_method(outside, name):
            refuse_replaced(name)


def refuse_replaced(name: str) -> NoReturn:
    """Break at what the program has put into the class of tensors."""
    graph_break("BZ1002", f"Tensor.{name} is not PyTorch's own")


def dense_class(obj: Any) -> type:
    """The class of the tensor that a fake stands for."""
    return torch.nn.Parameter if isinstance(obj, torch.nn.Parameter) else torch.Tensor


def is_operand(recorder: Recording, x: torch.Tensor) -> bool:
    """Whether a node over a subgraph (a branch, a loop's body) was given a tensor, whose fake is that of the subgraph's input."""
    known = recorder.nodes.get(id(x))
    given = [n for user in known[1].users for n in user.all_input_nodes] if known is not None else []
    return any(
        n.op == "get_attr" and isinstance(recorder.modules.get(str(n.target)), torch.fx.GraphModule)
        for n in given
    )


def tensor_method(t: Trace, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a tensor, given its descriptor."""
    name = fn.__name__
    if t.outside.unfaked:
        refuse_unfaked(t.outside, args)
    if name in RESHAPED_IN_PLACE and t.outside.tree.node_of(args[0]) is not None:
        graph_break("BZ1010", f"Tensor.{name} changes the shape of a tensor that comes from outside")
    if name in RESHAPED_IN_PLACE and is_operand(t.graph.recorder, args[0]):
        graph_break("BZ1010", f"Tensor.{name} changes the shape of what a subgraph was given")
    if name in tensor_facts.METHODS:
        return tensor_facts.query(t, fn, args, kwargs)
    if name in QUERIES:
        return fn(*args, **kwargs)
    if name == "requires_grad_" and (node := t.outside.tree.node_of(args[0])) is not None:
        wanted = wanted_gradient(args, kwargs)
        if wanted is args[0].requires_grad and not (wanted and _becomes_leaf(t.outside, node)):
            return args[0]
        graph_break("BZ1010", "requires_grad_ of a tensor that comes from outside")
    if name == "__getattribute__":
        return tensor_attr(t, args[0], args[1], False)
    if name == "__setattr__":
        return write_field(t, *args)
    if name in ("__init__", "__new__", "__reduce_ex__"):
        graph_break("BZ1002", f"Tensor.{name} is called")
    return t.graph.recorder.call(fn, args, kwargs)


def _becomes_leaf(outside: Outside, node: Node) -> bool:
    """Whether a tensor that requires a gradient, perhaps as its base does, may be no leaf of its own yet."""
    real = node.real
    if not outside.read(node, Step.ATTR, "is_leaf", real.is_leaf):
        return False
    return real._base is not None or outside.read(node, Step.ATTR, "_base", None) is not None


def write_field(t: Trace, obj: Any, name: str, value: Any) -> None:
    """``tensor.name = value``: attributes of the user's own, ``grad``, and ``requires_grad`` of what the graph makes."""
    if t.outside.unfaked:
        refuse_unfaked(t.outside, (obj,))
    node = t.outside.tree.node_of(obj)
    if name == "grad" and node is not None:
        write_grad(t.done, node, value)
        return
    if name == "requires_grad" and node is None:
        if not obj.is_leaf:
            obj.requires_grad = value  # which raises, also where the method would not
        t.graph.recorder.call(torch.Tensor.requires_grad_, (obj, value), {})
        return
    found, _ = lookup_in_mro(torch.Tensor, name)
    if found is not MISSING:
        graph_break("BZ1010", GIVES_MEMORY if name == "data" else f"Tensor.{name} is assigned")
    if node is None:
        t.done.tensor_fields.setdefault(id(obj), (obj, {}))[1][name] = value
    else:
        write_instance(t, obj, name, value)


def write_grad(done: Ledger, node: Node, value: Any) -> None:
    """``tensor.grad = value`` of an outside tensor, replayed when the graph has run."""
    tensor = node.value
    if value is not None:
        fits = issubclass(type(value), torch.Tensor) and value is not tensor
        if not (
            fits
            and value.shape == tensor.shape
            and value.dtype is tensor.dtype
            and value.device == tensor.device
        ):
            graph_break("BZ1010", "Tensor.grad is assigned a value that may not fit")
    keep(done, node, "grad", value)
