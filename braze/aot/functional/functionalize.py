"""Rewrite an ATen graph so that no operator writes to a tensor.

Works on storages: the nodes over one storage are views of a base (an input, or the node that made the memory). A write to a
view becomes a new value of the view, which is scattered back into a new value of the base; whoever reads a node of that storage later
reads it from the newest base. Graphs without writes are left as they are. Inputs that overlap are made views of a further input
(shared.py). Refused with ``Unsupported``: writes to inputs that overlap where that is not possible, to constants, to memory
with overlapping elements, and writes whose way back to the base is unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from braze.aot.facts.inserted import evaluate
from braze.aot.facts.overlap import is_inside, is_same, may_overlap, reaches_beyond
from braze.aot.facts.shared import Shared, unite_overlapping
from braze.aot.facts.symbols import SymbolNodes
from braze.aot.facts.views import apply_view, has_overlap, is_dense, root_of, scatter_back
from braze.aot.facts.ways import counts_from_start
from braze.aot.facts.writes import (
    called_as_it_is,
    functional_values,
    is_custom,
    is_write,
    read_beside,
    reads_in_place,
    written_arguments,
)
from braze.aot.functional.draw_order import draws_in_order, lay_out, lying
from braze.graph.fakes.fakes import FakeMode, text_of
from braze.graph.nodes.facts import facts, set_facts
from braze.graph.nodes.passes import drop_unread_of_program
from braze.graph.operators.operators import SCATTERS
from braze.graph.private import torch_compat
from braze.support.errors import Unsupported
from braze.support.record import record

aten = torch.ops.aten

#: ``.data``: memory as it is, without autograd's count of its writes
ALIAS = aten.alias.default

_SCATTERING = frozenset(SCATTERS.values())

Node = torch.fx.Node

#: the generation of a storage of which a node holds what its tensor would, if none
NEVER = -1


class _Alias:
    """A node of the old graph that sees a storage: its way from the base, and its present value."""

    __slots__ = ("current", "generation", "node", "parent", "storage")

    def __init__(self, node: Node, parent: _Alias | None, storage: _Storage | None = None) -> None:
        self.node = node
        self.storage = storage if storage is not None else _Storage(self)
        self.parent = parent
        #: the node that now holds what ``node`` would, as of ``generation``
        self.current = node
        self.generation = 0


class _Storage:
    """One piece of memory: how often it has been written, and who sees it.

    Inputs that lie in one storage but apart from each other are pieces of their own.
    """

    __slots__ = ("base", "counted", "generation", "inputs")

    def __init__(self, base: _Alias) -> None:
        self.base = base
        #: whether autograd counts one of the writes
        self.counted = False
        self.generation = 0
        self.inputs: list[Node] = []


@record
class Functional:
    """The result: where inputs ended with other contents, and what became of each node."""

    #: (placeholder, node with its final contents, whether autograd counts the writes)
    mutated: list[tuple[Node, Node, bool]]
    #: old output node -> node that holds its value at the end
    latest: dict[Node, Node]
    #: further inputs, behind the others, which are the memory in which some overlap
    shared: Sequence[Shared] = ()
    #: whether an as_strided view reaches memory outside of the input that it is a view of
    beyond: bool = False
    #: inputs near which an as_strided view counts from where the memory starts: they must begin there where they did
    anchored: tuple[Node, ...] = ()


def functionalize(
    module: torch.fx.GraphModule, mode: FakeMode, wanted: Iterable[Node], *, unite: bool = False
) -> Functional:
    """Remove all writes from the graph in place; ``wanted`` are the nodes whose values are output.

    ``unite``: where inputs overlap and one is written, the graph gets a further input (``shared``).
    """
    wanted = list(wanted)
    graph = module.graph
    _refuse_windows_on_gaps(graph)
    _refuse_windows_beyond(graph)
    writes = [node for node in graph.nodes if is_write(node)]
    if not writes:
        made = Functional([], {node: _itself(node) for node in wanted})
    else:
        shared = unite_overlapping(graph, writes, mode) if unite else []
        made = _Functionalizer(graph, mode, shared).run(wanted)
    for node in list(graph.nodes):
        if node.target is ALIAS:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return made


def _refuse_windows_on_gaps(graph: torch.fx.Graph) -> None:
    """Eager's scatters copy memory whole, with what lies before and between the elements of a part: a window sees that, too."""
    for node in graph.nodes:
        if is_window(node):
            root = root_of(node.args[0])
            if root.target in _SCATTERING and not _is_all_that_is_seen(root, node):
                raise Unsupported(
                    "BZ2014",
                    "an as_strided view of a part of memory, with what is beside it, that a scatter has copied",
                    why="braze copies the elements alone",
                    origin=facts(node).origin,
                )


def _refuse_windows_beyond(graph: torch.fx.Graph) -> None:
    """What an operation makes has no memory but its elements': of varying sizes fakes do not tell that a window reaches beyond, which eager refuses."""
    makers: dict[int, Node] = {}
    for node in graph.nodes:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            continue
        maker = makers.setdefault(torch_compat.storage_key(val), node)
        if is_window(node) and not _is_given(maker) and reaches_beyond(val, maker.meta["val"]):
            raise Unsupported(
                "BZ2014",
                "an as_strided view of memory beside what an operation has made",
                why="braze makes memory for the elements alone",
                origin=facts(node).origin,
            )


def _is_all_that_is_seen(copy: Node, window: Node) -> bool:
    """Whether the elements of a copy are all the memory that a window of it sees. Where those of an input begin is not known here."""
    whole, seen = copy.meta["val"], window.meta["val"]
    if counts_from_start(window.target, window.args[1:], window.kwargs) and _is_given(copy.args[0]):  # type: ignore[arg-type]
        return False
    start = whole.storage_offset()
    return is_dense(whole) and (is_inside(seen, whole) or (type(start) is int and start == 0))


def _itself(node: Node) -> Node:
    """The node that a chain of ``.data`` begins with."""
    while node.target is ALIAS:
        node = node.args[0]  # type: ignore[assignment]
    return node


class _Functionalizer:
    def __init__(self, graph: torch.fx.Graph, mode: FakeMode, shared: Sequence[Shared] = ()) -> None:
        self.graph = graph
        self.mode = mode
        self.symbols = SymbolNodes(graph)
        self.shared = shared
        #: inputs that are views of a further one by now, and those views
        self.views = {node: view for each in shared for node, view in each.views.items()}
        #: nodes through which something was written that autograd counts
        self.counted: set[Node] = set()
        self.beyond = False
        self.anchored: list[Node] = []
        #: nodes that count in memory -> (what they count in the memory of, the strides and offset that it must have)
        self.windows: dict[Node, tuple[Node, Any]] = {}
        #: nodes that draw numbers -> their operands, and the strides that these must have
        self.drawn: dict[Node, dict[Node, tuple[Any, ...]]] = {}
        #: storage of the trace -> its pieces
        self.storages: dict[int, list[_Storage]] = {}
        self.aliases: dict[Node, _Alias] = {}
        self.here: Node | None = None
        #: writing node -> node with what it returned
        self.results: dict[Node, Node] = {}

    def run(self, wanted: list[Node]) -> Functional:
        """Rewrite node by node; then bring the metadata of all nodes up to date."""
        placeholders = self.graph.find_nodes(op="placeholder")
        if self.mode.env is not None and placeholders:
            with self.graph.inserting_after(placeholders[-1]):
                self.symbols.find(placeholders)
        output = self.graph.output_node()
        for node in list(self.graph.nodes):
            if node is output:
                break
            self.here = node
            if is_write(node):
                self._rewrite(node)
            elif node not in self.views:
                self._enter(node)
                if is_window(node) and self._is_moved(node):
                    self.aliases[node].generation = NEVER
                    with self.graph.inserting_before(node):
                        self._value(node)
                    continue
                self._refresh_arguments(node)
                if is_window(node):
                    self._require_own_memory(self.aliases[node])
                    self._note_window(self.aliases[node], node, node.args[0])  # type: ignore[arg-type]
        self.here = output
        with self.graph.inserting_before(output):
            for node, view in self.views.items():
                self.aliases[node] = self.aliases[view]
            latest = {node: _itself(self._value(self.results.get(node, node))) for node in wanted}
            mutated = [
                (node, _itself(self._value(node)), storage.counted)
                for pieces in self.storages.values()
                for storage in pieces
                if storage.generation
                for node in storage.inputs
            ]
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        mutated.sort(key=lambda pair: order[pair[0]])
        output.args = ((*(value for _, value, _ in mutated), *latest.values()),)
        drop_unread_of_program(self.graph)
        for node in self.graph.nodes:
            if node.op == "call_function":
                lay_out(node, self.drawn.get(node, {}), self.mode)
                evaluate(node, self.mode)
        self._require_same_layouts()
        shared = [each.counting(self.counted) for each in self.shared]
        return Functional(mutated, latest, shared, self.beyond, tuple(dict.fromkeys(self.anchored)))

    # -- who sees what -------------------------------------------------------------------------

    def _enter(self, node: Node) -> None:
        """Note which storage a new node sees."""
        val = node.meta.get("val")
        if node.op == "call_function":
            self.symbols.note(node, val)
        if not isinstance(val, torch.Tensor):
            return
        pieces = self.storages.setdefault(torch_compat.storage_key(val), [])
        if node.op in ("placeholder", "get_attr"):
            self._enter_input(node, pieces)
            return
        parent = self._parent(node, torch_compat.storage_key(val))
        storage = parent.storage if parent is not None else pieces[0] if pieces else None
        alias = self.aliases[node] = _Alias(node, parent, storage)
        if storage is None:
            pieces.append(alias.storage)
            return
        alias.generation = storage.generation
        if is_window(node) and storage.inputs:
            if counts_from_start(node.target, node.args[1:], node.kwargs):
                self.anchored += storage.inputs
            self.beyond |= not is_inside(val, storage.inputs[0].meta["val"])
            if any(may_overlap(val, n.meta["val"]) for p in pieces if p is not storage for n in p.inputs):
                self._unite(pieces)

    def _enter_input(self, node: Node, pieces: list[_Storage]) -> None:
        """An input is a piece of memory of its own, or one more name for that of inputs that it overlaps."""
        val = node.meta["val"]
        alias = self.aliases[node] = _Alias(node, None)
        pieces.append(alias.storage)
        alias.storage.inputs.append(node)
        touched = [p for p in pieces if any(may_overlap(val, n.meta["val"]) for n in p.inputs)]
        if len(touched) > 1:
            self._unite(touched)
            for each in touched[1:]:
                pieces.remove(each)

    def _unite(self, pieces: list[_Storage]) -> None:
        """One piece from here on, under several inputs."""
        if any(piece.generation for piece in pieces):
            raise self._refuse(
                "BZ2005", "a view of several inputs that share memory, one of which was written"
            )
        into = pieces[0]
        for piece in pieces[1:]:
            into.inputs += piece.inputs
        for alias in self.aliases.values():
            if alias.storage in pieces:
                alias.storage = into

    def _parent(self, node: Node, key: int) -> _Alias | None:
        """The alias that a view is a view of."""
        if node.target is operator.getitem:
            node = node.args[0]  # type: ignore[assignment]
        for source in node.all_input_nodes:
            val = source.meta.get("val")
            if isinstance(val, torch.Tensor) and torch_compat.storage_key(val) == key:
                return self.aliases.get(source)
        return None

    def _storage(self, node: Node) -> _Storage | None:
        alias = self.aliases.get(node)
        return alias.storage if alias is not None else None

    # -- reading -------------------------------------------------------------------------------

    def _refresh_arguments(self, node: Node) -> None:
        """Let a node read what its arguments hold by now, or the memory that it asks of."""
        stale, found = {}, self._as_made if _asks_of_memory(node) else self._value
        lay = lying(node)
        with self.graph.inserting_before(node):
            for source in node.all_input_nodes:
                value = found(source)
                if value is not source:
                    stale[source] = value
        if stale:
            node.args = torch.fx.node.map_arg(node.args, lambda n: stale.get(n, n))
            node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: stale.get(n, n))
        if lay:
            self.drawn[node] = {stale.get(n, n): strides for n, strides in lay.items()}

    def _value(self, node: Node) -> Node:
        """The node that holds what ``node``'s tensor holds by now; inserted where the cursor stands."""
        alias = self.aliases.get(node)
        return self._current(alias, alias.storage) if alias is not None else node

    def _current(self, alias: _Alias, storage: _Storage) -> Node:
        if alias.generation == storage.generation:
            return alias.current
        if alias.parent is None:
            raise self._refuse("BZ2005", "a write to one of several inputs that share memory")
        parent = self._current(alias.parent, storage)
        target, args, kwargs = apply_view(alias.node, parent)
        if target is aten.as_strided.default:
            parent = self._at_start(alias, parent, storage)
            args, kwargs = self._within(alias, parent, args[1:], kwargs)
            args = (parent, *args)
        self._require_own_memory(alias)
        alias.current = self._insert(target, args, kwargs)
        self._note_window(alias, alias.current, parent)
        alias.generation = storage.generation
        return alias.current

    def _as_made(self, node: Node) -> Node:
        """``node``'s tensor over the memory that it was made in, whatever was written there."""
        alias = self.aliases.get(node)
        if alias is None or alias.parent is None:
            return node
        return self._insert(*apply_view(alias.node, self._as_made(alias.parent.node)))

    # -- writing -------------------------------------------------------------------------------

    def _rewrite(self, node: Node) -> None:
        """Replace a writing node by its functional form and new values of what it wrote."""
        targets = written_arguments(node)
        self._require_apart(node, targets)
        self._refresh_arguments(node)
        with self.graph.inserting_before(node):
            values, result = functional_values(node, self._insert)
            for target, value in zip(targets, values, strict=True):
                self._write(target, value, not facts(node).unversioned)
        if result is not None:
            result.meta["val"] = node.meta["val"]  # whose storage the views of it that follow have
            self._enter(result)
            self.results[node] = result
        if node.users:
            node.replace_all_uses_with(targets[0] if result is None else result)
        self.graph.erase_node(node)

    def _require_apart(self, node: Node, targets: list[Node]) -> None:
        """What an operator writes and reads in an order of its own must not be the same memory.

        PyTorch's own operators refuse most of that; what is read element for element may be what is written.
        """
        for target in targets:
            storage, val = self._storage(target), target.meta["val"]
            for other in read_beside(node, target):
                if self._storage(other) is not storage:
                    continue
                seen, custom = other.meta["val"], is_custom(node.target)
                if not custom and reads_in_place(node, other) and is_same(val, seen):
                    continue
                if may_overlap(val, seen, decide=not custom):
                    raise self._refuse("BZ2027", f"{node.target} on arguments that share memory")

    def _write(self, target: Node, value: Node, counted: bool) -> None:
        """Make ``value`` what ``target`` and all that overlaps it hold from now on; ``counted``: for autograd, too, but through ``.data``."""
        alias = self._owner(target)
        storage = alias.storage
        if any(n.op == "get_attr" for n in storage.inputs):
            raise self._refuse("BZ2013", "a write to a tensor that the graph holds as a constant")
        if len(storage.inputs) > 1:
            raise self._refuse("BZ2005", "a write to one of several inputs that share memory")
        chain = [alias]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        if any(has_overlap(link.node.meta["val"]) for link in chain):
            raise self._refuse(
                "BZ2012", "a write to a tensor whose elements share memory, or to a view of one"
            )
        if counted and not any(facts(link.node).unversioned for link in chain):
            storage.counted = True
            self.counted.update(link.node for link in chain)
        olds = [self._current(link, storage) for link in chain[1:]]
        storage.generation += 1
        alias.current, alias.generation = value, storage.generation
        for link, parent, old in zip(chain, chain[1:], olds, strict=False):
            old = self._with_room(old)
            call = scatter_back(link.node, old, value)
            if call is None:
                raise self._refuse("BZ2014", f"a write through {link.node.target}")
            if call[0] is aten.as_strided_scatter.default:
                # a value of its own, which begins where its memory does
                old = self._insert(aten.clone.default, (old,), {})
                args, kwargs = self._within(link, old, call[1][2:], call[2])
                call = call[0], (old, value, *args), kwargs
            self._require_own_memory(link)
            value = self._insert(*call)
            self._note_window(link, value, old)
            parent.current, parent.generation = value, storage.generation
        if chain[-1] is not storage.base:
            raise self._refuse("BZ2005", "a write to memory that another input sees")

    def _with_room(self, value: Node) -> Node:
        """The value with a place for each element: of one that is repeated, some PyTorch scatter into the place that all share."""
        if not has_overlap(value.meta["val"]):
            return value
        return self._insert(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})

    def _at_start(self, alias: _Alias, whole: Node, storage: _Storage) -> Node:
        """A value that begins where its memory does: what ATen scatters into begins where that which it is a copy of did.

        Nor is it an input's: what is a copy of one in the program is a value of its own, of which a window may be returned.
        """
        assert alias.parent is not None
        offset = storage.base.node.meta["val"].storage_offset()
        if whole is alias.parent.node:
            return whole
        if type(offset) is int and offset == 0 and not _is_given(whole):
            return whole
        return self._insert(aten.clone.default, (whole,), {})

    def _within(self, alias: _Alias, whole: Node, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The arguments of an ``as_strided`` view, or its scatter, over a value that may begin elsewhere in its memory."""
        if not counts_from_start(aten.as_strided.default, args, kwargs):
            return args, dict(kwargs)
        size, stride, *rest = args
        start = rest[0] if rest else kwargs["storage_offset"]
        assert alias.parent is not None
        before, now = (n.meta["val"].storage_offset() for n in (alias.parent.node, whole))
        if all(type(n) is int for n in (start, before, now)):
            start = start - before + now
            if start < 0:
                raise self._refuse(
                    "BZ2014", "a write near an as_strided view of memory beside what it is taken of"
                )
        elif not (type(before) is type(now) is int and before == now):
            raise self._refuse("BZ2014", "a write near an as_strided view of varying place")
        return (size, stride, start), {}

    def _is_moved(self, node: Node) -> bool:
        """Whether the present value of what an ``as_strided`` view is of begins elsewhere in its memory, or is an input: it is made anew of that."""
        alias = self.aliases[node]
        if alias.parent is None:
            return False
        before = alias.parent.node
        with self.graph.inserting_before(node):
            now = self._current(alias.parent, alias.storage)
        if now is not before and _is_given(now):
            return True
        if not counts_from_start(node.target, node.args[1:], node.kwargs):
            return False
        return text_of(now.meta["val"].storage_offset()) != text_of(before.meta["val"].storage_offset())

    def _note_window(self, alias: _Alias, node: Node, parent: Node) -> None:
        """``node`` looks through ``alias`` at ``parent``, or writes there.

        Whether what it counts in is laid out as it was is looked at when all strides are known.
        """
        if is_window(alias.node) and alias.parent is not None:
            whole = alias.parent.node.meta["val"]
            self.windows[node] = parent, (whole.stride(), parent.meta["val"].storage_offset())

    def _require_own_memory(self, alias: _Alias) -> None:
        """``as_strided`` counts in memory, of which a value has only what it is of."""
        if not is_window(alias.node) or alias.parent is None or not alias.storage.generation:
            return
        seen, whole = alias.node.meta["val"], alias.parent.node.meta["val"]
        if not is_dense(whole) or reaches_beyond(seen, whole):
            raise self._refuse(
                "BZ2014", "a write near an as_strided view of memory beside what it is taken of"
            )

    def _require_same_layouts(self) -> None:
        """What windows count in the memory of is laid out as the program's tensor was."""
        for node in self.graph.nodes:
            if node not in self.windows:
                continue
            parent, layout = self.windows[node]
            now = parent.meta["val"]
            here = now.storage_offset() if counts_from_start(node.target, *_rest(node)) else layout[1]
            if (now.stride(), here) != layout:
                self.here = node
                raise self._refuse("BZ2014", "a write near an as_strided view of other strides")

    def _owner(self, node: Node) -> _Alias:
        """The alias whose present value ``node`` is."""
        alias = self.aliases.get(node)
        if alias is not None:
            return alias
        raise self._refuse("BZ2015", f"a write to {node.target}, of unknown memory")

    def _insert(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """A new node with its fake."""
        if target is ALIAS:
            return args[0]  # type: ignore[no-any-return]
        args = torch.fx.node.map_aggregate(args, self._symbolic)  # type: ignore[assignment]
        node = self.graph.call_function(target, args, kwargs)
        if self.here is not None:
            here = facts(self.here)
            set_facts(node, origin=here.origin, checkpoint=here.checkpoint)
            set_facts(node, policy=here.policy, tangents=here.tangents, gradient=here.gradient)
            if self.here in self.drawn and draws_in_order(target):
                self.drawn[node] = self.drawn[self.here]
        return evaluate(node, self.mode)

    def _symbolic(self, value: Any) -> Any:
        return self.symbols.node(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value

    def _refuse(self, code: str, what: str) -> Unsupported:
        origin = facts(self.here).origin if self.here is not None else None
        return Unsupported(code, what, why="braze cannot say functionally what it does", origin=origin)


def is_window(node: Node) -> bool:
    """Whether a node looks at memory by sizes and strides of its own, whatever the tensor is that it is given."""
    return node.target is aten.as_strided.default


def _asks_of_memory(node: Node) -> bool:
    """Whether a node is there to fail where memory is too small for it: whatever that holds by now, values have memory of their own."""
    return facts(node).for_error and node.target is called_as_it_is(aten.as_strided_copy.default)


def _is_given(node: Node) -> bool:
    """Whether a node sees memory that the graph was given."""
    return root_of(node).op in ("placeholder", "get_attr")


def _rest(node: Node) -> tuple[Any, Any]:
    """The arguments behind the first; behind the first two, of a scatter."""
    return node.args[1 if is_window(node) else 2 :], node.kwargs
