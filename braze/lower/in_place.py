"""Writes to an input's own memory, of the elements alone that they touch.

A graph gives the new contents of an input that it writes as a value, made by scatters into the old contents. Lowered as values
these would be copies of the whole input, copied back at the end of the call. Here each scatter stores its part straight into the
input's memory. What of the old contents is still wanted, and not yet in memory of its own, is put there first; what
reads the new contents reads the input's memory after the write. Whether the order of the steps is then right is not trusted but
looked at (``loops/inputs_written.py``); an input for which it is not is written by copies, as before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from braze.aot.records import InputRole, Partition
from braze.graph.operators import SCATTERS
from braze.graph.specs import TensorSpec
from braze.loops.build import nodes_of
from braze.loops.dtypes import from_torch
from braze.loops.ir import Axis, BufferKind, BufferView, Op, Store
from braze.loops.ir import Node as LoopNode
from braze.lower.fallback import argument, target_name
from braze.lower.lazy import Lazy, strided_lazy
from braze.lower.placed import placed
from braze.lower.pointwise import convert
from braze.lower.realize import ProgramBuilder
from braze.lower.registry import aten
from braze.lower.scatters import IN_PLACE
from braze.lower.views import (
    clamp_start,
    counted_from_start,
    expand_value,
    is_inside,
    select_value,
    slice_value,
)
from braze.support.record import record
from braze.symbolic.expr import axis_symbol, linear

Node = torch.fx.Node

#: scatter into a part -> the view that sees that part
PARTS = {SCATTERS[view]: view for view in (aten.slice.Tensor, aten.select.int)}


class NotInPlace(Exception):
    """An input cannot be written in place after all."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self.base = base


@record
class Written:
    """An input to be written in place.

    ``mutation``: its number among the mutations; ``base``: its placeholder; ``chain``: the scatters that make its
    last contents, in order.
    """

    mutation: int
    input: int
    base: Node
    chain: tuple[Node, ...]


def inputs_to_write(partition: Partition, recorded: bool) -> tuple[Written, ...]:
    """The inputs whose new contents are scattered into the old ones and have no history; ``recorded``: a GPU's calls are, with inputs in places of their own."""
    items: Any = partition.forward.graph.output_node().args[0]
    found = []
    for k, index, base in _writable(partition, recorded):
        chain = _chain(items[k], base)
        plain = from_torch(base.meta["val"].dtype).is_computable
        alone = sum(item in (base, *chain) for item in items) == 1
        if chain and plain and alone:
            found.append(Written(k, index, base, chain))
    return tuple(found)


def inputs_to_renew(partition: Partition, written: Iterable[Written]) -> dict[int, Node]:
    """Of the other mutations, those whose new contents are nobody else's result, and may be stored over the old ones; with the inputs' placeholders."""
    items: Any = partition.forward.graph.output_node().args[0]
    others = {each.mutation for each in written}
    return {
        k: base
        for k, _, base in _writable(partition, recorded=False)
        if k not in others and isinstance(items[k], Node) and items.count(items[k]) == 1 and base not in items
    }


def _writable(partition: Partition, recorded: bool) -> Iterator[tuple[int, int, Node]]:
    """(mutation, input, its placeholder) of the inputs whose memory a graph may write itself.

    Where a backward follows, it may want old contents; where inputs share memory, others see the writes; what a recording reads on a GPU may be a copy.
    """
    if partition.backward is not None or partition.shared or partition.beyond or partition.anchored:
        return
    placeholders = partition.forward.graph.find_nodes(op="placeholder")
    for k, role in enumerate(partition.mutations):
        base = placeholders[role.input]
        owned = partition.input_roles[role.input] is InputRole.SAVED
        plain = role.counted and not role.differentiable and not owned
        if (
            plain
            and isinstance(partition.inputs[role.input], TensorSpec)
            and (not recorded or str(base.meta["val"].device) == "cpu")
        ):
            yield k, role.input, base


def _chain(last: Any, base: Node) -> tuple[Node, ...]:
    """The scatters from ``base`` to ``last``; none where there is something else between."""
    chain: list[Node] = []
    while last is not base:
        if not isinstance(last, Node) or not (last.target in PARTS or last.target in IN_PLACE):
            return ()
        chain.append(last)
        last = last.args[0]
    return tuple(reversed(chain))


def absorbed(written: Iterable[Written]) -> set[Node]:
    """Scatters into a part of an input that are nothing but a step of a scatter into the whole."""
    found: set[Node] = set()
    for each in written:
        for link in each.chain:
            inner = _inner(link)
            while inner is not None:
                found.add(inner)
                inner = _inner(inner)
    return found


def _inner(scatter: Node) -> Node | None:
    """The scatter that makes what ``scatter`` puts into a part, if it starts from what that part holds."""
    if scatter.target not in PARTS:
        return None
    value = scatter.args[1]
    if not isinstance(value, Node) or not (value.target in PARTS or value.target in IN_PLACE):
        return None
    part = value.args[0]
    same = (
        isinstance(part, Node)
        and part.target is PARTS[scatter.target]
        and part.args[0] is scatter.args[0]
        and _place(part, 1) == _place(scatter, 2)
    )
    return value if same and len(value.users) == 1 else None


def _place(node: Node, first: int) -> tuple[Any, ...]:
    """Which part a view sees or a scatter replaces; ``first``: where its arguments say so."""
    names, defaults = (("dim", "start", "end", "step"), (0, None, None, 1))
    if node.target in (aten.select.int, aten.select_scatter.default):
        names, defaults = (("dim", "index"), (None, None))  # type: ignore[assignment]
    given = dict(zip(names, node.args[first:], strict=False))
    return tuple(given.get(n, node.kwargs.get(n, d)) for n, d in zip(names, defaults, strict=True))


class InPlace:
    """The writes of one graph, as its nodes are lowered."""

    def __init__(self, g: ProgramBuilder, written: Iterable[Written], env: Mapping[Node, Any]) -> None:
        self.g = g
        self.env = env
        self.links = {link: each for each in written for link in each.chain}
        self.results = {each.mutation for each in self.links.values()}
        self.skipped = absorbed(self.links.values())
        #: how many of the graph's values have been looked at, and those of them that somebody still wanted
        self.looked = 0
        self.wanted: list[tuple[Node, Any]] = []
        #: (name, the input whose memory it names too)
        self.again: list[tuple[str, str]] = []

    def write(self, node: Node, resolve: Any) -> Lazy:
        """Store what a scatter puts into the input; its contents from then on."""
        g = self.g
        root = self.env[self.links[node].base].view.buffer
        names = {root, *(name for name, of in self.again if of == root)}
        self._put_aside(names)
        b = g.buffers[root]
        name = f"{root}_w{len(names)}"
        while name in g.buffers:
            name += "_"
        g.new_buffer(b.dtype, b.sizes, b.strides, b.device, BufferKind.INPUT, name)
        whole = part = g.lazy(name)
        scatter = node
        while True:
            if scatter.target in PARTS:
                part = self._part(scatter, part, root)
            inner = _inner(scatter)
            if inner is None:
                break
            scatter = inner
        if scatter.target in PARTS:
            self._store(self.env[scatter.args[1]], part, names)  # type: ignore[index]
        elif not self._store_placed(scatter, part, names, resolve):
            self._call(scatter, part, names, resolve)
        self.again.append((name, root))
        return whole

    def _part(self, scatter: Node, whole: Lazy, root: str) -> Lazy:
        """The part of an input that a scatter replaces, as a window on its memory."""
        g = self.g
        value: Any = scatter.args[1]
        place = [self.env[p] if isinstance(p, Node) else p for p in _place(scatter, 2)]
        dim = place[0] % whole.rank
        if scatter.target is aten.select_scatter.default:
            i = counted_from_start(g.symbols.expr(place[1]), whole.sizes[dim])
            if i is None or not is_inside(i, whole.sizes[dim]):
                raise NotInPlace(root)
            return select_value(g, whole, dim, i)
        taken = g.symbols.expr(value.meta["val"].shape[dim])
        first = clamp_start(g, place[1], place[2], whole.sizes[dim], taken, place[3])
        if first is None:
            raise NotInPlace(root)
        return slice_value(g, whole, dim, first, taken, place[3])

    def _store(self, value: Lazy, part: Lazy, names: set[str]) -> None:
        """A loop that stores a value into a window."""
        g = self.g
        view = part.view
        if view is None or not value.dtype.is_computable or value.device != part.device:
            raise NotInPlace(next(iter(names)))
        value = self._ready(expand_value(g, convert(g, value, part.dtype), part.sizes), names)
        axes, index = g.axes(view.sizes)
        store = Store(view.buffer, linear(index, view.strides, view.offset), value.load(index))
        self._loop(axes, store, value, part)

    def _ready(self, value: Lazy, names: set[str]) -> Lazy:
        """A value that neither reads what is written nor may fail while it is."""
        if self._reads(value, names) or _may_fail(value):
            return self.g.lazy(self.g.copy(value).buffer)
        return value

    def _loop(self, axes: tuple[Axis, ...], store: Store, value: Lazy, part: Lazy) -> None:
        self.g.nest(axes, (store,), part.device, (*value.pending_ops, "write"))

    def _store_placed(self, scatter: Node, part: Lazy, names: set[str], resolve: Any) -> bool:
        """A loop that stores values at computed positions of a window; whether there is one."""
        g, view = self.g, part.view
        if view is None or scatter.kwargs:
            return False
        found = placed(g, scatter.target, part, [resolve(a) for a in scatter.args[1:]])
        if found is None:
            return False
        value = expand_value(g, convert(g, found.value, part.dtype), found.sizes)
        value = self._ready(value, names)
        axes, index = g.axes(found.sizes)
        self._loop(axes, found.store(view, value, index), value, part)
        return True

    def _call(self, scatter: Node, part: Lazy, names: set[str], resolve: Any) -> None:
        """ATen's in-place operator on a window."""
        g = self.g
        if part.view is None:
            raise NotInPlace(next(iter(names)))

        def apart(a: Any) -> Any:
            if isinstance(a, BufferView) and a.buffer in names:
                return g.copy(strided_lazy(g, a, part.device))
            return tuple(map(apart, a)) if isinstance(a, tuple) else a

        rest = tuple(apart(argument(g, resolve(a))) for a in scatter.args[1:])
        named = tuple((name, apart(argument(g, resolve(a)))) for name, a in scatter.kwargs.items())
        target, given, mutates = IN_PLACE[scatter.target], (part.view, *rest), (part.view.buffer,)
        g.call(target_name(target), given, kwargs=named, mutates=mutates, device=part.device)

    def _put_aside(self, names: set[str]) -> None:
        """Store what is made of the old contents, and still wanted, before these are gone."""
        # once all who read a value are lowered, nobody will want it again: each value is dropped once, not asked at each write
        new = itertools.islice(self.env.items(), self.looked, None)
        self.wanted = [
            (node, value)
            for node, value in (*self.wanted, *new)
            if not all(user in self.env or user in self.skipped for user in node.users)
        ]
        self.looked = len(self.env)
        for _, value in self.wanted:
            for x in value if isinstance(value, tuple) else (value,):
                if isinstance(x, Lazy) and x.view is None and x.dtype.is_computable and self._reads(x, names):
                    self.g.realize(x)

    def _reads(self, x: Lazy, names: set[str]) -> bool:
        if x.view is not None:
            return x.view.buffer in names
        return any(n.op is Op.LOAD and n.attr[0] in names for n in _nodes_at_a_point(x))


def _may_fail(x: Lazy) -> bool:
    """Whether a value looks something up at a place that may not exist: then nothing is to be written."""
    if x.view is not None:
        return False
    return any(n.op is Op.CHECK_INDEX for n in _nodes_at_a_point(x))


def _nodes_at_a_point(x: Lazy) -> list[LoopNode]:
    """What computes one element of a value."""
    return nodes_of(x.load([axis_symbol(f"c{d}", size) for d, size in enumerate(x.sizes)]))
