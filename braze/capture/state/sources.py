"""The tree of everything the trace has read from outside: one node per place, with its guards.

A node owns the object it stands for (``real``) and what the interpreter sees instead (``value``): a fake for a
tensor, a shadow for a container, else the object itself. Both are indexed by identity, so that a second way to a
known object is an alias and gives the same value.
"""

from __future__ import annotations

from typing import Any

from braze.capture.facts.records import Check, IdentityKey, Source, Step
from braze.capture.facts.values import MISSING


class Node:
    """One place outside. ``dict``: the node of its instance ``__dict__``, made when first wanted."""

    __slots__ = (
        "_source",
        "absent",
        "children",
        "container",
        "dict",
        "guards",
        "key",
        "origin",
        "parent",
        "real",
        "slots",
        "step",
        "value",
    )

    def __init__(self, step: Step, key: Any, parent: Node | None) -> None:
        self.step = step
        self.key = key
        self.parent = parent
        self.real: Any = MISSING
        self.value: Any = MISSING
        self.children: dict[Any, Node] = {}
        self.guards: list[tuple[Check, Any]] = []
        #: names read and not found in the instance dict
        self.absent: dict[str, bool] | None = None
        #: state of a shadowed container (shadows.Shadow)
        self.container: Any = None
        self.dict: Any = None
        #: attributes written that do not live in an instance dict
        self.slots: dict[str, Any] | None = None
        self.origin: Any = None
        self._source: Source | None = None

    @property
    def source(self) -> Source:
        """The place as a record."""
        if self._source is None:
            parent = self.parent
            # an instance dict has no step of its own: its items hang on the object
            # made without ``type.__call__``, which would call an ``__init__`` that has nothing to do
            self._source = Source.__new__(  # type: ignore[call-arg]
                Source, self.step, self.key, parent.source if parent is not None else None
            )
        return self._source

    def child(self, step: Step, key: Any) -> Node:
        """The node below, made when first wanted."""
        found = self.children.get((step, key))
        if found is None:
            found = self.children[(step, key)] = Node(step, key, self)
        return found

    def guard(self, check: Check, expected: Any) -> None:
        """Ask something of the object here; asking twice is once."""
        for known, value in self.guards:
            if known is check and value is expected:
                return
        self.guards.append((check, expected))


class Tree:
    """All nodes of one trace, and the two indexes by identity."""

    def __init__(self) -> None:
        self.known: dict[int, Node] = {}
        self.roots: dict[Any, Node] = {}
        #: nodes with guards in the order of their first sight
        self.order: list[Node] = []
        self.inputs: list[Node] = []
        #: places that the program found to hold different objects
        self.apart: list[tuple[Node, Node]] = []
        #: of symbols by name, of which an index was computed: where each call finds their numbers
        self.symbols: dict[str, Node] = {}
        #: places of the objects whose id() was asked for: all different
        self.asked: dict[Node, None] = {}
        #: classes of objects of which C code has compared one, or hashed it by what it is (outside.told_apart)
        self.compared: set[type] = set()

    def root(self, step: Step, key: Any) -> Node:
        """A node without a parent."""
        found = self.roots.get((step, key))
        if found is None:
            found = self.roots[(step, key)] = Node(step, key, None)
        return found

    def constant(self, value: Any) -> Node:
        """The node of an object known by identity: no guard, since the object itself is the key."""
        found = self.node_of(value)
        if found is not None:
            return found
        node = Node(Step.CONSTANT, IdentityKey(value), None)
        node.real = node.value = value
        self.known[id(value)] = node
        return node

    def node_of(self, value: Any) -> Node | None:
        """The node of an outside object, given the object or what stands for it."""
        found = self.known.get(id(value))
        if found is not None and (found.value is value or found.real is value):
            return found
        return None

    def distinct(self, a: Any, b: Any) -> None:
        """The program was told that two objects are not one: guard it where both come from outside."""
        one, other = self.known.get(id(a)), self.known.get(id(b))
        if one is None or other is None or one is other:
            return
        if one.step is not Step.CONSTANT and other.step is not Step.CONSTANT:
            self.apart.append((one, other))

    def meet(self, node: Node, real: Any) -> None:
        """Say what is at a place of which the program gets nothing that stands for it."""
        if node.real is MISSING:
            node.real = node.value = real
            self.order.append(node)

    def tell(self, node: Node, real: Any, origin: Any) -> None:
        """Guard what is told at such a place, once."""
        if node.real is MISSING:
            node.origin = origin
            self.meet(node, real)
            node.guards.append((Check.EQUAL, real))

    def bind(self, node: Node, real: Any, value: Any) -> Any:
        """Say what a node stands for, and enter it into the indexes."""
        node.real = real
        node.value = value
        self.known[id(real)] = node
        if value is not real:
            self.known[id(value)] = node
        self.order.append(node)
        return value
