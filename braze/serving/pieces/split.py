"""A graph cut at its splitting operators: what lies between them can be compiled and recorded, they cannot.

Nodes keep their order, so that writes happen as they did, but for three kinds that write nothing: a value taken out of a tuple stays with
what made the tuple; a size that is asked for, and memory that is only taken, behind a splitting operator belong to the piece before it.
What crosses from piece to piece is a tensor or a number: tuples and ``torch.Size`` do not.

Applies to captured graphs (torch level) and to any other ``GraphModule``; metadata (``meta["val"]``, facts) go along.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Graph, GraphModule, Node

from braze.graph.nodes.captured import Late
from braze.graph.nodes.facts import facts, set_facts, share_facts
from braze.serving.pieces.custom_ops import is_marked, names_of, spelled
from braze.serving.policy.fields import refuse
from braze.support.errors import Unsupported, UserError
from braze.support.record import record

aten = torch.ops.aten

_SYM_SIZE = aten.sym_size.int
#: calls that only take memory
_TAKES_MEMORY = frozenset(
    (
        torch.empty, torch.empty_like, torch.empty_strided, "new_empty", "new_empty_strided", aten.empty.memory_format,
        aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default, aten.new_empty_strided.default,
    )
)  # fmt: skip
#: names of what switches gradients on and off
_GRAD_MODES = frozenset({"set_grad_enabled", "_set_grad_enabled"})
#: methods that give a view of what they are given
_VIEWS = frozenset({"view", "unsqueeze", "squeeze", "expand", "transpose", "permute", "narrow", "detach"})


@record
class SplitItem:
    """One piece: a submodule of the split graph. ``is_splitting_graph``: it holds splitting operators alone, and runs as it is."""

    submod_name: str
    graph_id: int
    is_splitting_graph: bool
    graph: GraphModule


def split_graph(
    gm: GraphModule, splitting_ops: Iterable[Any] = (), *, marked: bool = True
) -> tuple[GraphModule, list[SplitItem]]:
    """``gm`` as a graph that calls its pieces ``submod_0``, ``submod_1``..., and these in order.

    ``splitting_ops``: names (``"ns::op"``, ``"ns.op"``, ``"ns.op.overload"``) or operators; a name that no node has splits nothing.
    ``marked``: also at operators of :func:`~braze.serving.pieces.custom_ops.mark_splitting_op`. Splitting operators in a row, with nothing
    between them, share a piece. Running the split graph does what running ``gm`` does. Unsupported (BZ7204) where a setting of PyTorch's
    that the graph turns on in one piece would hold in another. ``gm`` itself is not changed.
    """
    if isinstance(splitting_ops, str):
        raise UserError(
            "BZ7203",
            f"splitting_ops= does not take {splitting_ops!r}",
            hints=[f"a list: [{splitting_ops!r}]"],
        )
    if not isinstance(gm, GraphModule):
        raise refuse("gm", gm, "a torch.fx.GraphModule, as a backend gets it")
    names = frozenset(spelled(op) for op in splitting_ops)
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}), None)
    whole = Late(graph, gm)
    _take_sizes_apart(graph)
    if not torch.is_grad_enabled():
        _without_grad_modes(graph)
    numbers, splitting = _numbered(graph, names, marked)
    _refuse_settings(graph, numbers)
    return _Splitter(whole, numbers, splitting).split()


def splits_at(node: Node, names: frozenset[str], marked: bool = True) -> bool:
    """Whether a node calls one of the operators ``names`` (in one spelling), or one that was marked."""
    if node.op != "call_function":
        return False
    return not names.isdisjoint(names_of(node.target)) or (marked and is_marked(node.target))


# -- sizes ------------------------------------------------------------------------------------------


def _take_sizes_apart(graph: Graph) -> None:
    """Ask for each extent of ``x.size()`` and ``x.shape`` by itself, beside the tensor: numbers may cross, ``torch.Size`` may not."""
    for node in list(graph.nodes):
        whole = (
            node.op == "call_method" and node.target == "size" and len(node.args) == 1 and not node.kwargs
        ) or (node.op == "call_function" and node.target is getattr and node.args[1:] == ("shape",))
        if not whole:
            continue
        tensor = node.args[0]
        extents: dict[int, Node] = {}

        def extent(dim: int) -> Node:
            if dim not in extents:
                with graph.inserting_before(node):
                    made = extents[dim] = graph.call_function(_SYM_SIZE, (tensor, dim))
                share_facts(made, node)
                if "val" in node.meta:
                    made.meta["val"] = node.meta["val"][dim]
            return extents[dim]

        for user in list(node.users):
            if user.target is operator.getitem and type(user.args[1]) is int:
                user.replace_all_uses_with(extent(user.args[1]))
                graph.erase_node(user)
        if "val" in node.meta and node.users:
            extents_of_all = tuple(extent(d) for d in range(len(node.meta["val"])))
            _replace(node, extents_of_all)
        if not node.users:
            graph.erase_node(node)


def _replace(node: Node, by: tuple[Node, ...]) -> None:
    """Give the users of a node a tuple of nodes instead."""
    for user in list(node.users):
        args, kwargs = torch.fx.map_arg((user.args, user.kwargs), lambda n: by if n is node else n)
        user.args, user.kwargs = args, kwargs


# -- which node goes into which piece ---------------------------------------------------------------


def _numbered(graph: Graph, names: frozenset[str], marked: bool) -> tuple[dict[Node, int], set[int]]:
    """The number of each node's piece, in order, and the numbers of those that hold splitting operators."""
    numbers: dict[Node, int] = {}
    splitting: set[int] = set()
    current, inside = 0, False
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        source = _taken_out(node)
        if source is not None and source in numbers:
            numbers[node] = numbers[source]
            continue
        if splits_at(node, names, marked):
            current, inside = (current if inside else current + 1), True
            splitting.add(current)
        elif inside:
            earlier = _earlier(node, numbers, current)
            if earlier is not None:
                numbers[node] = earlier
                continue
            current, inside = current + 1, False
        numbers[node] = current
    _merge_empty(graph, numbers, splitting)
    return _packed(numbers, splitting)


def _taken_out(node: Node) -> Node | None:
    """What a node takes one value of a tuple out of, if it does; without metadata, any item by a number (of a tensor it is a view)."""
    if node.target not in (operator.getitem, getattr) or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    if "val" not in source.meta:
        return source if type(node.args[1]) is int else None
    held = source.meta["val"]
    return source if isinstance(held, (tuple, list)) and not isinstance(held, torch.Size) else None


def _earlier(node: Node, numbers: dict[Node, int], current: int) -> int | None:
    """The piece before a splitting one, for a node behind it that asks for a size or takes memory, if all that it needs is there."""
    if not (node.target in _TAKES_MEMORY or node.target is _SYM_SIZE):
        return None
    needs = [numbers[n] for n in node.all_input_nodes if n in numbers]
    return current - 1 if all(n < current for n in needs) else None


def _merge_empty(graph: Graph, numbers: dict[Node, int], splitting: set[int]) -> None:
    """Pieces that start no kernel join the splitting piece before them (the one after them at the start): there is nothing to record."""
    busy = {numbers[n] for n in numbers if not _starts_nothing(n)}
    idle = sorted(set(numbers.values()) - busy - splitting)
    if not splitting:
        return
    for number in idle:
        before = [n for n in splitting if n < number]
        to = max(before) if before else min(splitting)
        for node, of in numbers.items():
            if of == number:
                numbers[node] = to


def _starts_nothing(node: Node) -> bool:
    if node.target in _TAKES_MEMORY or node.target in _VIEWS or node.target is _SYM_SIZE:
        return True
    if node.target is operator.getitem:
        return not any(isinstance(n.meta.get("val"), torch.Tensor | None) for n in node.all_input_nodes[1:])
    return isinstance(node.meta.get("val"), int | torch.SymInt)  # arithmetic on sizes


def _packed(numbers: dict[Node, int], splitting: set[int]) -> tuple[dict[Node, int], set[int]]:
    """The same with numbers 0, 1, 2..., where neighbours that both split are one piece."""
    new: dict[int, int] = {}
    last, before_splits = -1, False
    for number in sorted(set(numbers.values())):
        splits = number in splitting
        if not (splits and before_splits):
            last += 1
        new[number], before_splits = last, splits
    return {node: new[n] for node, n in numbers.items()}, {new[n] for n in splitting}


def _refuse_settings(graph: Graph, numbers: dict[Node, int]) -> None:
    """What one piece turns on and does not turn off again would hold in others: nothing of that kind may cross."""
    depth, begun = 0, -1
    others: dict[str, int] = {}
    for node in graph.nodes:
        if not facts(node).setting:
            continue
        name = _name(node)
        if name == "autocast_increment_nesting":
            depth, begun = depth + 1, (numbers[node] if depth == 0 else begun)
        elif name == "autocast_decrement_nesting":
            depth -= 1
            if numbers[node] != begun:
                raise _unsplittable(node)
        elif "autocast" not in name and others.setdefault(name, numbers[node]) != numbers[node]:
            raise _unsplittable(node)


def _without_grad_modes(graph: Graph) -> None:
    """Where no gradients are recorded, blocks that switch them off change nothing."""
    for node in list(graph.nodes):
        if facts(node).setting and not node.users and _name(node) in _GRAD_MODES:
            graph.erase_node(node)


def _unsplittable(node: Node) -> Unsupported:
    return Unsupported(
        "BZ7204",
        f"a graph cannot be split inside a block that changes PyTorch's settings ({_name(node)})",
        why="each piece is compiled by itself, under the settings that hold around the model",
        hints=["enter the block outside of the model", 'split="capture", which compiles the graph whole'],
        origin=facts(node).origin,
    )


def _name(node: Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


# -- the pieces -------------------------------------------------------------------------------------


class _Splitter:
    """Builds the pieces and the graph that calls them."""

    def __init__(self, gm: GraphModule, numbers: dict[Node, int], splitting: set[int]) -> None:
        self.gm, self.numbers, self.splitting = gm, numbers, splitting
        self.outer = Graph()
        self.root = torch.nn.Module()
        #: nodes of the graph -> nodes of the outer one
        self.env: dict[Node, Node] = {}

    def split(self) -> tuple[GraphModule, list[SplitItem]]:
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self.env[node] = self.outer.node_copy(node)
            elif node.op == "get_attr" and isinstance(_attribute(self.gm, node.target), torch.Tensor):
                self._lift(node)
        items = []
        for number in range(len(set(self.numbers.values()))):
            items.append(
                self._piece(number, [n for n in self.gm.graph.nodes if self.numbers.get(n) == number])
            )
        end = self.gm.graph.output_node()
        self.outer.output(torch.fx.map_arg(end.args[0], lambda n: self.env[n]))
        self.outer.output_node().meta.update(end.meta)
        made = Late(self.outer, self.root)
        made.meta.update(self.gm.meta)
        return made, items

    def _lift(self, node: Node) -> None:
        """A tensor that the graph holds is an input of pieces, so that pieces alike but for it are alike."""
        held = _attribute(self.gm, node.target)
        name = "held_" + str(node.target).replace(".", "_")
        if isinstance(held, torch.nn.Parameter):
            self.root.register_parameter(name, held)
        else:
            self.root.register_buffer(name, held)
        self.env[node] = made = self.outer.get_attr(name)
        made.meta.update(node.meta)

    def _piece(self, number: int, nodes: list[Node]) -> SplitItem:
        """One piece, whose inputs stand in the order of their first use and whose outputs in the order in which they are made."""
        inner, inside = Graph(), {}
        members = set(nodes)
        needed = dict.fromkeys(
            n for node in nodes for n in node.all_input_nodes if n in self.env and n not in members
        )
        for n in needed:
            inside[n] = made = inner.placeholder(n.name)
            made.meta.update(n.meta)
        holder = torch.nn.Module()
        for n in dict.fromkeys(
            n for node in nodes for n in node.all_input_nodes if n not in self.env and n.op == "get_attr"
        ):
            inside[n] = inner.node_copy(n)
            _set_attribute(holder, str(n.target), _attribute(self.gm, n.target))
        for node in nodes:
            if node.op == "call_module":
                _set_attribute(holder, str(node.target), self.gm.get_submodule(str(node.target)))
            inside[node] = inner.node_copy(node, lambda n: inside[n])
        crossing = [n for n in nodes if any(user not in members for user in n.users)]
        inner.output(tuple(inside[n] for n in crossing))
        inner.output_node().meta["val"] = tuple(n.meta.get("val") for n in crossing)
        name = f"submod_{number}"
        module = Late(inner, holder)
        module.meta["name"] = f"{self.gm.meta.get('name', 'graph')}_{number}"
        self.root.add_module(name, module)
        self._call(name, list(needed), crossing)
        return SplitItem(name, number, number in self.splitting, module)

    def _call(self, name: str, inputs: Sequence[Node], crossing: Sequence[Node]) -> None:
        """The call of a piece in the outer graph, and what comes out of it."""
        call = self.outer.call_module(name, tuple(self.env[n] for n in inputs))
        call.meta["val"] = tuple(n.meta.get("val") for n in crossing)
        for i, n in enumerate(crossing):
            self.env[n] = made = self.outer.call_function(operator.getitem, (call, i))
            made.meta["val"] = n.meta.get("val")
            set_facts(made, origin=facts(n).origin)


def _attribute(gm: torch.nn.Module, path: Any) -> Any:
    return operator.attrgetter(str(path))(gm)


def _set_attribute(holder: torch.nn.Module, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        if not hasattr(holder, name):
            setattr(holder, name, torch.nn.Module())
        holder = getattr(holder, name)
    setattr(holder, last, value)
