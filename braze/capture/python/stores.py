"""Attribute writes: into the instance's shadow when the object is from outside, for real when it is ours."""

from __future__ import annotations

import threading
import types
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import MISSING, Lookups, lookup_in_mro, missing_for_deletion
from braze.capture.outside import cells, definitions
from braze.capture.outside.class_values import class_value, is_property, trust_class_value, wrapped
from braze.capture.outside.held import replaced
from braze.capture.outside.shadows import instance_contents, instance_dict, keep, write_instance
from braze.capture.python.attributes import dict_get, instance_value
from braze.capture.python.operations import number
from braze.capture.python.tensors import write_field
from braze.capture.state.trace import Trace
from braze.graph.private.torch_symbols import SYMBOLIC

MODULE_SETATTR = torch.nn.Module.__setattr__


def store_attr(t: Trace, obj: Any, name: str, value: Any) -> None:
    """``obj.name = value``."""
    cls = type(obj)
    if cls in SYMBOLIC:
        setattr(number(obj), name, value)  # raises
    if issubclass(type(obj), torch.Tensor):
        write_field(t, obj, name, value)
        return
    if issubclass(type(obj), type) and t.done.is_ours(obj):
        Lookups.end()
        type.__setattr__(obj, name, value)
        return
    if issubclass(type(obj), type):
        definitions.write_class(t.outside, obj, name, value)
        return
    if issubclass(type(obj), types.ModuleType):
        definitions.write_module(t.outside, obj, name, value)
        return
    if cls is types.FunctionType:
        if not t.done.is_ours(obj):
            definitions.write_function(t, obj, name, value)
            return
        setattr(obj, name, value)
        return
    if cls is types.CellType and name == "cell_contents":
        cells.write(t, obj, value)
        return
    writer, owner = lookup_in_mro(cls, "__setattr__")
    if writer is MODULE_SETATTR:
        if module_store(t, obj, name, value):
            return
    elif not stands_in(writer, "__setattr__"):
        generic_store(t, obj, name, value)
        return
    trust_class_value(t, owner, "__setattr__", writer)
    t.call(writer, (obj, name, value))


def stands_in(hook: Any, name: str) -> bool:
    """Whether another method stands in for the one that writes attributes: of Python's, or C's by another name (``__setattr__ = dict.__setitem__``)."""
    kind = type(hook)
    return kind is types.FunctionType or (kind is types.WrapperDescriptorType and hook.__name__ != name)


def module_store(t: Trace, module: Any, name: str, value: Any) -> bool:
    """The plain cases of ``nn.Module.__setattr__``: a buffer replaced, or an ordinary attribute."""
    if isinstance(value, torch.nn.Module | torch.nn.Parameter | torch.nn.Buffer):
        return False
    for kind in ("_parameters", "_modules"):
        holder = instance_value(t.outside, module, kind)
        if holder is MISSING or dict_get(t.outside, holder, name) is not MISSING:
            return False
    buffers = instance_value(t.outside, module, "_buffers")
    if buffers is not MISSING and dict_get(t.outside, buffers, name) is not MISSING:
        return False
    found, _ = lookup_in_mro(type(module), name)
    if hasattr(type(found), "__set__"):
        generic_store(t, module, name, value)
    else:
        write_instance(t, module, name, value)
    return True


def generic_store(t: Trace, obj: Any, name: str, value: Any) -> None:
    """``object.__setattr__``."""
    cls = type(obj)
    if issubclass(cls, threading.local):
        if t.outside.tree.node_of(obj) is not None:
            of = f"an attribute of a {cls.__name__}, which each thread has for itself, is assigned"
            graph_break("BZ1010", of)
        setattr(obj, name, value)
        return
    found, owner = lookup_in_mro(cls, name)
    kind = type(found)
    if found is not MISSING and hasattr(kind, "__set__"):
        if is_property(found, "__set__", "fset"):
            if found.fset is None:
                found.__set__(obj, value)  # raises
            trust_class_value(t, owner, name, found)
            t.call(wrapped(t, found, "fset", found.fset), (obj, value))
            return
        setter, _ = lookup_in_mro(kind, "__set__")
        if type(setter) is types.FunctionType:
            t.call(setter, (class_value(t, owner, name, found), obj, value))
            return
        store_field(t, obj, name, found, value)
        return
    replaced(t, instance_contents(t.outside, obj, name))
    write_instance(t, obj, name, value)


def store_field(t: Trace, obj: Any, name: str, found: Any, value: Any) -> None:
    """A slot, or another field that C keeps."""
    node = t.outside.tree.node_of(obj)
    if node is None:
        shared = t.outside.tree.node_of(value) is not None or id(value) in t.outside.dict_views
        if name == "__dict__" and shared:
            graph_break("BZ1010", f"a {type(obj).__name__} is given attributes that lie outside")
        found.__set__(obj, value)
        if name == "__dict__":
            t.done.namespaces[id(value)] = value
        return
    if type(found) is not types.MemberDescriptorType:
        graph_break("BZ1010", f"the field {name!r} of a {type(obj).__name__} from outside is assigned")
    keep(t.done, node, name, value)


def delete_attr(t: Trace, obj: Any, name: str) -> None:
    """``del obj.name``."""
    cls = type(obj)
    if cls in SYMBOLIC:
        delattr(number(obj), name)  # raises
    hook, owner = lookup_in_mro(cls, "__delattr__")
    if stands_in(hook, "__delattr__"):
        trust_class_value(t, owner, "__delattr__", hook)
        t.call(hook, (obj, name))
        return
    generic_delete(t, obj, name)


def generic_delete(t: Trace, obj: Any, name: str) -> None:
    """``object.__delattr__``."""
    outside = t.outside
    found, owner = lookup_in_mro(type(obj), name)
    if is_property(found, "__delete__", "fdel") and found.fdel is not None:
        trust_class_value(t, owner, name, found)
        t.call(wrapped(t, found, "fdel", found.fdel), (obj,))
        return
    deleter, _ = lookup_in_mro(type(found), "__delete__")
    if type(deleter) is types.FunctionType:
        t.call(deleter, (class_value(t, owner, name, found), obj))
        return
    node = outside.tree.node_of(obj)
    if node is None:
        if issubclass(type(obj), type | types.ModuleType | torch.Tensor):
            graph_break("BZ1010", f"an attribute of a {type(obj).__name__} is deleted")
        object.__delattr__(obj, name)
        return
    shadow = instance_dict(outside, node)
    if hasattr(type(found), "__delete__"):
        graph_break("BZ1010", f"the field {name!r} of an object from outside is deleted")
    if shadow is None:
        object.__delattr__(node.real, name)  # raises: there is nothing to be deleted
        return
    replaced(t, instance_contents(outside, obj, name))
    if not shadow.drop(outside, name):
        raise missing_for_deletion(node.real, obj, name)
