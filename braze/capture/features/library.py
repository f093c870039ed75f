"""Python's own functions while tracing: run for real on plain data; the import system; the names of frames, modules and classes."""

from __future__ import annotations

import decimal
import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import operator
import pickle
import re
import string
import sys
import types
import weakref
from typing import Any

import torch

from braze import native
from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.libraries import is_library_module
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import MISSING, NULL, NUMBER_OF, is_constant, is_identity_type
from braze.capture.outside import cells, chosen, texts
from braze.capture.outside.class_values import in_class_dict
from braze.capture.outside.globals import GlobalsShadow, bind_globals, globals_of, owner_of_globals
from braze.capture.outside.looked_into import fill, fill_arguments
from braze.capture.outside.opaque import refuse_if_opaque
from braze.capture.outside.shadows import DictShadow
from braze.capture.outside.unread import handed_on, read_whole
from braze.capture.python import calls
from braze.capture.python.operations import key_among, set_item, shadow_with
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()
rule = FEATURE.call


def is_plain_data(value: Any, depth: int = 8) -> bool:
    """Whether a value is constants in lists, tuples and dicts, and nothing else."""
    if is_constant(value):
        return True
    if depth and type(value) in (list, tuple, set):
        return all(is_plain_data(v, depth - 1) for v in value)
    if depth and type(value) is dict:
        return all(is_constant(k) and is_plain_data(v, depth - 1) for k, v in dict.items(value))
    return False


@FEATURE.each(json.dumps, json.loads, importlib.util.find_spec)
def on_plain_data(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Functions in Python that compute a result from plain data: run for real on such, else interpreted."""
    fill_arguments(t.outside, (*args, *kwargs.values()))
    if all(map(is_plain_data, (*args, *kwargs.values()))):
        return native.unhooked(function, *args, **kwargs)
    return calls.interpret(t, function, args, kwargs, tail)


#: texts, bytes and containers in what is pickled while tracing, at most: each is compared with all others
MOST_PICKLED = 256


def pickled(value: Any, depth: int = 8) -> list[Any] | None:
    """What pickle writes once and names later, in plain data: texts, bytes and containers; None if there is other data."""
    kind = type(value)
    if kind in (type(None), bool, int, float):
        return []
    if kind in (str, bytes):
        return [value]
    if not depth or kind not in (list, tuple, dict):
        return None
    found = [] if value == () else [value]
    for part in (*dict.keys(value), *dict.values(value)) if kind is dict else value:
        inside = pickled(part, depth - 1)
        if inside is None:
            return None
        found += inside
    return found


@rule(pickle.dumps)
def dumps(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The bytes of plain data of which nothing occurs twice; else they tell whether two texts are one object, which a trace does not know."""
    fill_arguments(t.outside, (*args, *kwargs.values()))
    once = pickled(args[0]) if len(args) == 1 and not kwargs else None
    if (
        once is not None
        and len(once) <= MOST_PICKLED
        and not any(a == b for a, b in itertools.combinations(once, 2))
    ):
        return native.unhooked(pickle.dumps, args[0])
    return calls.call_c(t, pickle.dumps, args, kwargs)


@FEATURE.each(decimal.Decimal, vars(decimal.Decimal)["from_float"].__get__(None, decimal.Decimal))
def make_decimal(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    t.outside.settings.note_decimals()
    return calls.call_c(t, function, args, kwargs)


# -- signatures


@FEATURE.each(inspect.Signature.bind, inspect.Signature.bind_partial)
def bind(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Which parameter takes which argument. A signature never changes: what is guarded is which one it is."""
    node = t.outside.tree.node_of(args[0])
    if node is not None:
        node.guard(Check.IS, node.real)
    return calls.call_native(t, function, args, kwargs)


@FEATURE.each(
    inspect.BoundArguments.apply_defaults,
    vars(inspect.BoundArguments)["args"].fget,
    vars(inspect.BoundArguments)["kwargs"].fget,
)
def of_bound(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A method of arguments that were bound while tracing; where a default may change it is read as all else is."""
    bound = args[0]
    parameters = bound.signature.parameters.values()
    if t.outside.tree.node_of(bound) is not None or not all(
        p.default is p.empty or is_plain_data(p.default) for p in parameters
    ):
        return calls.interpret(t, function, args, kwargs, tail)
    return calls.call_native(t, function, args, kwargs)


# -- modules


@FEATURE.each(importlib.import_module, __import__)
def import_(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A module that is there; the first import of one has effects. ``__import__("a.b")`` gives ``a``."""
    name = args[0]
    if len(args) > 1 or kwargs or name.startswith(".") or name not in sys.modules:
        graph_break("BZ1007", f"the module {name} is imported for the first time", "import it before")
    return sys.modules[name if function is importlib.import_module else name.partition(".")[0]]


# -- what Python tells of the frame


@rule(locals)
def locals_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A copy of the variables of the frame; in the body of a class its names themselves."""
    f = t.frames.stack[-1]
    if f.names is not None:
        return f.names
    if getattr(f.function, "__braze_resumed__", None) is not None:
        graph_break("BZ1006", "locals() after a graph break in the same function")
    found: dict[str, Any] = {}
    free = len(f.locals) - len(f.code.co_freevars)
    for index, (name, value) in enumerate(zip(f.decoded.slots, f.locals, strict=False)):
        if value is NULL or name.startswith("."):
            continue
        if index >= free or (type(value) is types.CellType and name in f.code.co_cellvars):
            value = cells.contents(t, value)
            if value is MISSING:
                continue
        read_whole(t.outside, value)
        found[name] = value
    return found


# -- singledispatch

DISPATCH = functools.singledispatch(lambda value: None).dispatch.__code__  # type: ignore[attr-defined]


def dispatch(t: Trace, fn: types.FunctionType, args: Any, kwargs: Any) -> Any:
    """Which implementation ``functools.singledispatch`` takes for a class; what is registered is guarded."""
    assert fn.__closure__ is not None
    known = fn.__closure__[fn.__code__.co_freevars.index("dispatch_cache")].cell_contents
    if type(known) is not weakref.WeakKeyDictionary:  # the program's own, which may see what is done to it
        return calls.interpret(t, fn, args, kwargs, False)
    index = fn.__code__.co_freevars.index("registry")
    registry = t.outside.read(
        t.outside.tree.constant(fn), Step.CLOSURE, index, fn.__closure__[index].cell_contents
    )
    fill(t.outside, registry)
    return native.unhooked(fn, NUMBER_OF.get(args[0], args[0]))


FEATURE.codes[DISPATCH] = dispatch


# -- weak references


@rule(weakref.ref)
def weak_reference(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A reference to something that the trace holds, so that it lives; one with a callback is left to Python.

    So is one to a tensor: what the graph computes of it holds its stand-in, where in eager it ends with the function's names
    for it, or with what autograd has saved. And so is one to an object from outside: it may be a reference that somebody has,
    equals all others to the object, and has the hash of its address.
    """
    node = t.outside.tree.node_of(args[0]) if args else None
    if node is not None and node.step is not Step.CONSTANT:
        graph_break("BZ1014", "a weak reference to an object from outside is made", HINT_MOVE)
    if len(args) != 1 or kwargs or issubclass(type(args[0]), torch.Tensor):
        graph_break("BZ1014", "a weak reference with a callback, or to a tensor, is made", HINT_MOVE)
    return weakref.ref(args[0])


# -- the names of a module, a frame or a class, as the program asks for them


@rule(globals)
def globals_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    f = t.frames.stack[-1]
    owner = owner_of_globals(t, f.function) if t.done.is_ours(f.function) else f.function
    if type(owner) is not types.FunctionType or t.done.is_ours(owner):
        graph_break("BZ1006", "globals() of a function that the trace has made")
    node = t.outside.tree.constant(owner).child(Step.ATTR, "__globals__")
    known = t.outside.tree.node_of(f.globals)
    if known is not None:
        if type(known.container) is not GlobalsShadow:
            graph_break("BZ1006", "globals() of a module whose dict is known otherwise")
        return known.value
    return bind_globals(t.outside, node, globals_of(t.outside, f), f.globals)


def get(t: Trace, owner: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """``d.get(key, default)`` of a dict from outside, and ``globals().get(name)``: one key is asked for, and the others are not looked at."""
    if kwargs or len(args) not in (1, 2):
        return MISSING
    default = args[1] if len(args) == 2 else None
    if chosen.is_key(args[0]) and (told := chosen.holds(t, owner, args[0])) is not MISSING:
        value = handed_on(t, chosen.item, owner, args[0]) if told else default
        if value is not MISSING:
            return value
    key = key_among(t, owner, args[0])
    if key is MISSING:
        return default
    node = t.outside.tree.node_of(owner)
    shadow: Any
    if node is not None and type(node.container) is GlobalsShadow:
        shadow = node.container
    elif is_constant(key) or (is_identity_type(type(key)) and not t.done.is_ours(key)):
        shadow = shadow_with(t.outside, owner, key)
    else:
        return MISSING
    if shadow is None:
        return (
            dict.get(owner, key, default)
            if type(args[0]) is torch.SymInt and type(owner) is dict
            else MISSING
        )
    value = handed_on(t, read_item, shadow, key)
    return default if value is MISSING else value


def read_item(t: Trace, shadow: DictShadow, key: Any) -> Any:
    """An item of a dict from outside, MISSING where it has none."""
    return shadow.get(t.outside, key)


def setdefault(t: Trace, owner: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """``d.setdefault(name, default)`` of a dict from outside that nothing has read whole."""
    if kwargs or not args or not (type(args[0]) is str or chosen.is_key(args[0])):
        return MISSING
    if type(args[0]) is not str:
        told = chosen.holds(t, owner, args[0])
        if told is False:
            value = args[1] if len(args) > 1 else None
            set_item(t, owner, args[0], value)
            return value
        return MISSING if told is MISSING else handed_on(t, chosen.item, owner, args[0])
    shadow = shadow_with(t.outside, owner, args[0])
    if shadow is None:
        return MISSING
    value = handed_on(t, read_item, shadow, args[0])
    if value is MISSING:
        value = args[1] if len(args) > 1 else None
        set_item(t, owner, args[0], value)
    return value


def get_of_own_class(t: Trace, owner: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """The same of a counter, say, by what changes from call to call; by any other key it is looked up in the whole of it."""
    return get(t, owner, args, kwargs, tail) if args and chosen.is_key(args[0]) else MISSING


FEATURE.methods[dict, "get"] = get
FEATURE.methods |= {(cls, "get"): get_of_own_class for cls in chosen.DICTS - {dict}}
FEATURE.methods[dict, "setdefault"] = setdefault


def get_of_class(t: Trace, proxy: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """``cls.__dict__.get(name)``; a proxy from outside is over a dict that anybody may write."""
    if not args or type(args[0]) is not str or t.outside.tree.node_of(proxy) is not None:
        return MISSING
    return in_class_dict(t, args[0], proxy.get(*args, **kwargs))


FEATURE.methods[types.MappingProxyType, "get"] = get_of_class


def look_up(t: Trace, getter: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """``operator.attrgetter``: attributes are read here as anywhere, those of objects from outside with guards."""
    refuse_if_opaque(t.outside, getter)
    if len(args) != 1 or kwargs:
        return getter(*args, **kwargs)  # raises
    names = getter.__reduce__()[1]
    found = [functools.reduce(t.attribute, name.split("."), args[0]) for name in names]
    return found[0] if len(found) == 1 else tuple(found)


FEATURE.objects[operator.attrgetter] = look_up


def call_by_name(t: Trace, caller: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """``operator.methodcaller``: the method is looked up and called as anywhere."""
    refuse_if_opaque(t.outside, caller)
    if len(args) != 1 or kwargs:
        return caller(*args, **kwargs)  # raises
    maker, held = caller.__reduce__()
    name, *given = (*maker.args, *held) if type(maker) is functools.partial else held
    named = maker.keywords if type(maker) is functools.partial else {}
    if t.outside.tree.node_of(caller) is not None and not all(map(is_constant, (*given, *named.values()))):
        graph_break("BZ1014", "a methodcaller from outside holds objects")
    return t.call(t.attribute(args[0], name), tuple(given), named, tail)


FEATURE.objects[operator.methodcaller] = call_by_name


#: a field of a format that leads further than to an argument: ``{0.lr}``, ``{rows[3]}``
PATH = re.compile(r"\{[^{}:!]*[.\[]")


def format_(t: Trace, owner: str, args: Any, kwargs: Any, tail: bool) -> Any:
    """``"{}".format(n)``; attributes and items that fields name are read here as anywhere."""
    values = (*args, *kwargs.values())
    if PATH.search(owner) and any(map(leads_further, values)):
        return t.call(string.Formatter.vformat, (string.Formatter(), owner, tuple(args), kwargs))
    found = texts.fields(t.done, owner, tuple(args)) if not kwargs else None
    return MISSING if found is None else found


def leads_further(value: Any) -> bool:
    """Whether a value is, or may hold, an object with attributes that change."""
    return not (is_constant(value) or type(value) in NUMBER_OF or issubclass(type(value), torch.Tensor))


def format_map(t: Trace, owner: str, args: Any, kwargs: Any, tail: bool) -> Any:
    """``"{a.n}".format_map(d)``."""
    if len(args) != 1 or kwargs or not PATH.search(owner):
        return MISSING
    return t.call(string.Formatter.vformat, (string.Formatter(), owner, (), args[0]))


FEATURE.methods[str, "format"] = format_
FEATURE.methods[str, "format_map"] = format_map


@rule(vars)
def vars_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if not args:
        return locals_(t, (), {}, tail)
    try:
        return t.attribute(args[0], "__dict__")
    except AttributeError:
        pass  # and forgotten: it is no context of the error
    raise TypeError("vars() argument must have __dict__ attribute")


@rule(dir)
def dir_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The names in a frame, or in a module."""
    if not args:
        return sorted(locals_(t, (), {}, tail))
    module = args[0]
    if type(module) is not types.ModuleType:
        graph_break("BZ1006", "dir() looks at all that an object has")
    if is_library_module(module):
        return native.unhooked(dir, module)
    own = vars(module)
    space = t.outside.globals.get(id(own))
    names = tuple(own)
    if (space is not None and space.written) or "__dir__" in own or not is_constant(names):
        graph_break("BZ1006", f"dir() of the module {module.__name__}, which the function has changed")
    place = t.outside.tree.constant(module).child(Step.ATTR, "__dict__")
    t.outside.tree.meet(place, own)
    place.guard(Check.KEYS, names)
    return sorted(names)
