"""Calls: inline what is Python, record what is torch's, run what is known to be harmless, break at the rest."""

from __future__ import annotations

import collections
import functools
import re
import types
import weakref
from enum import EnumMeta
from typing import Any, NoReturn

import torch
import torch.nn.functional

from braze import native
from braze.capture.facts import policy
from braze.capture.facts.breaks import HINT_MOVE, HINT_OP, graph_break
from braze.capture.facts.bytecode import GENERATORS
from braze.capture.facts.frame import bind
from braze.capture.facts.libraries import is_library_class, is_pytorchs, is_written_in
from braze.capture.facts.policy import looks_inside, may_call_back
from braze.capture.facts.records import Check, Step
from braze.capture.facts.replay import native_new
from braze.capture.facts.values import (
    BUILTIN_METHODS,
    HEAP_TYPE,
    LRU_CACHE,
    MISSING,
    NUMBER_OF,
    PYBIND,
    UnknownText,
    lookup_in_mro,
)
from braze.capture.graph.recorder import DATA, RecordingMode, refuse_data
from braze.capture.graph.sizes import HASHED, as_key
from braze.capture.outside import identities, texts, told_apart
from braze.capture.outside.class_values import runs_code_as_key, trust_class_value
from braze.capture.outside.held import dropped, is_held
from braze.capture.outside.looked_into import fill, fill_arguments, fill_method, fill_walked
from braze.capture.outside.opaque import (
    asked_by_code,
    refuse_if_opaque,
    refuse_opaque,
    refuse_opaque_in_walks,
)
from braze.capture.outside.relied_upon import trust
from braze.capture.python import generators, higher_order
from braze.capture.python.attributes import class_lookup, note_absent, special_method
from braze.capture.python.c_border import canonical, outside_applied
from braze.capture.python.entering import defaults_of, enter
from braze.capture.python.from_c import BY_NAME, as_called, called_from_c
from braze.capture.python.module_calls import call_module
from braze.capture.python.tensors import tensor_method
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.trace import Trace
from braze.support.spoken import spoken

#: modules whose Python functions on tensors are one node of the graph
LEAF_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor"})
DESCRIPTOR_KINDS = frozenset(
    {types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType}
)
#: PyTorch's own, whatever the program puts in its place
MODULE_CALL = torch.nn.Module.__call__ if is_pytorchs(torch.nn.Module.__call__) else None


def call(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None = None, tail: bool = False) -> Any:
    """Call anything."""
    kind = type(fn)
    if kind is types.FunctionType:
        return call_function(t, fn, args, kwargs, tail)
    if kind is types.MethodType:
        node = t.outside.tree.node_of(fn)
        if node is not None:
            function = t.outside.read(node, Step.FUNC, "func", fn.__func__)
            owner = t.outside.read(node, Step.FUNC, "self", fn.__self__)
            return call(t, function, (owner, *args), kwargs, tail)
        return call(t, fn.__func__, (fn.__self__, *args), kwargs, tail)
    if kind in BUILTIN_METHODS:
        return call_builtin(t, fn, args, kwargs, tail)
    if kind in DESCRIPTOR_KINDS:
        return call_descriptor(t, fn, args, kwargs, tail)
    if issubclass(kind, type):
        return instantiate(t, fn, args, kwargs, tail)
    if kind is torch._ops.OpOverload or kind is torch._ops.OpOverloadPacket:
        return higher_order.call_operator(t.graph, fn, args, kwargs or {})
    if kind is functools.partial:
        return call_partial(t, fn, args, kwargs, tail)
    if kind is native.Entry:
        return call_entry(t, fn, args, kwargs, tail)
    return call_object(t, fn, args, kwargs, tail)


def call_function(
    t: Trace, fn: types.FunctionType, args: Any, kwargs: dict[str, Any] | None, tail: bool
) -> Any:
    """A function written in Python."""
    rule = HANDLERS.calls.get(fn)
    if rule is not None and trust(t.outside, fn):
        return rule(t, args, kwargs or {}, tail)
    special = is_special(fn.__module__) and is_written_in(fn, "torch", "functools", "random")
    if special:
        found = call_special(t, fn, args, kwargs)
        if found is not MISSING:
            return found
    if fn.__module__ == higher_order.EINOPS:
        higher_order.fill_table_of_einops(fn)
    if fn.__dict__ or special:  # what a library's function has made, or may have
        rule = HANDLERS.codes.get(fn.__code__)
        if rule is not None:
            return rule(t, fn, args, kwargs)
    if fn.__dict__:
        result = higher_order.call_marked(t, fn, args, kwargs, tail)
        if result is not NotImplemented:
            return result
    if fn in policy.NATIVE_FUNCTIONS:
        values = (*args, *(kwargs or {}).values())
        # else ``re.sub`` has a function to call for each match, or an object is asked for a number by Python code
        plain = asked_by_code(values) is None and not (fn is re.sub and has_callable(values, None))
        if plain and trust(t.outside, fn):
            refuse_opaque(t.outside, values)
            return call_native(t, fn, args, kwargs)
    return interpret(t, fn, args, kwargs, tail)


@functools.cache
def is_special(module: str | None) -> bool:
    """Whether functions of a module may have a meaning of their own here."""
    return (
        module in LEAF_MODULES
        or module in higher_order.MODULES
        or module in HANDLERS.modules
        or module in ("functools", higher_order.BOOKS)
        or str(module).startswith(higher_order.SHARDING)
    )


def call_special(t: Trace, fn: types.FunctionType, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """A function of such a module: a node, a break, or nothing; MISSING where it is as any other."""
    node = fn.__module__ in LEAF_MODULES and has_tensor(args, kwargs) and not has_callable(args, kwargs)
    of_tensors = fn.__module__ != "torch._tensor" or fn.__qualname__.startswith("Tensor.")
    if node and of_tensors and trust(t.outside, fn):
        fill_arguments(t.outside, args)
        return t.graph.recorder.call(fn, tuple(args), kwargs or {})
    if fn.__module__ == "torch._tensor" and fn.__name__ in DATA and has_tensor(args, kwargs):
        refuse_data(fn.__name__)
    if fn.__module__ in higher_order.MODULES and fn.__module__ != higher_order.FLEX:
        higher_order.break_around(higher_order.MODULES[fn.__module__])
    if fn.__module__.startswith(higher_order.SHARDING):
        higher_order.break_around("FSDP gathers and frees parameters around a module's call")
    rule = HANDLERS.modules.get(fn.__module__)
    if rule is not None:
        return rule(t, fn, args, kwargs)
    if fn.__module__ == higher_order.BOOKS and fn.__qualname__ == higher_order.BOOKKEEPING:
        return None
    return MISSING


def interpret(t: Trace, fn: types.FunctionType, args: Any, kwargs: Any, tail: bool) -> Any:
    """Inline a function: its frame runs as a part of the trace."""
    slots = bind(fn, args, kwargs, lambda fn: defaults_of(t, fn))
    f = enter(t, fn, slots, tail)
    if fn.__code__.co_flags & GENERATORS:
        return generators.start(t, f)
    return t.run(f)


def has_tensor(args: Any, kwargs: dict[str, Any] | None) -> bool:
    """Whether a tensor is among the arguments, or in a list or tuple among them."""
    for value in args:
        if issubclass(type(value), torch.Tensor):
            return True
        if type(value) in (list, tuple) and any(issubclass(type(v), torch.Tensor) for v in value):
            return True
    if kwargs:
        return has_tensor(kwargs.values(), None)
    return False


def has_callable(args: Any, kwargs: dict[str, Any] | None) -> bool:
    """Whether a Python function is among the arguments: then the callee must be inlined."""
    return any(type(v) in (types.FunctionType, types.MethodType) for v in (*args, *(kwargs or {}).values()))


def call_native(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """Run something for real."""
    fill_arguments(t.outside, (*args, *(kwargs or {}).values()))
    return canonical(t, fn(*args, **kwargs) if kwargs else fn(*args))


def call_c(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, asks: bool = False) -> Any:
    """Run a C function that may call back: tensor operations are recorded, Python frames interpreted."""
    if UnknownText in map(type, args) and texts.stores(fn, args):
        return canonical(t, fn(*args, **(kwargs or {})))
    args = texts.look_into(args)
    if policy.calls_what_it_is_given(fn):
        symbols = t.graph.mode.env is not None
        args = tuple([as_called(value, symbols) for value in args])
        kwargs = {name: as_called(value, symbols) for name, value in (kwargs or {}).items()}
    if kwargs:
        kwargs = {name: texts.written(value) for name, value in kwargs.items()}
    fill_arguments(t.outside, (*args, *(kwargs or {}).values()))
    if fn not in policy.HANDING:
        fill_walked(t.outside, args)
        told_apart.compared(t.outside, (*args, *(kwargs or {}).values()))
    if not asks and not may_call_back(args, kwargs):
        return canonical(t, fn(*args, **kwargs) if kwargs else fn(*args))
    if any(type(a).__name__ == LRU_CACHE.__name__ for a in (*args, *(kwargs or {}).values())):
        # it counts what is asked of it, and keeps what it gives: it is called outside the graph
        if fn not in (hash, repr, callable, isinstance):
            graph_break("BZ1010", "a function with a cache is handed to C code, which may call it", HINT_MOVE)
    if t.outside.identities:
        identities.check_call(t.outside, fn, args)
    values = (*args, *kwargs.values()) if kwargs else args
    if fn in policy.HANDING:
        refuse_opaque_in_walks(t.outside, values)
    else:
        refuse_opaque(t.outside, values)
    with outside_applied(t), RecordingMode(t.graph.recorder):
        result = native.call_traced(functools.partial(called_from_c, t), fn, tuple(args), kwargs or {})
    return canonical(t, result)


def call_builtin(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """A built-in function or bound built-in method."""
    rule = HANDLERS.calls.get(fn) if type(fn) is not types.MethodWrapperType else None
    if rule is not None:
        return rule(t, args, kwargs or {}, tail)
    owner = fn.__self__
    if issubclass(type(owner), type):
        rule = rule_of_class_method(fn, owner)
        if rule is not None:
            return rule(t, (owner, *args), kwargs or {}, tail)
    if owner is None or issubclass(type(owner), types.ModuleType | type) or type(owner).__module__ == PYBIND:
        purity = policy.FUNCTIONS.get(fn)
        if fn in policy.SETTINGS:
            return t.outside.settings.told(fn, args, kwargs)
        if purity is policy.Purity.BLIND:
            args = texts.look_into(args)
            if fn not in policy.HANDING:
                told_apart.compared(t.outside, args)
            if asked_by_code((*args, *(kwargs or {}).values())) is not None:
                return call_c(t, fn, args, kwargs)
            return fn(*args, **kwargs) if kwargs else fn(*args)
        if purity is policy.Purity.CALLS:
            return call_c(t, fn, args, kwargs)
        if fn in policy.OPERATIONS:
            fill_arguments(t.outside, args)
            return t.graph.recorder.call(fn, tuple(args), kwargs or {})
        if isinstance(owner, type):
            return call_class_method(t, fn, owner, args, kwargs, tail)
        return last_resort(t, fn, args, kwargs)
    return call_bound(t, fn, owner, args, kwargs, tail)


def rule_of_class_method(fn: Any, owner: type) -> Any:
    """The rule of a class method in C, which is another object at each reading, and for each class; or None."""
    for base in owner.__mro__:
        method = base.__dict__.get(fn.__name__)
        if type(method) is types.ClassMethodDescriptorType and method in HANDLERS.calls:
            if method.__get__(None, owner) == fn:
                return HANDLERS.calls[method]
    return None


def call_bound(t: Trace, fn: Any, owner: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """A built-in method of some object: ``[].append``, ``x.__add__``."""
    if issubclass(type(owner), torch.Tensor):
        descriptor, _ = lookup_in_mro(type(owner), fn.__name__)
        if descriptor is not MISSING:
            return call(t, descriptor, (owner, *args), kwargs, tail)
    return call_method(t, fn, owner, (), args, kwargs, tail)


def call_method(
    t: Trace,
    fn: Any,
    owner: Any,
    front: tuple[Any, ...],
    args: Any,
    kwargs: dict[str, Any] | None,
    tail: bool,
) -> Any:
    """A method in C of an object: bound to it, or with the object in ``front`` of its arguments."""
    cls, name = type(owner), fn.__name__
    rule = HANDLERS.methods.get((cls, name))
    if rule is not None:
        found = rule(t, owner, args, kwargs or {}, tail)
        if found is not MISSING:
            return found
    if args and issubclass(cls, HASHED):
        args = (as_key(args[0]), *args[1:])
    given = (*front, *args)
    if cls is list and name == "append" and len(args) == 1 and not kwargs and not t.outside.identities:
        return fn(*given)  # whatever it is, nothing looks at it
    known = cls in policy.METHODS_OF or issubclass(cls, CONTAINER_BASES)
    if not known and not (front and fn.__objclass__ in policy.METHODS_OF):
        return last_resort(t, fn, given, kwargs)
    refuse_if_opaque(t.outside, owner)
    fill(t.outside, owner)
    dropped(t, owner, name, args)
    if cls in NUMBERS and not NUMBER_OF.keys().isdisjoint(map(type, args)):  # C knows none of these symbols
        given = tuple([NUMBER_OF[type(v)](v) if type(v) in NUMBER_OF else v for v in given])
    if name in policy.LOOKING:  # at text that is not written yet, too
        fill_method(t.outside, owner, args)
        given = texts.look_into(given)
    if name in policy.LOOKING or issubclass(cls, HASHED):
        told_apart.compared(t.outside, (owner, *given) if name in policy.LOOKING else given)
    inside = looks_inside(owner, name)
    if inside and name in policy.LOOKING:
        refuse_opaque(t.outside, (owner,))
    if inside or may_call_back(args, kwargs):
        return call_c(t, fn, given, kwargs, True)
    return canonical(t, fn(*given, **kwargs) if kwargs else fn(*given))


NUMBERS = (bool, int, float, complex)
CONTAINER_BASES = (list, dict, tuple, set, frozenset, str, int, float, BaseException)


def call_class_method(
    t: Trace, fn: Any, owner: type, args: Any, kwargs: dict[str, Any] | None, tail: bool
) -> Any:
    """A static or class method in C: ``dict.fromkeys``, ``object.__new__``, ``tuple.__new__``."""
    if fn.__name__ == "__new__":
        cls = args[0]
        if issubclass(cls, torch.Tensor):
            graph_break("BZ1002", f"an instance of {cls.__name__} is made by hand")
        if owner is object or cls is owner:
            return fn(*args, **(kwargs or {}))
        fill_arguments(t.outside, args[1:])
        return fn(*args, **(kwargs or {}))
    if owner in policy.METHODS_OF or owner in policy.CLASSES:
        return call_c(t, fn, args, kwargs)
    if fn.__name__ == "__init_subclass__":  # object's own, which takes note of nothing
        return fn(*args, **(kwargs or {}))
    return last_resort(t, fn, args, kwargs)


def call_descriptor(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """An unbound method in C, called with its object first."""
    if not args:
        raise TypeError(f"unbound method {fn.__qualname__}() needs an argument")
    rule = HANDLERS.calls.get(fn)
    if rule is not None:
        return rule(t, args, kwargs or {}, tail)
    owner = args[0]
    if type(owner) is UnknownText:
        owner, *_ = args = texts.look_into(args)
    if issubclass(type(owner), torch.Tensor):
        fill_arguments(t.outside, args)
        return tensor_method(t, fn, tuple(args), kwargs or {})
    return call_method(t, fn, owner, (owner,), args[1:], kwargs, tail)


def last_resort(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """A callable in C that the policy does not name: a library's rule, or a break."""
    for library in HANDLERS.libraries:
        found = library(t, fn, args, kwargs)
        if found is not MISSING:
            return found
    refuse(fn)


def refuse(fn: Any) -> NoReturn:
    """Break at a C function that is not known to be harmless."""
    module = getattr(fn, "__module__", None) or type(getattr(fn, "__self__", None)).__module__
    code, does = policy.IMPURE_MODULES.get(module, ("BZ1002", ""))
    name = spoken(fn, "__qualname__") or f"{type(fn).__name__} object"
    if name.startswith("pybind11_detail"):
        name = fn.__name__
    if does:
        graph_break(code, f"{module}.{name} {does}", HINT_MOVE)
    graph_break(
        code, f"a call of the C function {module}.{name}, into which braze cannot see", HINT_OP, HINT_MOVE
    )


# -- classes


def instantiate(t: Trace, cls: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """Call a class."""
    rule = HANDLERS.calls.get(cls)
    if rule is not None:
        return rule(t, args, kwargs or {}, tail)
    if cls in policy.CLASSES:
        return call_c(t, cls, args, kwargs)
    meta = type(cls)
    if issubclass(meta, EnumMeta):
        if len(args) != 1 or kwargs:
            graph_break("BZ1002", "a class of constants is made")
        return member_of(cls, as_key(args[0]))
    if meta is not type:
        maker = special_method(t, meta, "__call__")
        if type(maker) is types.FunctionType:
            return call(t, maker, (cls, *args), kwargs, tail)
    return make(t, cls, args, kwargs)


def member_of(cls: Any, value: Any) -> Any:
    """The member of a class of constants that has a value, or the error that there is none, where no code of the program's decides."""
    if type(cls).__call__ is not EnumMeta.__call__:
        graph_break("BZ1002", f"the metaclass of {cls.__name__} says what a call of it is")
    if isinstance(value, torch.Tensor) or runs_code_as_key(value):
        graph_break(
            "BZ1002", f"a member of {cls.__name__} is looked up by an object of {type(value).__name__}"
        )
    known = type(value) is cls or any(value == member._value_ for member in cls.__members__.values())
    if not known and not is_library_class(lookup_in_mro(cls, "_missing_")[1]):
        graph_break("BZ1002", f"{cls.__name__} has no member of the value {value!r}, and is asked for one")
    return cls(value)


#: classes whose instances are what ``__new__`` is given
MADE_BY_NEW = (tuple, frozenset, int, float, str, bytes)
#: classes of C whose ``__new__`` looks at no argument: instances are filled by ``__init__``. Of any other (``functools.partial``, ``zip``, ``complex``)
#: an instance that is made of nothing is refused, or is another
FILLED_BY_INIT = frozenset(
    {list, dict, set, collections.deque, collections.OrderedDict, bytearray, property, staticmethod, classmethod, types.ModuleType, types.SimpleNamespace}
)  # fmt: skip


def make(t: Trace, cls: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """``type.__call__``: ``__new__``, then ``__init__``."""
    held, owner = lookup_in_mro(cls, "__new__")
    init, init_owner = lookup_in_mro(cls, "__init__")
    new = held.__func__ if isinstance(held, staticmethod) else held
    refuse_to_make(cls, init)
    of_python = types.FunctionType in (type(new), type(init))
    if not (of_python or owner is object or issubclass(cls, BaseException)):
        return (call_c if owner in policy.CLASSES else last_resort)(t, cls, args, kwargs)
    if type(new) is types.FunctionType:
        trust_class_value(t, owner, "__new__", held)
        obj = call(t, new, (cls, *args), kwargs)
    else:
        obj = made_in_c(t, cls, new, owner, args, kwargs)
    if not isinstance(obj, cls):
        return obj
    if init_owner is not cls:
        note_absent(t, cls, "__init__", init_owner)
    if type(init) is types.FunctionType:
        trust_class_value(t, init_owner, "__init__", init)
    elif init_owner is object or init is MISSING:
        return obj
    if (result := call(t, init, (obj, *args), kwargs)) is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return obj


def made_in_c(t: Trace, cls: Any, new: Any, owner: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """An instance by a ``__new__`` of C's; it is given the arguments only where they are what the instance is."""
    if issubclass(cls, BaseException):
        note_absent(t, cls, "__new__", owner)
        fill_arguments(t.outside, args)
        return new(cls, *args)
    of_values = issubclass(cls, MADE_BY_NEW)
    if owner is object and not of_values:
        return new(cls, *args, **(kwargs or {}))  # looks at no argument, but may refuse them
    if type(new) is not types.BuiltinFunctionType or not (of_values or owner in FILLED_BY_INIT):
        refuse(cls)
    return new(cls, *args) if of_values else native_new(cls)(cls)


def refuse_to_make(cls: Any, init: Any) -> None:
    """Break at instances that cannot be made while tracing."""
    if issubclass(cls, torch.Tensor):
        graph_break(
            "BZ1002",
            f"an instance of {cls.__name__} is made while tracing",
            "make it outside, or use a plain tensor",
        )
    refuse_finalizer(cls)
    gives_one = type(lookup_in_mro(type(init), "__get__")[0]) is types.FunctionType
    if gives_one or isinstance(init, staticmethod | classmethod):
        graph_break("BZ1002", f"__init__ of {cls.__name__} is no function, but gives one", HINT_MOVE)


def refuse_finalizer(cls: type) -> None:
    """An object that says its end must not meet it in a trace: that may have no effect, or have it again."""
    if lookup_in_mro(cls, "__del__")[0] is not MISSING:
        graph_break(
            "BZ1010",
            f"an object of {cls.__name__} is made, which runs code when it dies (__del__)",
            HINT_MOVE,
        )


def is_native(cls: type) -> bool:
    """Whether instances hold more than attributes: a class of C, or one derived from such."""
    return any(not base.__flags__ & HEAP_TYPE for base in cls.__mro__ if base is not object)


# -- other callables


def call_object(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """An object with ``__call__``."""
    cls = type(fn)
    if cls is weakref.ref:
        return follow(t, fn)
    rule = HANDLERS.objects.get(cls)
    if rule is not None:
        return rule(t, fn, args, kwargs, tail)
    found, owner, _ = class_lookup(cls, "__call__")
    if owner is not cls:
        note_absent(t, cls, "__call__", owner)
    if found is MODULE_CALL:
        trust_class_value(t, owner, "__call__", found)
        return call_module(t, fn, args, kwargs, tail)
    if type(found) is types.FunctionType:
        trust_class_value(t, owner, "__call__", found)
        return call(t, found, (fn, *args), kwargs, tail)
    if found is MISSING:
        raise TypeError(f"'{cls.__name__}' object is not callable")
    if cls in policy.METHODS_OF or cls in policy.CLASSES:
        refuse_if_opaque(t.outside, fn)
        return call_c(t, fn, tuple(map(as_key, args)) if cls in BY_NAME else args, kwargs)
    if isinstance(found, staticmethod):
        return call(t, found.__func__, args, kwargs, tail)
    if type(found) is native.CallOfClass:
        # the original is called, as it is where nobody compiles around: its class may have been changed since, by its own name
        trust_class_value(t, owner, "__call__", found)
        node, entry = t.outside.tree.node_of(fn), found.__get__(fn, cls)
        if node is not None:
            entry = t.outside.read(node, Step.ATTR, "__call__", entry)
        return call_entry(t, entry, args, kwargs, tail)
    return last_resort(t, fn, args, kwargs)


def follow(t: Trace, ref: Any) -> Any:
    """A weak reference to something that the trace knows already; the reference itself is then all to guard."""
    target, node = ref(), t.outside.tree.node_of(ref)
    known = t.outside.tree.node_of(target) if target is not None else None
    if known is not None and known.step is not Step.CONSTANT and not is_held(t.frames, known):
        graph_break("BZ1014", "a weak reference is asked for what the function may have let go of", HINT_MOVE)
    if node is None:
        return canonical(t, target)
    if known is None:
        graph_break("BZ1014", "a weak reference from outside to what the trace has not met")
    node.guard(Check.IS, ref)
    if known.step is not Step.CONSTANT:  # and of where its object was found, that it is this one
        known.guard(Check.REFERENT, weakref.ref(target))
    return canonical(t, target)


def call_entry(t: Trace, entry: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """A compiled function called by captured code: its function becomes a part of this graph."""
    node = t.outside.tree.node_of(entry)
    wrapped = entry.__wrapped__
    if node is not None:
        wrapped = t.outside.read(node, Step.ATTR, "__wrapped__", wrapped)
    return call(t, wrapped, args, kwargs, tail)


def call_partial(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """``functools.partial``."""
    node = t.outside.tree.node_of(fn)
    if node is None:
        function, first, named = fn.func, fn.args, fn.keywords
    else:
        function = t.outside.read(node, Step.ATTR, "func", fn.func)
        first = t.outside.read(node, Step.ATTR, "args", fn.args)
        named = t.outside.read(node, Step.ATTR, "keywords", fn.keywords)
        fill(t.outside, named)
    return call(t, function, (*first, *args), {**named, **(kwargs or {})} or None, tail)
