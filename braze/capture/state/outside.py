"""What a trace finds outside the frame, and what it knows of that."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.facts.records import Source, Step
from braze.capture.facts.values import MISSING
from braze.capture.state.sources import Node, Tree

#: what is to be a symbol: sizes and numbers by their places, all (``guards/dynamic.py``), or both
Symbolic = str | frozenset[tuple[Source, int] | str] | None


#: steps to what each call makes, or chooses
_OF_THIS_CALL = (Step.TENSOR_OF, Step.TENSOR_OF_NUMBERS, Step.ITEM_AT)


class Outside:
    """The tree of places that were read, and where single kinds of things were found."""

    #: (place, what is there) -> what the interpreter sees of it, guarded (outside.reads)
    see: Callable[[Node, Any], Any]

    def __init__(self, function: types.FunctionType, symbolic: Symbolic, trusting: bool) -> None:
        #: the captured function
        self.function = function
        self.symbolic: Any = frozenset((symbolic,)) if isinstance(symbolic, str) else symbolic
        #: whether small tensors of models may be taken to hold what they hold now
        self.trusting = trusting
        self.tree = Tree()
        #: PyTorch's global state (outside.torch_state)
        self.settings: Any = None
        #: sizes that the user spoke of (outside.symbols)
        self.marked: Any = None
        #: whether classes were met that a call has made, and that may end before compiled code does
        self.passing_classes = False
        #: what small tensors of models were taken to hold
        self.contents: dict[Node, Any] = {}
        #: containers (outside.shadows)
        self.shadows: list[Any] = []
        #: those of lists that nothing has looked into, or not into the lists in them, by identity of what stands for the list (outside.unread)
        self.unread: dict[int, Any] = {}
        #: the frame that is at an instruction, or the place of the list, of which what is read is handed on
        self.handing: Any = None
        #: instance dicts (outside.shadows)
        self.instance_dicts: dict[int, Any] = {}
        #: views of instance dicts that the program got as values
        self.dict_views: dict[int, Any] = {}
        #: globals of modules, by identity of the dict (outside.globals)
        self.globals: dict[int, Any] = {}
        #: contents of outside closure cells, by identity of the cell
        self.cells: dict[int, tuple[types.CellType, Node]] = {}
        self.symbolic_places: list[Node] = []
        #: places of text that changes, by identity of what stands for it, and sources of text and lists that are guarded where they are read (outside.given_texts)
        self.texts: dict[int, Node] = {}
        self.plain: frozenset[Source] = frozenset()
        #: what hears messages that are given when the graph has run, by identity (outside.listeners)
        self.heard: dict[int, Any] = {}
        #: bound methods in C that modules of libraries hold, by identity
        self.fixed: dict[int, Any] = {}
        #: classes whose dicts were read whole, by identity
        self.class_dicts: dict[int, Any] = {}
        #: places of tensors over arrays' memory that the program has got
        self.arrays: set[Node] = set()
        #: what id() was asked of, by identity
        self.identities: dict[int, Any] = {}
        #: functions from outside that were interpreted, for the archive
        self.inlined: dict[types.FunctionType, None] = {}
        #: tensors from outside that no fake can stand for, and why: they may be handed on, not used
        self.unfaked: dict[int, tuple[Any, str]] = {}
        #: functions of libraries that are not interpreted, and names of methods of tensors: whether all that they rely on is the library's own
        self.relied: dict[Any, bool] = {}
        #: whether hooks for all modules are registered, once that is asked
        self.global_hooks: bool | None = None

    def read(self, parent: Node, step: Step, key: Any, real: Any) -> Any:
        """What the interpreter sees of ``real``, found at ``key`` below ``parent``."""
        node = parent.children.get((step, key))
        if node is None:
            node = parent.children[(step, key)] = Node(step, key, parent)
        elif node.real is not MISSING:
            return node.value
        return self.see(node, real)

    def told_apart(self, a: Any, b: Any) -> None:
        """The program was told that two objects, or the instance dicts of two, are not one."""
        shadows = [self.dict_views.get(id(value)) for value in (a, b)]
        if all(s is not None and s.view is v for s, v in zip(shadows, (a, b), strict=True)):
            a, b = (s.node.real for s in shadows)  # type: ignore[union-attr]
        self.tree.distinct(a, b)

    def is_fixed(self, value: Any) -> bool:
        """Whether this bound method is what a library's module holds: ``random.random``."""
        return self.fixed.get(id(value)) is value

    def is_model_state(self, node: Node) -> bool:
        """Whether a tensor was found through a module, or is a parameter: the same object at each call.

        By classes alone: ``isinstance`` asks an object for its ``__class__``, through what the program has put in the way.
        """
        at: Node | None = node
        found = issubclass(type(node.real), torch.Tensor) and isinstance(node.real, torch.nn.Parameter)
        while at is not None:
            if at.step in _OF_THIS_CALL:
                return False
            found = found or issubclass(type(at.real), torch.nn.Module)
            at = at.parent
        return found

    def release(self) -> None:
        """Let go of the values of the call."""
        nodes = {*self.tree.known.values(), *self.tree.order, *self.tree.roots.values()}
        for node in self.texts.values():
            node.value.made = None  # it names the place, whose parents hold what stands for the text
        while nodes:
            below: set[Node] = set()
            for node in nodes:
                if node.children:
                    below.update(node.children.values())
                    node.children = {}
                node.dict = node.container = None
            nodes = below - nodes
        vars(self).clear()
