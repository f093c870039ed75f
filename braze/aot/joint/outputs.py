"""What each user output is: a value, a view of an input or of another output, a constant; and what gradients enter by."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch

from braze.aot.cut.min_cut import ancestors
from braze.aot.facts.inserted import evaluate, inserted
from braze.aot.facts.records import ASTRAY, OutputKind, OutputRole, ViewStep
from braze.aot.facts.symbols import SymbolNodes
from braze.aot.facts.views import apply_view, has_overlap, hint, is_view, readers, root_of, steps_meet
from braze.aot.facts.ways import Ways
from braze.aot.facts.writes import is_write, written_arguments
from braze.aot.functional.functionalize import Functional
from braze.graph.fakes.fakes import FakeMode, spec_of, text_of
from braze.graph.nodes.facts import facts
from braze.graph.nodes.passes import drop_unread
from braze.graph.nodes.specs import TensorSpec
from braze.graph.private import torch_compat
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.support.errors import Unsupported

aten = torch.ops.aten
Node = torch.fx.Node

#: operators that give the same numbers in memory of their own
_COPIES = frozenset({aten.clone.default, aten._to_copy.default})


class Outputs:
    """What each user output is, by whom its memory is shared in the trace."""

    def __init__(self, graph: torch.fx.Graph, outputs: list[tuple[Any, Any]], ways: Ways) -> None:
        self.graph = graph
        self.outputs = outputs
        self.ways = ways
        #: nodes for sizes that vary, once one is wanted
        self.symbols: SymbolNodes | None = None
        self.placeholders: list[Node] = graph.find_nodes(op="placeholder")
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
        #: by id, those that say that they require a gradient, and lead nowhere; known once the graph is differentiated
        self.astray: set[int] = set()
        self.bases = {key: self._base(key) for key, group in self.groups.items() if len(group) > 1}
        self.bases |= self._guarded()
        #: what bases look like in eager, before functionalization gives them other storages
        self.wholes = {key: node.meta["val"] for key, node in self.bases.items()}
        #: the same, in the order of the graph's tuple; known from ``assign`` on
        self.whole_specs: list[TensorSpec] = []

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
        """The node that all outputs over a storage are views of; the one that made it, where there is no such."""
        roots = [self.ways.root(self.outputs[i][1]) for i in self.groups[key]]
        turned = next((root for root in roots if id(root) in self.ways.changed), None)
        if turned is not None and any(root is not turned for root in roots):
            # autograd makes its history again, as it does that of no view which is made of what was turned
            raise Unsupported("BZ2009", "a view that is older than the last change in place of what it is of")
        first = None
        for node in self.graph.nodes:
            val = node.meta.get("val")
            if node.op == "output" or not isinstance(val, torch.Tensor):
                continue
            if torch_compat.storage_key(val) == key:
                if all(root is val for root in roots):
                    return node
                first = first or node
        if first is not None:
            return first
        raise AssertionError("an output's storage has a node")

    def _guarded(self) -> dict[int, Node]:
        """Bases of single views to which autograd lets nobody write, where nothing else is made of them: their gradients would be sums of two."""
        found = {}
        for key, group in self.groups.items():
            node, value = self.outputs[group[0]]
            if len(group) > 1 or not self.ways.guard(value):
                continue
            base = self._base(key)
            if not self._is_read_beside(base, key, node):
                found[key] = base
        return found

    def _is_read_beside(self, base: Node, key: int, output: Node) -> bool:
        """Whether an output besides this one, or what is written to other memory, may be made of a base."""
        todo, seen = [base], {base}
        while todo:
            here = todo.pop()
            if is_write(here) and any(
                torch_compat.storage_key(n.meta["val"]) != key and n.meta["val"].requires_grad
                for n in written_arguments(here)
            ):
                return True
            new = [user for user in here.users if user not in seen]
            seen.update(new)
            todo += new
        return any(node in seen for node, _ in self.outputs if node is not output and isinstance(node, Node))

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
                raise Unsupported("BZ2009", "an input that changes its shape", origin=facts(value).origin)
            mutations.append(
                OutputRole(OutputKind.MUTATION, spec=spec, input=self.number[node], counted=counted)
            )
            results.append(value)
        base_position: dict[int, int] = {}
        for key, node in self.bases.items():
            base_position[key] = len(results)
            results.append(self._laid_out(functional.latest[node], self.wholes[key], mode))
            self.whole_specs.append(_spec_as(results[-1], self.wholes[key]))
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
            if same is not None:
                return OutputRole(OutputKind.ALIAS, input=self.number[same])
            way = self._way(value, source.meta["val"])
            return OutputRole(
                OutputKind.ALIAS,
                spec=spec,
                input=self.number[source],
                way=way,
                absolute=self.ways.is_absolute(value),
                early=self.ways.early(value) if way else self.ways.early_of_window(value),
            )
        if key in bases:
            whole = self.wholes[key]
            if value is whole:
                return OutputRole(OutputKind.ALIAS_OF_OUTPUT, output=bases[key])
            # what has a history got it from the graph, as a whole
            early = 0 if whole.requires_grad else self.ways.early_of_made(value)
            way = self._way(value, whole, watched=early > 0)
            return OutputRole(OutputKind.ALIAS_OF_OUTPUT, spec=spec, output=bases[key], way=way, early=early)
        results.append(self._laid_out(functional.latest[node], value, mode))
        return OutputRole(
            OutputKind.VALUE,
            spec=_spec_as(results[-1], value),
            locked=self.ways.is_locked(value),
            guard=ASTRAY if id(value) in self.astray else self.ways.guard(value),
        )

    def is_remade(self, value: Any) -> bool:
        """Whether an output is a view that is made again by the program's steps, of an input or of what the graph gives."""
        if not isinstance(value, torch.Tensor):
            return False
        source = self.sources.get(id(value))
        key = torch_compat.storage_key(value)
        whole = source.meta["val"] if source is not None else self.wholes.get(key)
        return whole is not None and value is not whole and bool(self._way(value, whole))

    def _way(self, value: Any, whole: Any, *, watched: bool = False) -> tuple[ViewStep, ...]:
        """The steps from what the caller has, or the graph gives, to a view of it; none where its place tells all."""
        steps = self.ways.steps(value, watched=watched)
        if steps is None or self.ways.root(value) is not whole:
            return ()
        return steps

    def _laid_out(self, node: Node, like: torch.Tensor, mode: FakeMode) -> Node:
        """The node's value with the strides that eager gives it, where functionalization changed them."""
        return node if same_strides(node.meta["val"], like) else self.copied_as(node, like, mode)

    def copied_as(self, node: Node, like: torch.Tensor, mode: FakeMode) -> Node:
        """A copy of the node's value with the strides of ``like``."""
        repeated = [
            d for d, (n, s) in enumerate(zip(like.shape, like.stride(), strict=True)) if _repeats(n, s)
        ]
        with self.graph.inserting_before(self.graph.output_node()):
            for dim in repeated:  # memory for one of what is repeated
                node = self._call(mode, aten.slice.Tensor, (node, dim, 0, 1))
            sizes, strides = ([self._number(n) for n in part] for part in (like.shape, like.stride()))
            once = [1 if d in repeated else n for d, n in enumerate(sizes)]
            options = {"dtype": like.dtype, "device": torch_compat.device_of_fake(like)}
            empty = self._call(mode, aten.empty_strided.default, (once, strides), options)
            made = self._call(mode, aten.copy.default, (empty, node))
            if repeated:
                made = self._call(mode, aten.expand.default, (made, sizes))
        numbers = all(isinstance(n, int) for n in (*once, *strides))
        if (numbers and has_overlap(empty.meta["val"])) or not same_strides(made.meta["val"], like):
            raise Unsupported(
                "BZ2012", "a result whose elements share memory, of other strides than what it is made of"
            )
        return made

    def _call(self, mode: FakeMode, target: Any, args: tuple[Any, ...], kwargs: Any = None) -> Node:
        """A new node with its fake."""
        return evaluate(self.graph.call_function(target, args, kwargs or {}), mode)

    def _number(self, size: Any) -> Any:
        """A size as a node may have it for an argument."""
        if not isinstance(size, SYMBOLIC):
            return size
        if self.symbols is None:
            self.symbols = SymbolNodes(self.graph)
            self.symbols.find(self.placeholders)
            for node in self.graph.nodes:
                if node.op == "call_function":
                    self.symbols.note(node, node.meta["val"])
        return self.symbols.node(size)


def _spec_as(node: Node, like: torch.Tensor) -> TensorSpec:
    """What a result looks like: ``like``, with sizes as the node has them, which may have been decided about since."""
    return dataclasses.replace(spec_of(like), sizes=tuple(map(text_of, node.meta["val"].shape)))


def _repeats(size: Any, stride: Any) -> bool:
    return text_of(stride) == 0 and text_of(size) != 1


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape are known to have the same strides for all sizes, where strides matter."""
    sizes = tuple(map(text_of, a.shape))
    return 0 in sizes or all(
        n == 1 or text_of(have) == text_of(want)
        for n, have, want in zip(sizes, a.stride(), b.stride(), strict=True)
    )


def separate(
    module: torch.fx.GraphModule,
    outputs: Outputs,
    mutations: tuple[OutputRole, ...],
    mode: FakeMode,
    *,
    results: int = -1,
) -> None:
    """Copy what would reach the user as memory of an input or of another output.

    Passes may find that a value is an input's, or that two are the same. New contents of an
    input are copied anyway, but must not be memory that an earlier such copy has overwritten.
    ``results``: how many of the outputs reach the user (all).
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    written = {placeholders[role.input] for role in mutations}
    output: Any = module.graph.output_node()
    taken: set[Node] = set()
    items = list(output.args[0])
    for i, node in enumerate(items[: results if results >= 0 else None]):
        if not isinstance(node.meta["val"], torch.Tensor):
            continue
        root = root_of(node)
        if i < len(mutations):
            shared = root in written
        else:
            shared = root in taken or root.op in ("placeholder", "get_attr")
            taken.add(root)
        if shared:
            again = i >= len(mutations) and _overlaps_otherwise(node.meta["val"])
            items[i] = (_copied_whole if again else copied)(node, output, mode)
            if i >= len(mutations) and not same_strides(items[i].meta["val"], node.meta["val"]):
                outputs.symbols = None  # passes have dropped nodes
                items[i] = outputs.copied_as(node, node.meta["val"], mode)
    output.args = (tuple(items),)
    drop_unread(module.graph)


def own_copies(results: Sequence[Node], first: int) -> tuple[int, ...]:
    """Those of the results, from the ``first`` on, that the program copies last and no formula of autograd's reads: nothing is kept in them, and the caller may write to them.

    Passes find that a copy is what it copies, which the backward may read.
    """
    forward = ancestors(results)

    def is_of_program(node: Node) -> bool:
        return node.op == "output" or (node in forward and not facts(node).tangents)

    roots = [(i, root_of(results[i])) for i in range(first, len(results))]
    return tuple(i for i, root in roots if root.target in _COPIES and all(map(is_of_program, readers(root))))


def keep_apart(graph: torch.fx.Graph, own: Sequence[int], kept: Collection[Node], mode: FakeMode) -> None:
    """Copy those results that are to be ``own`` memory, and share it with what is kept for the backward."""
    output: Any = graph.output_node()
    items, memory = list(output.args[0]), set(map(root_of, kept))
    for i in own:
        if root_of(items[i]) in memory:
            items[i] = _copied_whole(items[i], output, mode)
    output.args = (tuple(items),)


def _overlaps_otherwise(value: torch.Tensor) -> bool:
    """Whether elements share memory in another way than by a stride of 0: a copy of them cannot lie so."""
    sizes = [1 if _repeats(n, s) else hint(n) for n, s in zip(value.shape, value.stride(), strict=True)]
    return steps_meet(sizes, [hint(s) for s in value.stride()])


def _copied_whole(node: Node, before: Node, mode: FakeMode) -> Node:
    """The same view of a copy of the memory that a node sees."""
    steps: list[Node] = []
    while node.op == "call_function" and is_view(node):
        steps.append(node)
        node = node.args[0]  # type: ignore[assignment]
    made = copied(node, before, mode)
    for step in reversed(steps):
        target, args, kwargs = apply_view(step, made)
        made = inserted(before, target, *args, like=step, mode=mode, apart=True, kwargs=kwargs)
    return made


def copied(node: Node, before: Node, mode: FakeMode) -> Node:
    """A copy of a node's value, made before another node."""
    return inserted(before, aten.clone.default, node, like=node, mode=mode, apart=True)
