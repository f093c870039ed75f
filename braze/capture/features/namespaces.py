"""``globals()``, ``vars()`` and ``dir()``: the names of a module or a frame, as the program asks for them."""

from __future__ import annotations

import types
from typing import Any

from braze import native
from braze.capture.facts.breaks import graph_break
from braze.capture.facts.libraries import is_library_module
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import MISSING, is_constant
from braze.capture.outside.class_values import in_class_dict
from braze.capture.outside.globals import globals_of, owner_of_globals
from braze.capture.outside.namespaces import GlobalsShadow, bind_globals
from braze.capture.state.handlers import HANDLERS, Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()
rule = FEATURE.call


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
    """``globals().get(name, default)``."""
    node = t.outside.tree.node_of(owner)
    if node is None or type(node.container) is not GlobalsShadow or kwargs or len(args) not in (1, 2):
        return MISSING
    value = node.container.get(t.outside, args[0])
    default = args[1] if len(args) == 2 else None
    return default if value is MISSING else value


FEATURE.methods[dict, "get"] = get


def get_of_class(t: Trace, proxy: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """``cls.__dict__.get(name)``."""
    if not args or type(args[0]) is not str:
        return MISSING
    return in_class_dict(t, args[0], proxy.get(*args, **kwargs))


FEATURE.methods[types.MappingProxyType, "get"] = get_of_class


@rule(vars)
def vars_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if not args:
        return HANDLERS.calls[locals](t, (), {}, tail)
    try:
        return t.attribute(args[0], "__dict__")
    except AttributeError:
        pass  # and forgotten: it is no context of the error
    raise TypeError("vars() argument must have __dict__ attribute")


@rule(dir)
def dir_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The names in a frame, or in a module."""
    if not args:
        return sorted(HANDLERS.calls[locals](t, (), {}, tail))
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
    if place.real is MISSING:
        place.real = place.value = own
        t.outside.tree.order.append(place)
    place.guard(Check.KEYS, names)
    return sorted(names)
