"""One joint graph -> a forward that also returns what is kept, and a backward that starts from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.aot.cut.min_cut import Choice, Halves, ancestors, backward_order, behind_forward
from braze.aot.facts.records import Backward, JointGraph, Saved, SavedFrom
from braze.aot.facts.symbols import SymbolNodes, is_size
from braze.aot.facts.views import sees_memory
from braze.aot.joint.outputs import copied, keep_apart
from braze.graph.fakes.fakes import FakeMode, spec_of
from braze.graph.nodes.captured import Late
from braze.graph.nodes.facts import facts, led_by, set_facts
from braze.graph.nodes.passes import drop_unread
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.graph.private import torch_nodes
from braze.graph.private.torch_symbols import is_unbacked_symbol
from braze.support.errors import Unsupported

Node = torch.fx.Node


def split(joint: JointGraph, choice: Choice) -> Backward:
    """Make the joint graph's module its own forward; ``choice`` says what that keeps for the backward."""
    module, results, mode = joint.module, joint.results, joint.mode
    graph, tangents = module.graph, joint.tangents
    output: Any = graph.output_node()
    values = list(output.args[0])
    placeholders = [n for n in graph.find_nodes(op="placeholder") if n not in tangents]
    keep_read_inputs(graph, joint.written, tangents, mode)
    wanted = list(output.args[0])[results:]
    halves = Halves(graph, values[:results], wanted, tangents, joint.written)
    kept = choice(halves)
    keep_apart(graph, joint.own, kept, mode)
    values = list(output.args[0])
    depends = tangents_of(graph, wanted, tangents)
    saved = [n for n in graph.nodes if n in kept]
    builder = _Backward(module, saved, tangents)
    backward_graph = builder.build(wanted, halves.effects, halves.behind, mode)
    sources, extra = sources_of(saved, placeholders, values[:results], builder.symbols)
    with graph.inserting_before(output):
        sources, extra = _with_made_sizes(sources, extra, results, halves)
    output.args = (tuple(values[:results] + extra),)
    for node in [n for n in reversed(graph.nodes) if n in halves.behind]:
        graph.erase_node(node)
    drop_unread(graph)
    graph.lint()
    backward = Late(backward_graph, module)
    inputs = tuple(spec_of_input(n.meta["val"], mode) for n in backward_graph.find_nodes(op="placeholder"))
    return Backward(backward, sources, joint.tangent_of, joint.gradients, depends, inputs, results)


def tangents_of(
    graph: torch.fx.Graph, gradients: Sequence[Node], tangents: Sequence[Node]
) -> tuple[tuple[int, ...], ...]:
    """Which tangents each gradient is made of, by number."""
    made_of = {node: 1 << i for i, node in enumerate(tangents)}  # one bit for each
    for node in graph.nodes:
        bits = 0
        for read in node.all_input_nodes:
            bits |= made_of.get(read, 0)
        if bits:
            made_of[node] = bits
    numbers = range(len(tangents))
    return tuple(tuple(i for i in numbers if made_of.get(node, 0) >> i & 1) for node in gradients)


def keep_read_inputs(
    graph: torch.fx.Graph, written: Sequence[Node], tangents: Sequence[Node], mode: FakeMode
) -> None:
    """Give the backward a copy of each input that it reads and that the graph writes."""
    behind = behind_forward(graph, tangents)
    for source in written:
        seen = [source]
        for node in seen:
            seen += [u for u in node.users if u.op == "call_function" and sees_memory(u) and u not in seen]
        readers = [u for node in seen for u in node.users if u in behind]
        if readers:
            copy = copied(source, next(n for n in graph.nodes if n.op == "call_function"), mode)
            _read_instead(graph, seen, copy, behind)


def _read_instead(graph: torch.fx.Graph, seen: list[Node], copy: Node, behind: set[Node]) -> None:
    """Let nodes of the backward read a copy, through the same views."""
    stands = {seen[0]: copy}
    for node in seen[1:]:
        with graph.inserting_after(node):
            stands[node] = graph.node_copy(node, lambda n: stands.get(n, n))
    for old, new in stands.items():
        for user in list(old.users):
            if user in behind:
                user.replace_input_with(old, new)


class _Backward:
    """The backward graph: placeholders for what is saved, sizes and tangents; then what is made again, and the rest."""

    def __init__(self, module: torch.fx.GraphModule, saved: Sequence[Node], tangents: Sequence[Node]) -> None:
        self.module = module
        self.graph = torch.fx.Graph()
        self.env: dict[Node, Node] = {}
        self.saved = list(saved)
        self.tangents = tangents
        #: names of the sizes that come in besides
        self.symbols: list[str] = []

    def build(
        self, gradients: list[Node], effects: list[Node], behind: set[Node], mode: FakeMode
    ) -> torch.fx.Graph:
        needed = self._needed([*gradients, *effects])
        for node in self.saved:
            self._placeholder(node)
        sizes = SymbolNodes(self.graph)
        if mode.env is not None:
            self._size_inputs(needed)
        for node in self.tangents:
            self._placeholder(node)
        sizes.find(self.graph.find_nodes(op="placeholder"))
        ends = {*gradients, *effects}
        wanted = [n for n in needed if n in behind or n in ends]
        for node in backward_order(self.module.graph, wanted, lambda n: n in self.env or is_size(n)):
            self.env[node] = self._copy(node, sizes)
        self.graph.output(tuple(self.env[g] for g in gradients))
        drop_unread(self.graph)
        return self.graph

    def _needed(self, gradients: list[Node]) -> set[Node]:
        """What the gradients are made of, down to what comes in."""
        ends = {*self.saved, *self.tangents}
        found = ancestors(gradients, lambda node: node in ends or is_size(node))
        for node in found - ends:
            if node.op == "placeholder" and isinstance(node.meta["val"], torch.Tensor):
                raise Unsupported("BZ2025", f"a backward that reads the input {node.name} unsaved")
        return found

    def _placeholder(self, node: Node) -> None:
        made = self.graph.placeholder(node.name)
        if "val" in node.meta:
            made.meta["val"] = node.meta["val"]
        set_facts(made, origin=facts(node).origin, tangents=led_by(node))
        self.env[node] = made

    def _size_inputs(self, needed: set[Node]) -> None:
        """A placeholder for each size symbol in what the backward computes."""
        found: dict[str, Any] = {}
        for node in needed:
            value = node.meta.get("val")
            numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
            for number in numbers:
                if isinstance(number, torch.SymInt):
                    for symbol in number.node.expr.free_symbols:
                        found.setdefault(str(symbol), (number, symbol))
        for name in sorted(found):
            like, symbol = found[name]
            made = self.graph.placeholder(name)
            made.meta["val"] = like.node.shape_env.create_symintnode(symbol, hint=None)
            self.symbols.append(name)

    def _copy(self, node: Node, sizes: SymbolNodes) -> Node:
        def argument(n: Node) -> Any:
            if n in self.env or not is_size(n):
                return self.env[n]
            value = n.meta["val"]
            return sizes.node(value) if isinstance(value, torch.SymInt) else value

        return torch_nodes.copy_of(self.graph, node, argument)


def sources_of(
    saved: Sequence[Node], placeholders: Sequence[Node], results: list[Node], symbols: Sequence[str]
) -> tuple[tuple[Saved, ...], list[Node]]:
    """Where each value comes from that the backward takes, and what the forward must return besides for it."""
    sources: list[Saved] = []
    extra: list[Node] = []
    returned = {node: i for i, node in enumerate(results)}
    inputs = {node: i for i, node in enumerate(placeholders)}
    for node in saved:
        if node in inputs:
            sources.append(Saved(SavedFrom.INPUT, inputs[node], early=facts(node).read_early))
        elif node in returned:
            sources.append(Saved(SavedFrom.OUTPUT, returned[node], early=facts(node).read_early))
        else:
            sources.append(Saved(SavedFrom.OUTPUT, len(results) + len(extra)))
            extra.append(node)
    sources += [Saved(SavedFrom.SYMBOL, name=name) for name in symbols]
    return tuple(sources), extra


def _with_made_sizes(
    sources: tuple[Saved, ...], extra: list[Node], results: int, halves: Halves
) -> tuple[tuple[Saved, ...], list[Node]]:
    """Sizes that only the data tell are told by no input: the forward returns them besides."""
    wanted = {s.name for s in sources if s.source is SavedFrom.SYMBOL and is_unbacked_symbol(s.name)}
    if not wanted:
        return sources, extra
    made = _makers(halves, wanted)
    found = []
    for each in sources:
        if each.source is SavedFrom.SYMBOL and each.name in made:
            found.append(Saved(SavedFrom.OUTPUT, results + len(extra), each.name))
            extra = [*extra, made[each.name]]
        else:
            found.append(each)
    return tuple(found), extra


def _makers(halves: Halves, wanted: set[str]) -> dict[str, Node]:
    """Size symbol -> a node of the forward that is it; no input of the graph tells these."""
    made: dict[str, Node] = {}
    sized: dict[str, tuple[Node, int]] = {}
    for node in halves.graph.nodes:
        value = node.meta.get("val")
        numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
        for dim, number in enumerate(numbers):
            name = str(number.node.expr) if isinstance(number, torch.SymInt) else ""
            if name not in wanted or node in halves.behind:
                continue
            if node.op == "placeholder":
                wanted = wanted - {name}
            elif isinstance(value, torch.SymInt):
                made.setdefault(name, node)
            else:
                sized.setdefault(name, (node, dim))
    for name in sorted(wanted - made.keys()):
        source, dim = sized[name]
        made[name] = halves.graph.call_function(torch.ops.aten.sym_size.int, (source, dim))
        made[name].meta["val"] = source.meta["val"].shape[dim]
    return {name: node for name, node in made.items() if name in wanted}


def spec_of_input(value: Any, mode: FakeMode) -> TensorSpec | SymbolSpec | FloatSpec:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, torch.SymFloat):
        return FloatSpec(mode.name_of(value), value.node.hint)
    return SymbolSpec(str(value.node.expr), value.node.hint)
