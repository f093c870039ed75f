"""Attribute reads: Python's own protocol, with guards where a value comes from outside.

Descriptors and ``__getattr__`` written in Python are interpreted; those written in C are called.
"""

from __future__ import annotations

import enum
import functools
import sys
import threading
import types
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.libraries import is_library_class, is_library_function, is_library_module
from braze.capture.facts.records import Step
from braze.capture.facts.values import (
    CONSTANTS,
    MISSING,
    NUMBER_OF,
    Lookups,
    UnknownText,
    held_by_class,
    is_constant,
    is_data_descriptor,
    is_identity_type,
    is_immutable,
    is_plain,
    lookup_in_mro,
    missing,
)
from braze.capture.outside import cells, definitions, texts
from braze.capture.outside.class_values import (
    WRAPPERS,
    class_value,
    dict_of_class,
    is_property,
    trust_class_value,
    wrapped,
)
from braze.capture.outside.globals import globals_at, module_dict
from braze.capture.outside.relied_upon import note_missing
from braze.capture.outside.shadows import instance_dict, note_lack, write_instance
from braze.capture.python import raised
from braze.capture.python.entering import defaults_of
from braze.capture.python.tensors import tensor_attr
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Interpreter, Trace
from braze.graph.private.torch_settings import FACTS_OF_GPUS
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.support.caches import remembered

MODULE_GETATTR = torch.nn.Module.__getattr__
STATE = ("_parameters", "_buffers", "_modules")
BUILTIN_VALUES = CONSTANTS | {
    list,
    dict,
    tuple,
    set,
    frozenset,
    slice,
    range,
    torch.Size,
    torch.device,
}
C_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


#: whether a classmethod asks the descriptor that it holds, as it did until Python 3.12
CHAINS = sys.version_info < (3, 13)


def load_attr(t: Trace, obj: Any, name: str, tail: bool = False) -> Any:
    """``obj.name``."""
    reader = reader_of(type(obj))
    try:
        return reader(t, obj, name, tail)
    except AttributeError as error:
        tell(error, obj, name)
        raise


def tell(error: AttributeError, obj: Any, name: str) -> None:
    """Let the error of a look-up know what was looked up where: from that Python makes its suggestions."""
    if error.name is None and error.obj is None:
        error.name, error.obj = name, obj


@remembered(4096)
def reader_of(cls: type) -> Any:
    """How attributes of instances of a type are read."""
    if cls in SYMBOLIC:
        return symbol_attr
    if cls in BUILTIN_VALUES:
        return native_attr
    if cls in WRAPPERS:
        return wrapped_attr
    if cls is UnknownText:
        return text_attr
    if cls is types.CellType:
        return cells.attribute
    if issubclass(cls, torch.Tensor):
        return tensor_attr
    found, _ = lookup_in_mro(cls, "__getattribute__")
    written_in_c = type(found) in (types.WrapperDescriptorType, types.MethodDescriptorType)
    if issubclass(cls, types.ModuleType):
        return module_attr if written_in_c else python_attr
    if issubclass(cls, type):
        return class_attr
    if cls is types.FunctionType:
        return function_attr
    if cls is types.MethodType:
        return method_attr
    if cls is super:
        return super_attr
    if issubclass(cls, enum.Enum):
        return member_attr
    if is_identity_type(cls):
        return native_attr
    if issubclass(cls, threading.local):
        return local_attr
    return instance_attr if written_in_c else python_attr


def native_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """C types whose attributes need no guard: the object itself is guarded or ours."""
    return getattr(obj, name)


def wrapped_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """An attribute of a property, a static or class method, or a cached property."""
    return wrapped(t, obj, name, getattr(obj, name))


def text_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """An attribute of text that is written later: a method that looks into it, but for its class."""
    return str if name == "__class__" else getattr(texts.written(obj), name)


#: attributes of integers and floats that are the number itself
ITSELF = frozenset({(int, "real"), (int, "numerator"), (float, "real")})


def symbol_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """An attribute of a number that is a symbol here: but for its class and itself the number's, which is guarded from here on.

    A symbol's own methods are not those of numbers: ``n.__add__(2.5)`` is ``NotImplemented``, and they may leave the trace.
    """
    kind = NUMBER_OF[type(obj)]
    if name == "__class__":
        return kind
    return obj if (kind, name) in ITSELF else getattr(kind(obj), name)


def python_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """A class with ``__getattribute__`` written in Python."""
    cls = type(obj)
    hook, _ = lookup_in_mro(cls, "__getattr__")
    if hook is MISSING:
        return asked(t, "__getattribute__", obj, name, tail)
    try:
        return asked(t, "__getattribute__", obj, name)
    except AttributeError:
        pass  # and forgotten: it is no context of what the hook raises
    return asked(t, "__getattr__", obj, name, tail)


def asked(t: Trace, method: str, obj: Any, name: str, tail: bool = False) -> Any:
    """What a look-up of the class gives: a function, or whatever a descriptor in its place hands out."""
    cls = type(obj)
    found, owner = lookup_in_mro(cls, method)
    if type(found) is types.FunctionType:
        note_absent(t, cls, method, owner)
        trust_class_value(t, owner, method, found)
        return t.call(found, (obj, name), None, tail)
    return t.call(bind_class_value(t, found, owner, obj, cls, method), (name,), None, tail)


def local_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """An attribute of this thread's part of a ``threading.local``."""
    if t.outside.tree.node_of(obj) is not None and name != "__class__":
        graph_break("BZ1014", f"an attribute of a {type(obj).__name__}, which each thread has for itself")
    return getattr(obj, name)


def instance_attr(t: Trace, obj: Any, name: str, tail: bool = False) -> Any:
    """The generic protocol, then ``__getattr__``."""
    value = generic_attr(t, obj, name, tail)
    if value is not MISSING:
        return value
    cls = type(obj)
    hook, of = lookup_in_mro(cls, "__getattr__")
    if hook is MODULE_GETATTR:
        trust_class_value(t, of, "__getattr__", hook)
        value = module_state(t.outside, obj, name)
        if value is not MISSING:
            return value
        note_absent(t, cls, name)
        raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'")
    note_absent(t, cls, name)
    if hook is MISSING:
        note_absent(t, cls, "__getattr__")
        raise missing(obj, name)
    return asked(t, "__getattr__", obj, name, tail)


def generic_attr(t: Trace, obj: Any, name: str, tail: bool = False) -> Any:
    """``object.__getattribute__``, or MISSING."""
    cls = type(obj)
    found, owner, data = class_lookup(cls, name)
    if data:
        if owner is not cls:
            note_absent(t, cls, name, owner)
        return call_descriptor(t, found, owner, obj, cls, name, tail)
    value = instance_value(t.outside, obj, name)
    if value is not MISSING:
        return value
    if found is MISSING:
        return MISSING
    if owner is not cls:
        note_absent(t, cls, name, owner)
    return bind_class_value(t, found, owner, obj, cls, name, tail)


@remembered(8192)
def _class_lookup(cls: Any, name: str) -> tuple[Any, Any, bool]:
    found, owner = lookup_in_mro(cls, name)
    return found, owner, is_data_descriptor(found)


def class_lookup(cls: type, name: str) -> tuple[Any, Any, bool]:
    """(what the class holds, the class in the MRO that holds it, whether it is a data descriptor)."""
    if is_immutable(cls):
        return _class_lookup(cls, name)
    found, owner = lookup_in_mro(cls, name)
    if found is MISSING:
        return found, None, False
    return found, owner, type(found) is not types.FunctionType and is_data_descriptor(found)


def instance_value(outside: Outside, obj: Any, name: str) -> Any:
    """What the instance dict holds; MISSING otherwise."""
    node = outside.tree.node_of(obj)
    if node is not None:
        if node.dict is None and note_lack(outside, node, name):
            return MISSING
        shadow = node.dict if node.dict is not None else instance_dict(outside, node)
        return shadow.get(outside, name) if shadow is not None else MISSING
    try:
        own = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return MISSING
    return own.get(name, MISSING)


def module_state(outside: Outside, obj: Any, name: str) -> Any:
    """A parameter, buffer or submodule of an nn.Module, as its ``__getattr__`` finds it."""
    for kind in STATE:
        holder = instance_value(outside, obj, kind)
        if holder is MISSING:
            continue
        value = dict_get(outside, holder, name)
        if value is not MISSING:
            return value
    return MISSING


def dict_get(outside: Outside, view: dict[Any, Any], key: Any) -> Any:
    """An item of a dict that may be a lazily filled shadow."""
    node = outside.tree.known.get(id(view))
    if node is not None and node.value is view and node.container is not None:
        return node.container.get(outside, key)  # to which something may wait to be written
    found = dict.get(view, key, MISSING)
    if found is not MISSING:
        return found
    shadow = outside.dict_views.get(id(view))
    if shadow is not None and shadow.view is view:
        return shadow.get(outside, key)
    return MISSING


def written_in_python(cls: type, name: str) -> bool:
    """Whether a class has a method in Python of that name."""
    return type(lookup_in_mro(cls, name)[0]) is types.FunctionType


def call_descriptor(t: Trace, found: Any, owner: Any, obj: Any, cls: type, name: str, tail: bool) -> Any:
    """A data descriptor's ``__get__``."""
    kind = type(found)
    if is_property(found, "__get__", "fget"):
        trust_class_value(t, owner, name, found)
        if found.fget is None or owner in FACTS_OF_GPUS:  # the first raises
            return found.__get__(obj, cls)
        return t.call(wrapped(t, found, "fget", found.fget), (obj,), None, tail)
    if kind in C_DESCRIPTORS:
        return c_field(t, found, obj, cls, name)
    getter, _ = lookup_in_mro(kind, "__get__")
    if type(getter) is types.FunctionType:
        return t.call(getter, (class_value(t, owner, name, found), obj, cls), None, tail)
    return found.__get__(obj, cls)


#: generators, and their frames
OF_GENERATORS = (types.GeneratorType, types.FrameType)


def of_generator(done: Ledger, found: Any, obj: Any, name: str) -> Any:
    """A field of a generator that the trace has made: what drives it is the tracer's, and no frame of the program's is there."""
    if name == "gi_code":
        return done.code_of(obj) or found.__get__(obj)
    driven = (
        obj.f_code in raised.DRIVERS
        if type(obj) is types.FrameType
        else name == "gi_yieldfrom" and done.is_ours(obj)
    )
    if driven:
        graph_break("BZ1009", f"{name} of a generator that the trace runs is read")
    return found.__get__(obj)


def c_field(t: Trace, found: Any, obj: Any, cls: type, name: str) -> Any:
    """``__dict__``, ``__class__``, slots, and other fields that C keeps."""
    node = t.outside.tree.node_of(obj)
    if name == "__class__":
        return cls
    if name == "__dict__":
        if node is None:
            own = object.__getattribute__(obj, "__dict__")
            t.done.asked_dicts[id(own)] = own, obj
            return own
        shadow = instance_dict(t.outside, node)
        if shadow is None:
            return found.__get__(obj, cls)
        t.outside.dict_views[id(shadow.view)] = shadow
        return shadow.view
    if node is None:
        return found.__get__(obj, cls) if cls not in OF_GENERATORS else of_generator(t.done, found, obj, name)
    if node.slots is not None and name in node.slots:
        value = node.slots[name]
        if value is MISSING:
            raise AttributeError(name)
        return value
    error = raised.known(t.done, obj) if issubclass(cls, BaseException) else None
    if error is not None:
        now = found.__get__(obj, cls)
        return t.outside.read(node, Step.ATTR, name, now) if error.is_still(name, now) else now
    fields = HANDLERS.fields.get(cls)
    if fields is not None and (known := fields(t, obj, name)) is not MISSING:
        return known
    real = getattr(node.real, name, MISSING) if type(found) is types.MemberDescriptorType else None
    if real is MISSING:
        graph_break(
            "BZ1014", f"the field {name!r} of a {cls.__name__} from outside is read, which is not set"
        )
    return t.outside.read(node, Step.ATTR, name, found.__get__(node.real, cls))


def bind_class_value(
    t: Trace, found: Any, owner: type, obj: Any, cls: type, name: str, tail: bool = False
) -> Any:
    """What ``obj.name`` gives for a value of its class that is no data descriptor; ``cls.name``, where ``obj`` is None."""
    kind = type(found)
    if kind in (types.FunctionType, classmethod, staticmethod):
        trust_class_value(t, owner, name, found)
        if kind is classmethod:
            return bind_to(t, wrapped(t, found, "__func__", found.__func__), cls)
        if kind is staticmethod:
            return wrapped(t, found, "__func__", found.__func__)
        return found if obj is None else types.MethodType(found, obj)
    if obj is not None and kind is functools.cached_property:
        trust_class_value(t, owner, name, found)
        return cached_property(t, found, obj)
    if obj is not None and kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
        return types.MethodType(found, obj)  # so that rules find the descriptor
    getter, _ = lookup_in_mro(kind, "__get__")
    if type(getter) is types.FunctionType:
        return t.call(getter, (class_value(t, owner, name, found), obj, cls), None, tail)
    if issubclass(kind, classmethod | staticmethod):
        trust_class_value(t, owner, name, found)
    return found.__get__(obj, cls) if getter is not MISSING else class_value(t, owner, name, found)


def bind_to(t: Interpreter, function: Any, first: Any) -> Any:
    """What a classmethod gives: a method, or, until Python 3.12, what the descriptor gives that it holds."""
    getter, _ = lookup_in_mro(type(function), "__get__")
    if type(function) is types.FunctionType or not CHAINS or getter is MISSING:
        return types.MethodType(function, first)
    if type(getter) is types.FunctionType:
        return t.call(getter, (function, first, first), None)
    return function.__get__(first, first)


def cached_property(t: Trace, found: Any, obj: Any) -> Any:
    """``functools.cached_property``: what the instance dict holds, which ``super()`` and other names lead past, else computed and written there."""
    value = instance_value(t.outside, obj, found.attrname)
    if value is MISSING:
        value = t.call(wrapped(t, found, "func", found.func), (obj,), None)
        write_instance(t, obj, found.attrname, value)
    return value


def module_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """An attribute of a Python module."""
    own = types.ModuleType.__getattribute__(obj, "__dict__")
    value = own.get(name, MISSING)
    if name == "__dict__" and value is MISSING:
        return module_dict(t.outside, obj, own)
    if value is MISSING:
        space = t.outside.globals.get(id(own))
        if space is not None and name in space.written:
            return space.written[name]
        found, owner = lookup_in_mro(type(obj), name)  # as torch.backends.cudnn.enabled is
        if found is not MISSING and type(found) not in C_DESCRIPTORS and hasattr(type(found), "__set__"):
            return call_descriptor(t, found, owner, obj, type(obj), name, tail)
        if type(obj) is types.ModuleType and not is_library_module(obj):
            hook = own.get("__getattr__")
            # one that writes what it makes among its globals is asked for real: from then on it is there
            if type(hook) is types.FunctionType and "globals" not in hook.__code__.co_names:
                note_missing(t.outside, obj, name)
                return t.call(globals_at(t.outside, own, obj).get(t, "__getattr__"), (name,), None, tail)
            if hook is None:
                note_missing(t.outside, obj, "__getattr__")
        try:
            made = getattr(obj, name)
        finally:
            if name not in own and not is_library_module(obj):
                note_missing(t.outside, obj, name)
        if name not in own:
            return made  # else its __getattr__ has put it there, as torch.ops does with an operator at its first use
    return globals_at(t.outside, own, obj).get(t, name)


def class_attr(t: Trace, cls: Any, name: str, tail: bool) -> Any:
    """An attribute of a class: the metaclass's data descriptors, the MRO, then the metaclass's others."""
    meta = type(cls)
    if issubclass(meta, enum.EnumMeta) and is_fixed_in_enum(t.done, cls, name):
        if name == "__dict__":
            t.outside.class_dicts[id(cls)] = cls
        return getattr(cls, name)
    from_meta, meta_owner = lookup_in_mro(meta, name)
    if is_data_descriptor(from_meta):
        if type(from_meta) not in C_DESCRIPTORS:
            note_absent(t, meta, name, meta_owner)
            return call_descriptor(t, from_meta, meta_owner, cls, meta, name, tail)
        if name == "__dict__" and id(cls) in Lookups.written:
            graph_break(
                "BZ1010", f"the dict of the class {cls.__name__!r} is read, which the function has written"
            )
        if name == "__dict__":
            dict_of_class(t, cls)
        return from_meta.__get__(cls, meta)
    found, owner = lookup_in_mro(cls, name)
    if found is not MISSING:
        if owner is not cls:
            note_absent(t, cls, name, owner)
        return bind_class_value(t, found, owner, None, cls, name, tail)
    if from_meta is not MISSING:
        note_absent(t, cls, name)
        return bind_class_value(t, from_meta, meta_owner, cls, meta, name, tail)
    note_absent(t, cls, name)
    if written_in_python(meta, "__getattr__"):
        return asked(t, "__getattr__", cls, name, tail)
    return getattr(cls, name)


#: what tells which member this is
IN_MEMBERS = frozenset({"name", "value", "_name_", "_value_"})


def is_fixed_in_enum(done: Ledger, cls: Any, name: str) -> bool:
    """Whether an attribute of a class of constants, or of one of them, needs no guard."""
    if name in cls._member_map_ or name in IN_MEMBERS or name.startswith("__"):
        return True
    return is_library_class(cls) or done.is_ours(cls)


def member_attr(t: Trace, obj: Any, name: str, tail: bool) -> Any:
    """An attribute of a member of an enum; what its value holds may change, and the program may say what the value is."""
    cls = type(obj)
    own = name in IN_MEMBERS and not is_library_class(lookup_in_mro(cls, name)[1] or enum.Enum)
    if own or not is_fixed_in_enum(t.done, cls, name):
        t.outside.tree.constant(obj)
        return instance_attr(t, obj, name, tail)
    value = getattr(obj, name)
    if name.startswith("__") or is_constant(value) or is_identity_type(type(value)) or t.done.is_ours(cls):
        return value
    return t.outside.read(t.outside.tree.constant(obj), Step.ATTR, "_value_", value)


def note_absent(t: Trace, cls: Any, name: str, until: Any = None) -> None:
    """Guard that no class among a class and its bases, up to where it was found, has an attribute."""
    if is_immutable(cls):  # and so are its bases
        return
    for owner in type.__getattribute__(cls, "__mro__"):
        if owner is until:
            return
        if is_immutable(owner) or t.done.is_ours(owner):
            continue
        note_missing(t.outside, owner, name)


def special_method(t: Trace, cls: Any, name: str) -> Any:
    """What a class has under the name of a special method, guarded as calls of it are; MISSING."""
    found, owner = lookup_in_mro(cls, name)
    if not is_immutable(cls):
        if owner is not cls:
            note_absent(t, cls, name, owner)
        if type(found) is types.FunctionType:
            trust_class_value(t, owner, name, found)
        elif not is_plain(found) and (
            written_in_python(type(found), "__call__") or written_in_python(type(found), "__get__")
        ):
            graph_break("BZ1002", f"{name} of {cls.__name__} is an object of {type(found).__name__}")
    return found


def function_attr(t: Trace, fn: Any, name: str, tail: bool) -> Any:
    """An attribute of a function."""
    if t.done.function_fields and id(fn) in t.done.function_fields:
        fields = t.done.function_fields[id(fn)][1]
        if name in fields:
            return fields[name]
        if name == "__dict__":
            graph_break("BZ1010", f"the dict of the function {fn.__name__!r} is read, which has been written")
    if not t.done.is_ours(fn) and name != "__dict__" and definitions.is_written_by_dict(t.outside, fn):
        graph_break(
            "BZ1010", f"an attribute of the function {fn.__name__!r} is read, whose dict has been written"
        )
    value = getattr(fn, name, MISSING)
    if value is MISSING:
        if not t.done.is_ours(fn) and not is_library_function(fn):
            note_missing(t.outside, fn, name)
        raise AttributeError(f"'function' object has no attribute {name!r}")
    if t.done.is_ours(fn) or name in ("__module__", "__code__", "__class__"):
        return value
    if name == "__defaults__" and value and not is_constant(value):
        return defaults_of(t, fn)[0]  # which a call of the function reads, and may have written
    if is_constant(value) or is_identity_type(type(value)):
        node = t.outside.tree.constant(fn)
        return t.outside.read(node, Step.ATTR, name, value) if not is_library_function(fn) else value
    if isinstance(value, types.MethodWrapperType | types.BuiltinFunctionType):
        return value
    return t.outside.read(t.outside.tree.constant(fn), Step.ATTR, name, value)


def method_attr(t: Trace, method: Any, name: str, tail: bool) -> Any:
    """An attribute of a bound method: its own two, or those of its function."""
    node = t.outside.tree.node_of(method)
    if name in ("__func__", "__self__"):
        value = getattr(method, name)
        if node is not None:
            return t.outside.read(node, Step.FUNC, name.strip("_"), value)
        return value
    if name in ("__call__", "__get__", "__eq__", "__hash__"):
        return getattr(method, name)
    return load_attr(t, method.__func__, name, tail)


def super_attr(t: Trace, proxy: Any, name: str, tail: bool) -> Any:
    """``super().name``: the MRO after the class, bound to the object."""
    obj, obj_type, this = proxy.__self__, proxy.__self_class__, proxy.__thisclass__
    if obj is None or name == "__class__":
        return getattr(proxy, name)
    mro = obj_type.__mro__
    for owner in mro[mro.index(this) + 1 :]:
        found = held_by_class(owner, name)
        if found is MISSING:
            if owner is not object:
                note_absent(t, owner, name, owner.__mro__[1])
            continue
        if obj is obj_type or (issubclass(type(obj), type) and obj_type is not type(obj)):
            return bind_class_value(t, found, owner, None, obj, name, tail)
        if hasattr(type(found), "__set__"):
            return call_descriptor(t, found, owner, obj, obj_type, name, tail)
        return bind_class_value(t, found, owner, obj, obj_type, name, tail)
    raise AttributeError(f"'super' object has no attribute '{name}'")
