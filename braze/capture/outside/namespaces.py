"""The dicts of modules, as the program gets hold of them: ``globals()``, ``module.__dict__``."""

from __future__ import annotations

import types
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Step
from braze.capture.outside.globals import Globals, globals_at
from braze.capture.outside.shadows import DictShadow
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node


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
