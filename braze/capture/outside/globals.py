"""Module globals: read with guards, written into an overlay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.libraries import is_library_space
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import (
    MISSING,
    is_bound_builtin,
)
from braze.capture.outside.sources import Node

if TYPE_CHECKING:
    from braze.capture.trace.tracer import Tracer


class Globals:
    """The globals of one module. ``owner``: a node from which ``step`` reads them; None for the root frame's."""

    __slots__ = (
        "builtins",
        "cache",
        "function",
        "library",
        "module",
        "owner",
        "real",
        "step",
        "written",
    )

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

    def get(self, t: Tracer, name: str) -> Any:
        """A global, else a builtin; NameError where there is neither."""
        found = self.cache.get(name, MISSING)
        if found is not MISSING:
            return found
        value = self.real.get(name, MISSING)
        if value is MISSING:
            value = self._builtin(t, name)
        elif self.library and is_bound_builtin(value):
            self._place(t, name).guard(Check.IS, value)
            t.fixed[id(value)] = value
        elif self.owner is None:
            value = t.root_global(name, value)
        else:
            value = t.read(self.owner, self.step, name, value)
        self.cache[name] = value
        return value

    def _place(self, t: Tracer, name: str) -> Node:
        """The node of a global."""
        node = t.tree.root(Step.GLOBAL, name) if self.owner is None else self.owner.child(self.step, name)
        if node.real is MISSING:
            node.real = node.value = self.real[name]
            t.tree.order.append(node)
        return node

    def put(self, t: Tracer, f: Any, name: str, value: Any) -> None:
        """Write, for the program only."""
        self.function = f.function
        self.written[name] = value
        self.cache[name] = value

    def _builtin(self, t: Tracer, name: str) -> Any:
        value = self.builtins.get(name, MISSING)
        if value is MISSING and not t.is_ours(self.function):
            graph_break("BZ1014", f"the global {name!r} is read, which is not defined")
        if value is MISSING:
            raise NameError(f"name '{name}' is not defined", name=name)
        if self.owner is None and not self.library:
            return t.root_global(name, value)
        return value
