"""One trace: its four records, the recorder of its graph, and what the interpreter can be asked to do.

Functions of the rooms above take what they use of it. How calls, attributes and operators are interpreted is theirs; they ask each
other for it by the verbs of :class:`Interpreter`, which the tracer fills in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from braze.capture.facts.frame import Frame
from braze.capture.state.frames import Frames
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import InputRole, set_facts
from braze.options import Options


class Interpreter(ABC):
    """What Python's own meaning is asked for, wherever a function of the trace needs it."""

    @abstractmethod
    def call(self, fn: Any, args: Any, kwargs: dict[str, Any] | None = None, tail: bool = False) -> Any:
        """``fn(*args, **kwargs)``; ``tail``: the result is just what the instruction pushes."""

    @abstractmethod
    def run(self, f: Frame) -> Any:
        """Interpret a frame until it returns or yields."""

    @abstractmethod
    def attribute(self, obj: Any, name: str, tail: bool = False) -> Any:
        """``obj.name``."""

    @abstractmethod
    def item(self, obj: Any, key: Any) -> Any:
        """``obj[key]``."""

    @abstractmethod
    def iterate(self, value: Any) -> Any:
        """``iter(value)``."""

    @abstractmethod
    def advance(self, iterator: Any, end: Any, raising: bool = False) -> Any:
        """``next(iterator, end)``; with ``raising`` StopIteration comes out."""

    @abstractmethod
    def truth(self, value: Any) -> bool:
        """``bool(value)``."""


class Recording(ABC):
    """The FX graph of one trace, or of a function in it. ``nodes`` maps each fake to its node, and keeps the fake alive."""

    def __init__(self, t: Trace, mode: FakeMode, outer: Recording | None = None) -> None:
        self.t = t
        self.mode = mode
        #: the recorder of the graph around, where this one's is a part of it; and those of its own parts
        self.outer = outer
        self.parts: list[Recording] = []
        if outer is not None:
            outer.parts.append(self)
        #: whether ``x[i]`` with a tensor for a number looks the row up, rather than read the number
        self.by_index: bool = outer is not None and outer.by_index
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, tuple[Any, torch.fx.Node]] = {}
        self.placeholders: list[tuple[torch.fx.Node, Any]] = []
        self.symbols: dict[Any, torch.fx.Node] = {}
        #: symbols that only the data tell -> (tensor, dimension) of which they are the size
        self.sized: dict[Any, tuple[torch.Tensor, int]] = {}
        #: what is assumed of such symbols and has its check in the graph, and how many there were to look at
        self.checked: set[Any] = set()
        self.checks = 0
        self.calls = 0
        #: inputs that draws of Python's random give, after the others -> which draw
        self.drawn: dict[torch.fx.Node, int] = {}
        #: what tensors of the graph hold, once that is asked (graph.constant_evaluation)
        self.known: Any = None
        #: subgraphs that the graph holds, by attribute
        self.modules: dict[str, torch.fx.GraphModule] = {}

    def nodes_of_parts(self, first: int) -> Iterator[torch.fx.Node]:
        """The nodes of its parts from the ``first`` on, and of theirs."""
        for part in self.parts[first:]:
            yield from part.graph.nodes
            yield from part.nodes_of_parts(0)

    def place(self, node: torch.fx.Node, **more: Any) -> None:
        """Say of a node that it is made where the program is, and whatever else is known of it."""
        set_facts(node, place=self.t.frames.here(), **more)

    def make(
        self,
        target: Any,
        args: tuple[Any, ...],
        value: Any,
        kwargs: dict[str, Any] | None = None,
        **more: Any,
    ) -> torch.fx.Node:
        """A node beside those of recorded calls, what it gives, and what else is known of it."""
        node = self.graph.create_node("call_function", target, args, kwargs or {})
        node.meta["val"] = value
        self.place(node, **more)
        return node

    def knows(self, value: Any) -> bool:
        """Whether a value has a node."""
        return id(value) in self.nodes

    def placeholder_of(self, place: Any) -> torch.fx.Node:
        """The graph input of a symbolic int."""
        found = self.nodes.get(id(place.value))
        return found[1] if found is not None else self.placeholder(place, place.value)

    def given(self, name: str, fake: Any) -> torch.fx.Node:
        """A graph input that residual code makes: it comes after all that are found at places."""
        last = next(reversed(self.drawn), self.placeholders[-1][0] if self.placeholders else None)
        at = (
            self.graph.inserting_after(last)
            if last is not None
            else self.graph.inserting_before(self.first())
        )
        with at:
            node = self.graph.create_node("placeholder", name, (), {}, name=name)
        node.meta["val"] = fake
        set_facts(node, role=InputRole.USER, source=name, requires_grad=False, leaf=True)
        self.nodes[id(fake)] = (fake, node)
        return node

    def first(self) -> torch.fx.Node:
        """The first node; the end of the graph where there is none."""
        return next(iter(self.graph.nodes), self.graph._root)

    def note_birth(self, fake: torch.Tensor) -> None:
        """Remember how often a new fake has been written by those who made it."""
        version = fake._version
        if version:
            self.t.graph.born[id(fake)] = version

    def is_written(self, fake: torch.Tensor) -> bool:
        """Whether the program has written to a tensor."""
        return fake._version != self.t.graph.born.get(id(fake), 0)

    def forget(self, value: Any) -> None:
        """Take back the call whose result this is: nothing uses it."""
        _, node = self.nodes.pop(id(value))
        self.graph.erase_node(node)

    def take_back(self, nodes: list[torch.fx.Node]) -> None:
        """Erase what was recorded last, the last first, and what is known as made by it: fakes, and numbers made of sizes."""
        for node in nodes:
            self.graph.erase_node(node)
        gone = set(nodes)
        self.nodes = {key: known for key, known in self.nodes.items() if known[1] not in gone}
        self.symbols = {expr: node for expr, node in self.symbols.items() if node not in gone}

    @abstractmethod
    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a torch function on fakes and note it."""

    @abstractmethod
    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Add the call's node."""

    @abstractmethod
    def add_node(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
        """A node of the graph."""

    @abstractmethod
    def spread(self, node: torch.fx.Node, result: Any) -> None:
        """Bind a result, or each tensor of a tuple of results by ``getitem``."""

    @abstractmethod
    def argument(self, value: Any) -> Any:
        """A call's argument as FX sees it."""

    @abstractmethod
    def node_of(self, value: Any) -> torch.fx.Node:
        """The node of a fake; an input not used before becomes a placeholder."""

    @abstractmethod
    def placeholder(self, place: Any, fake: Any) -> torch.fx.Node:
        """The graph input for what is at ``place``."""


class GraphState:
    """The graph of a trace, and what is known of its tensors beside their metadata."""

    #: where torch calls are noted; a function of the program that becomes a graph of its own has its own meanwhile
    recorder: Recording

    def __init__(self, mode: FakeMode, hooks_inside: frozenset[int]) -> None:
        self.mode = mode
        #: the instructions whose hooks become parts of the graph
        self.hooks_inside = hooks_inside
        #: versions of fakes at their making, where these are not 0
        self.born: dict[int, int] = {}
        #: metadata of the graph's inputs, by identity of the fake
        self.specs: dict[int, Any] = {}
        #: names of the floats that are made by functions of ``math``
        self.computed: set[str] = set()
        #: id of a float made of sizes by the algebra of symbols -> (that, function, operands), or the float of the graph as which it was written
        self.written = mode.decided.written
        #: how many transforms that differentiate are around
        self.transforms = 0
        #: how many checkpoints are around of which the program's would see what autograd saves
        self.saving = 0
        #: how many ``vmap`` are around
        self.batched = 0
        #: what stands in the function of a transform for an operand of it, and that operand, by the memory of the former
        self.stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: how many recording modes are on: C code is running
        self.modes_on = 0
        #: function modes that the program has entered
        self.open_modes: list[Any] = []
        self.inference: list[Any] = []
        self.inference_on = False
        #: whether a part of the graph runs in inference mode: fakes do not know theirs
        self.knew_inference = False


class Trace(Interpreter):
    """The state of one trace: what is outside, what was done, the graph, the frames."""

    def __init__(
        self, options: Options, outside: Outside, done: Ledger, graph: GraphState, frames: Frames
    ) -> None:
        self.options = options
        self.outside = outside
        self.done = done
        self.graph = graph
        self.frames = frames
