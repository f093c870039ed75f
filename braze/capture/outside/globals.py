"""Module globals: read with guards, written into an overlay."""

from __future__ import annotations

import builtins
import types
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.libraries import is_library_space
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import MISSING, is_bound_builtin
from braze.capture.outside.shadows import DictShadow
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace

#: what a builtin is, unless the program has put something in its place
PYTHONS = frozenset({types.BuiltinFunctionType, type})


class Globals:
    """The globals of one module. ``owner``: a node from which ``step`` reads them; None for the root frame's."""

    def __init__(
        self, real: dict[str, Any], builtins: dict[str, Any], owner: Node | None, step: Step
    ) -> None:
        self.real = real
        self.builtins = builtins
        self.owner = owner
        self.step = step
        self.library = is_library_space(real, real.get("__name__"))
        self.cache: dict[str, Any] = {}
        self.written: dict[str, Any] = {}
        #: a function with these globals, for effects
        self.function: Any = None
        #: the module object through which they were written
        self.module: Any = None

    def get(self, t: Trace, name: str) -> Any:
        """A global, else a builtin; NameError where there is neither."""
        found = self.cache.get(name, MISSING)
        if found is not MISSING:
            return found
        value = self.real.get(name, MISSING)
        if value is MISSING:
            value = self._builtin(t, name)
        elif self.library and is_bound_builtin(value):
            self._place(t.outside, name).guard(Check.IS, value)
            t.outside.fixed[id(value)] = value
        elif self.owner is None:
            value = root_global(t.outside, name, value)
        else:
            value = t.outside.read(self.owner, self.step, name, value)
        self.cache[name] = value
        return value

    def _place(self, outside: Outside, name: str) -> Node:
        """The node of a global."""
        own = self.owner
        node = outside.tree.root(Step.GLOBAL, name) if own is None else own.child(self.step, name)
        outside.tree.meet(node, self.real[name])
        return node

    def put(self, f: Frame, name: str, value: Any) -> None:
        """Write, for the program only."""
        self.function = f.function
        self.written[name] = value
        self.cache[name] = value

    def _builtin(self, t: Trace, name: str) -> Any:
        value = self.builtins.get(name, MISSING)
        if value is MISSING and not t.done.is_ours(self.function):
            graph_break("BZ1014", f"the global {name!r} is read, which is not defined")
        if value is MISSING:
            raise NameError(f"name '{name}' is not defined", name=name)
        if self.owner is None and not self.library:
            return root_global(t.outside, name, value)
        if type(value) in PYTHONS and value.__module__ == "builtins":
            return value
        space = t.outside.tree.constant(builtins)  # what the program has put there is an object as any other
        return t.outside.read(space, Step.DICT, name, value) if vars(builtins).get(name) is value else value


def globals_of(outside: Outside, f: Frame) -> Globals:
    """The globals of a frame, as read and written so far."""
    found: Globals | None = outside.globals.get(id(f.globals))
    if found is None:
        root = f.globals is outside.function.__globals__
        owner = None if root else outside.tree.constant(f.function)
        found = outside.globals[id(f.globals)] = Globals(f.globals, f.builtins, owner, Step.GLOBALS_OF)
        found.function = f.function
    return found


def globals_at(outside: Outside, own: dict[str, Any], module: Any) -> Globals:
    """The globals of a module object."""
    found: Globals | None = outside.globals.get(id(own))
    if found is None:
        if own is outside.function.__globals__:
            found = Globals(own, vars(builtins), None, Step.GLOBALS_OF)
        else:
            found = Globals(own, vars(builtins), outside.tree.constant(module), Step.DICT)
        outside.globals[id(own)] = found
    return found


def root_global(outside: Outside, name: str, value: Any) -> Any:
    """A global (or builtin) of the captured function's module."""
    node = outside.tree.root(Step.GLOBAL, name)
    return node.value if node.real is not MISSING else outside.see(node, value)


def owner_of_globals(t: Trace, fn: types.FunctionType) -> Any:
    """A function from outside with the same globals, or the globals themselves."""
    if fn.__globals__ is t.outside.function.__globals__:
        return t.outside.function
    for f in t.frames.stack:
        if f.globals is fn.__globals__ and not t.done.is_ours(f.function):
            return f.function
    found = t.outside.globals.get(id(fn.__globals__))
    if found is not None and found.function is not None:
        return found.function
    return fn.__globals__


# -- the dicts of modules, as the program gets hold of them: ``globals()``, ``module.__dict__``


class GlobalsShadow(DictShadow):
    """The dict of a module's globals: read by name, with what the program has written; anything else ends the graph."""

    __slots__ = ("space",)
    space: Any

    def get(self, outside: Outside, key: Any) -> Any:
        """The value under a name, with the guards of any dict."""
        if key in self.space.written:
            return self.space.written[key]
        return super().get(outside, key)

    def put(self, done: Ledger, key: Any, value: Any) -> None:
        """A write that statements would not see."""
        graph_break(
            "BZ1010", "an item of a module's dict is assigned", "declare the name with a global statement"
        )

    def drop(self, outside: Outside, key: Any) -> bool:
        """As :meth:`put`."""
        graph_break("BZ1010", "an item of a module's dict is deleted")

    def fill(self, outside: Outside) -> None:
        """Somebody wants them all."""
        graph_break("BZ1006", "a module's dict is looked at as a whole")


def bind_globals(outside: Outside, node: Node, space: Globals, own: dict[str, Any]) -> Any:
    """What stands for the dict of some globals, found at a place."""
    node.container = shadow = GlobalsShadow(node, Step.ITEM, own, {})
    shadow.space = space
    return outside.tree.bind(node, own, shadow.view)


def module_dict(outside: Outside, module: types.ModuleType, own: dict[str, Any]) -> Any:
    """``module.__dict__``."""
    known = outside.tree.node_of(own)
    if known is not None:
        if type(known.container) is not GlobalsShadow:
            graph_break("BZ1006", "the dict of a module, which is known otherwise")
        return known.value
    node = outside.tree.constant(module).child(Step.ATTR, "__dict__")
    return bind_globals(outside, node, globals_at(outside, own, module), own)
