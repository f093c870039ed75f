"""What each user output is: a value, a view of an input or of another output, a constant; and what gradients enter by."""

from __future__ import annotations

import operator
from typing import Any

import torch

from braze.aot.functionalize import Functional, evaluate
from braze.aot.records import OutputKind, OutputRole
from braze.aot.symbols import SYMBOLIC
from braze.aot.views import is_view
from braze.graph import torch_compat
from braze.graph.fakes import FakeMode, spec_of
from braze.graph.specs import TensorSpec
from braze.support.errors import Unsupported

aten = torch.ops.aten
Node = torch.fx.Node


class Outputs:
    """What each user output is, by whom its memory is shared in the trace."""

    def __init__(self, graph: torch.fx.Graph, outputs: list[tuple[Any, Any]]) -> None:
        self.graph = graph
        self.outputs = outputs
        self.placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.number = {node: i for i, node in enumerate(self.placeholders)}
        self.input_storages: dict[int, Node] = {}
        for node in self.placeholders:
            if isinstance(node.meta["val"], torch.Tensor):
                self.input_storages.setdefault(torch_compat.storage_key(node.meta["val"]), node)
        #: outputs that are views of an input -> that input, which need not be the only one over its memory
        self.sources = {
            id(value): self._source(node, torch_compat.storage_key(value))
            for node, value in outputs
            if isinstance(value, torch.Tensor) and torch_compat.storage_key(value) in self.input_storages
        }
        #: storage -> the outputs over it, for memory that the graph makes
        self.groups: dict[int, list[int]] = {}
        known: set[int] = set()
        for i, (_, value) in enumerate(outputs):
            if isinstance(value, torch.Tensor):
                key = torch_compat.storage_key(value)
                if key not in self.input_storages and id(value) not in known:
                    known.add(id(value))
                    self.groups.setdefault(key, []).append(i)
        self.bases = {key: self._base(key) for key, group in self.groups.items() if len(group) > 1}
        #: what the storages of bases look like in eager, before functionalization gives them others
        self.layouts = {key: spec_of(node.meta["val"]) for key, node in self.bases.items()}

    def _source(self, node: Node, key: int) -> Node:
        """The input that a node is a view of."""
        while node.op != "placeholder":
            over = (
                n
                for n in node.all_input_nodes
                if node.target is operator.getitem
                or (
                    isinstance(n.meta["val"], torch.Tensor) and torch_compat.storage_key(n.meta["val"]) == key
                )
            )
            found = next(over, None)
            if found is None:
                return self.input_storages[key]
            node = found
        return node

    def _base(self, key: int) -> Node:
        """The node that made a storage."""
        for node in self.graph.nodes:
            val = node.meta.get("val")
            if node.op != "output" and isinstance(val, torch.Tensor) and torch_compat.storage_key(val) == key:
                return node
        raise AssertionError("an output's storage has a node")

    def computed(self) -> list[Any]:
        """The fakes that stand in the graph's tuple after the mutations: bases, then values."""
        found: list[Any] = [node.meta["val"] for node in self.bases.values()]
        seen: set[int] = set()
        for node, value in self.outputs:
            if not isinstance(value, torch.Tensor):
                found += [value] if isinstance(node, Node) else []
                continue
            key = torch_compat.storage_key(value)
            if id(value) not in seen and key not in self.input_storages and key not in self.bases:
                found.append(value)
            seen.add(id(value))
        return found

    def wanted(self) -> list[Node]:
        """The nodes whose final values the outputs need."""
        nodes = [node for node, _ in self.outputs if isinstance(node, Node)]
        return list(dict.fromkeys([*nodes, *self.bases.values()]))

    def assign(
        self, functional: Functional, mode: FakeMode
    ) -> tuple[tuple[OutputRole, ...], tuple[OutputRole, ...], list[Node]]:
        """The roles of the outputs and of the mutations, and the graph's output tuple, as nodes."""
        results: list[Node] = []
        mutations = []
        for each in functional.shared:
            self.number[each.base] = len(self.placeholders)
            self.placeholders.append(each.base)
        for node, value, counted in functional.mutated:
            spec = spec_of(node.meta["val"])
            if tuple(value.meta["val"].shape) != tuple(node.meta["val"].shape):
                raise Unsupported(
                    "BZ2009", "an input that changes its shape", origin=value.meta.get("origin")
                )
            mutations.append(
                OutputRole(OutputKind.MUTATION, spec=spec, input=self.number[node], counted=counted)
            )
            results.append(value)
        base_position: dict[int, int] = {}
        for key, node in self.bases.items():
            base_position[key] = len(results)
            results.append(self._laid_out(functional.latest[node], self.layouts[key], mode))
        roles = []
        seen: dict[int, int] = {}
        for i, (node, value) in enumerate(self.outputs):
            first = seen.setdefault(id(value), i) if isinstance(value, torch.Tensor) else i
            if first < i:
                roles.append(OutputRole(OutputKind.SAME, output=first))
            else:
                roles.append(self._role(node, value, functional, results, base_position, mode))
        return tuple(roles), tuple(mutations), results

    def _role(
        self,
        node: Any,
        value: Any,
        functional: Functional,
        results: list[Node],
        bases: dict[int, int],
        mode: FakeMode,
    ) -> OutputRole:
        if not isinstance(value, torch.Tensor):
            if isinstance(node, Node):
                results.append(functional.latest.get(node, node))
                return OutputRole(OutputKind.VALUE, value=None)
            # of a float that was decided about there is a number: the same at each call that the guards let in
            known = float(node) if isinstance(value, torch.SymFloat) else node
            return OutputRole(OutputKind.CONSTANT, value=known if isinstance(value, SYMBOLIC) else value)
        key, spec = torch_compat.storage_key(value), spec_of(value)
        source = self.sources.get(id(value))
        if source is not None:
            same = next((n for n in self.placeholders if n.meta["val"] is value), None)
            return OutputRole(
                OutputKind.ALIAS,
                spec=None if same is not None else spec,
                input=self.number[same or source],
                absolute=counts_from_memory(node),
            )
        if key in bases:
            return OutputRole(OutputKind.ALIAS_OF_OUTPUT, spec=spec, output=bases[key])
        results.append(self._laid_out(functional.latest[node], spec, mode))
        return OutputRole(OutputKind.VALUE, spec=spec)

    def _laid_out(self, node: Node, spec: TensorSpec, mode: FakeMode) -> Node:
        """The node's value with the strides that eager gives it, where functionalization changed them."""
        val = node.meta["val"]
        wanted = spec.strides
        if mode.env is not None or all(
            n == 1 or have == want for n, have, want in zip(val.shape, val.stride(), wanted, strict=True)
        ):
            return node
        with self.graph.inserting_before(self.graph.output_node()):
            empty = self.graph.call_function(
                aten.empty_strided.default,
                (list(spec.sizes), list(wanted)),
                {"dtype": spec.dtype, "device": spec.device},
            )
            copy = self.graph.call_function(aten.copy.default, (evaluate(empty, mode), node))
        return evaluate(copy, mode)


def separate(
    module: torch.fx.GraphModule, mutations: tuple[OutputRole, ...], mode: FakeMode, *, results: int = -1
) -> None:
    """Copy what would reach the user as memory of an input or of another output.

    Passes may find that a value is an input's, or that two are the same. New contents of an
    input are copied anyway, but must not be memory that an earlier such copy has overwritten.
    ``results``: how many of the outputs reach the user (all).
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    written = {placeholders[role.input] for role in mutations}
    output: Any = module.graph.output_node()
    taken: set[Node] = set()
    outputs = list(output.args[0])
    for i, node in enumerate(outputs[: results if results >= 0 else None]):
        if not isinstance(node.meta["val"], torch.Tensor):
            continue
        root = root_of(node)
        if i < len(mutations):
            shared = root in written
        else:
            shared = root in taken or root.op in ("placeholder", "get_attr")
            taken.add(root)
        if shared:
            outputs[i] = copied(node, output, mode)
    output.args = (tuple(outputs),)


def copied(node: Node, before: Node, mode: FakeMode) -> Node:
    """A copy of a node's value, made before another node."""
    with before.graph.inserting_before(before):
        copy = before.graph.call_function(aten.clone.default, (node,))
    copy.meta["origin"] = node.meta.get("origin")
    return evaluate(copy, mode)


def counts_from_memory(node: Node) -> bool:
    """Whether a view is of a place that ``as_strided`` has named, which no longer depends on where its input starts."""
    while node.op == "call_function" and is_view(node):
        if node.target is aten.as_strided.default:
            offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
            if offset is not None:
                return True
        node = node.args[0]  # type: ignore[assignment]
    return False


def root_of(node: Node) -> Node:
    """The node whose memory a node sees."""
    while node.op == "call_function" and is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node
