"""Writes to an input's own memory, of the elements alone that they touch.

A graph gives the new contents of an input that it writes as a value, made by scatters into the old contents. Lowered as values
these would be copies of the whole input, copied back at the end of the call. Here each scatter stores its part straight into the
input's memory. What of the old contents is still wanted, and not yet in memory of its own, is put there first; what
reads the new contents reads the input's memory after the write. Whether the order of the steps is then right is not trusted but
looked at (``loops/inputs_written.py``); an input for which it is not is written by copies, as before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import torch

from braze.aot.facts.records import InputRole, Partition, SavedFrom
from braze.graph.nodes.specs import TensorSpec
from braze.graph.operators.operators import SCATTERS
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, BufferKind, BufferView, Op, Store, StoreMode
from braze.loops.ir import Node as LoopNode
from braze.lower.elementwise.pointwise import convert
from braze.lower.scatters.placed import placed
from braze.lower.scatters.scattered import placed_on_gpu
from braze.lower.scatters.scatters import IN_PLACE
from braze.lower.values.fallback import argument, target_name
from braze.lower.values.lazy import Lazy, numel, strided_lazy
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import LOWERINGS, aten
from braze.lower.views.views import (
    clamp_start,
    counted_from_start,
    diagonal_value,
    expand_value,
    is_inside,
    select_value,
    slice_value,
)
from braze.support.record import record
from braze.symbolic.expr import ONE, ZERO, axis_symbol, known_le, linear
from braze.symbolic.guess import UNKNOWN

Node = torch.fx.Node

#: scatter into a part -> the view that sees that part
PARTS = {SCATTERS[view]: view for view in (aten.slice.Tensor, aten.select.int, aten.diagonal.default)}

#: views of all of a tensor's elements: what is scattered into one, and seen through another that undoes it, is scattered into the tensor
WHOLES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
    }
)

#: bytes of an input on a GPU whose copy takes longer than what a recording saves
LARGE = 1 << 20

#: (name, default) of what says which part a view sees
_PLACES: dict[Any, tuple[tuple[str, Any], ...]] = {
    aten.slice.Tensor: (("dim", 0), ("start", None), ("end", None), ("step", 1)),
    aten.select.int: (("dim", None), ("index", None)),
    aten.diagonal.default: (("offset", 0), ("dim1", 0), ("dim2", 1)),
}


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


def inputs_to_write(partition: Partition, least: float) -> tuple[Written, ...]:
    """The inputs whose new contents are scattered into the old ones and have no history.

    ``least``: bytes from which on one on a GPU is written where it lies, if it is not a module's, which always lies there. A recording can take
    no copy for it, so that one that is made anew for each call leaves the graph unrecorded.
    """
    items: Any = partition.forward.graph.output_node().args[0]
    found = []
    for k, index, base in _writable(partition):
        if not _stays(base.meta["val"], partition.input_roles[index], least):
            continue
        way = _way(items[k], base)
        chain = tuple(node for node in way if node.target not in WHOLES)
        alone = sum(item in (base, *way) for item in items) == 1
        if chain and alone:
            found.append(Written(k, index, base, chain))
    return tuple(found)


def inputs_to_renew(partition: Partition, written: Iterable[Written]) -> dict[int, Node]:
    """Of the other mutations, those whose new contents are nobody else's result, and may be stored over the old ones; with the inputs' placeholders."""
    items: Any = partition.forward.graph.output_node().args[0]
    others = {each.mutation for each in written}
    return {
        k: base
        for k, _, base in _writable(partition)
        if k not in others and isinstance(items[k], Node) and items.count(items[k]) == 1 and base not in items
    }


def _stays(x: torch.Tensor, role: InputRole, least: float) -> bool:
    """Whether an input may be written where it lies."""
    if least == 0 or x.device.type == "cpu":
        return True
    if role is InputRole.PARAMETER:
        return least < math.inf
    return math.prod(n if isinstance(n, int) else UNKNOWN for n in x.shape) * x.element_size() >= least


def _writable(partition: Partition) -> Iterator[tuple[int, int, Node]]:
    """(mutation, input, its placeholder) of the inputs whose memory a graph may write itself.

    A backward may want an input's old contents, or its new ones; where inputs share memory, others see the writes.
    """
    if partition.shared or partition.beyond or partition.anchored:
        return
    saved = partition.backward.saved if partition.backward is not None else ()
    wanted = {s.index for s in saved if s.source is SavedFrom.INPUT}
    kept = {s.index for s in saved if s.source is SavedFrom.OUTPUT}
    placeholders = partition.forward.graph.find_nodes(op="placeholder")
    for k, role in enumerate(partition.mutations):
        base = placeholders[role.input]
        owned = partition.input_roles[role.input] is InputRole.SAVED
        plain = not role.differentiable and not owned
        seen_again = role.input in wanted or k in kept
        if plain and not seen_again and isinstance(partition.inputs[role.input], TensorSpec):
            yield k, role.input, base


def _way(last: Any, base: Node) -> tuple[Node, ...]:
    """The scatters from ``base`` to ``last``, and the views of all elements between them; none where there is something else."""
    way: list[Node] = []
    while last is not base:
        if not isinstance(last, Node):
            return ()
        if not (last.target in PARTS or last.target in IN_PLACE or last.target in WHOLES):
            return ()
        way.append(last)
        last = last.args[0]
    return tuple(reversed(way))


def absorbed(written: Iterable[Written]) -> dict[Node, Node]:
    """What makes the new contents of a part of an input, and is nothing but a step of a scatter into the whole; with that scatter."""
    found: dict[Node, Node] = {}
    for each in written:
        for link in each.chain:
            inner = _inner(link)
            while inner is not None:
                found.update(dict.fromkeys((inner.scatter, *inner.back), link))
                inner = _inner(inner.scatter)
    return found


@record
class Inner:
    """A scatter into a part, whose result another scatter puts into the whole.

    ``seen``: the views through which it sees the part, first first; ``back``: those by which its result is a part again.
    """

    scatter: Node
    seen: tuple[Node, ...]
    back: tuple[Node, ...]


def _inner(scatter: Node) -> Inner | None:
    """The scatter that makes what ``scatter`` puts into a part, if it starts from what that part holds."""
    if scatter.target not in PARTS:
        return None
    value, back = _below(scatter.args[1])
    if value is None or not (value.target in PARTS or value.target in IN_PLACE):
        return None
    part, seen = _below(value.args[0])
    same = (
        part is not None
        and part.target is PARTS[scatter.target]
        and part.args[0] is scatter.args[0]
        and _place(part, 1) == _place(scatter, 2)
    )
    return Inner(value, seen, back) if same and all(len(n.users) == 1 for n in (value, *back)) else None


def _below(a: Any) -> tuple[Node | None, tuple[Node, ...]]:
    """What views of all of its elements start from, and these views, first first."""
    views: list[Node] = []
    while isinstance(a, Node) and a.target in WHOLES:
        views.append(a)
        a = a.args[0]
    return (a if isinstance(a, Node) else None), tuple(reversed(views))


def _place(node: Node, first: int) -> tuple[Any, ...]:
    """Which part a view sees or a scatter replaces; ``first``: where its arguments say so."""
    target: Any = node.target
    names = _PLACES[PARTS.get(target, target)]
    given = dict(zip((name for name, _ in names), node.args[first:], strict=False))
    return tuple(given.get(name, node.kwargs.get(name, default)) for name, default in names)


def same_window(a: BufferView | None, b: BufferView | None) -> bool:
    """Whether two windows show the same places in the same order, of memory under whatever names."""
    if a is None or b is None or a.sizes != b.sizes or a.dtype is not b.dtype:
        return False
    if ZERO in a.sizes:
        return True
    strides = zip(a.strides, b.strides, a.sizes, strict=True)
    return a.offset == b.offset and all(x == y for x, y, size in strides if size is not ONE)


class InPlace:
    """The writes of one graph, as its nodes are lowered."""

    def __init__(self, g: ProgramBuilder, written: Iterable[Written], env: MutableMapping[Node, Any]) -> None:
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
        """Store what a scatter puts into the input; its contents from then on, as it sees them."""
        g = self.g
        base = self.env[self.links[node].base]
        root = base.view.buffer
        names = [root, *(name for name, of in self.again if of == root)]
        window = self.env[node.args[0]].view  # type: ignore[index]
        if window is None or window.buffer != names[-1]:
            raise NotInPlace(root)
        self._put_aside(set(names), node, base)
        b = g.buffers[root]
        name = f"{root}_w{len(names)}"
        while name in g.buffers:
            name += "_"
        g.new_buffer(b.dtype, b.sizes, b.strides, b.device, BufferKind.INPUT, name)
        whole = part = strided_lazy(g, replace(window, buffer=name), base.device)
        whole.origin = g.origin
        scatter = node
        while True:
            if scatter.target in PARTS:
                part = self._part(scatter, part, root)
            inner = _inner(scatter)
            if inner is None:
                break
            part = self._within(inner, part, root, resolve)
            scatter = inner.scatter
        if scatter.target in PARTS:
            self._store(self.env[scatter.args[1]], part, set(names))  # type: ignore[index]
        elif not self._store_placed(scatter, part, set(names), resolve):
            self._call(scatter, part, set(names), resolve)
        self.again.append((name, root))
        return whole

    def check(self, k: int, last: Node) -> None:
        """That the new contents which are mutation ``k`` lie in the input as its old ones did."""
        base = next(each.base for each in self.links.values() if each.mutation == k)
        had, has = self.env[base].view, self.env[last].view
        if not same_window(had, has):
            raise NotInPlace(had.buffer)

    def _within(self, inner: Inner, part: Lazy, root: str, resolve: Any) -> Lazy:
        """A part as a scatter into it sees it, whose way back must lead to the part as it was."""
        seen = self._viewed(inner.seen, part, resolve)
        if not same_window(part.view, self._viewed(inner.back, seen, resolve).view):
            raise NotInPlace(root)
        return seen

    def _viewed(self, views: Iterable[Node], x: Lazy, resolve: Any) -> Lazy:
        """A window under views of all of its elements."""
        g = self.g
        val = g.val
        for node in views:
            g.val = node.meta["val"]
            x = LOWERINGS[node.target](g, x, *(resolve(a) for a in node.args[1:]))
        g.val = val
        return x

    def _part(self, scatter: Node, whole: Lazy, root: str) -> Lazy:
        """The part of an input that a scatter replaces, as a window on its memory."""
        g = self.g
        value: Any = scatter.args[1]
        place = [self.env[p] if isinstance(p, Node) else p for p in _place(scatter, 2)]
        if scatter.target is aten.diagonal_scatter.default:
            offset, first, second = place
            return diagonal_value(
                g, whole, offset, first, second, g.symbols.expr(value.meta["val"].shape[-1])
            )
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
        """A loop that stores a value into a window; ATen's copy of what loops do not compute with."""
        g = self.g
        view = part.view
        if view is None or value.device != part.device:
            raise NotInPlace(self._root(names))
        if not (value.dtype.is_computable and part.dtype.is_computable):
            if value.view is None or value.dtype is not part.dtype or value.view.buffer in names:
                raise NotInPlace(self._root(names))
            target = target_name(aten.copy_.default)
            g.call(target, (view, value.view), mutates=(view.buffer,), device=part.device)
            return
        value = self._ready(expand_value(g, convert(g, value, part.dtype), part.sizes), names)
        axes, index = g.axes(view.sizes)
        store = Store(view.buffer, linear(index, view.strides, view.offset), value.load(index))
        self._loop(axes, store, value, part)

    def _ready(self, value: Lazy, names: set[str]) -> Lazy:
        """A value that neither reads what is written nor may fail while it is."""
        if self._reads(value, names) or _may_fail(value):
            return self.g.lazy(self.g.copy(value).buffer)
        return value

    def _unwritten(self, x: Lazy, names: set[str]) -> Lazy:
        """A value that does not read what is written."""
        return self.g.lazy(self.g.copy(x).buffer) if self._reads(x, names) else x

    def _loop(self, axes: tuple[Axis, ...], store: Store, value: Lazy, part: Lazy) -> None:
        self.g.nest(axes, (store,), part.device, (*value.pending_ops, "write"))

    def _store_placed(self, scatter: Node, part: Lazy, names: set[str], resolve: Any) -> bool:
        """A loop that stores values at computed positions of a window; whether there is one."""
        g, view = self.g, part.view
        args = [resolve(a) for a in scatter.args[1:]]
        mode = StoreMode.PLAIN
        if view is None or not part.dtype.is_computable:
            return False
        if g.ctx.target.kind == "cuda" and part.device != "cpu":
            named = {name: resolve(a) for name, a in scatter.kwargs.items()}
            found, mode = placed_on_gpu(g, scatter.target, part, args, named)
        else:
            found = placed(g, scatter.target, part, args) if not scatter.kwargs else None
        if found is None:
            return False
        value = expand_value(g, convert(g, found.value, part.dtype), found.sizes)
        value = self._ready(value, names)
        looked_up = tuple((self._unwritten(places, names), where) for places, where in found.looked_up)
        axes, index = g.axes(found.sizes)
        self._loop(axes, replace(found, looked_up=looked_up).store(view, value, index, mode), value, part)
        return True

    def _root(self, names: set[str]) -> str:
        """The input which some names are of."""
        name = next(iter(names))
        return dict(self.again).get(name, name)

    def _call(self, scatter: Node, part: Lazy, names: set[str], resolve: Any) -> None:
        """ATen's in-place operator on a window."""
        g = self.g
        if part.view is None:
            raise NotInPlace(self._root(names))

        def apart(a: Any) -> Any:
            if isinstance(a, BufferView) and a.buffer in names:
                if not a.dtype.is_computable:  # no loop copies it
                    raise NotInPlace(self._root(names))
                return g.copy(strided_lazy(g, a, part.device))
            return tuple(map(apart, a)) if isinstance(a, tuple) else a

        rest = tuple(apart(argument(g, resolve(a))) for a in scatter.args[1:])
        named = tuple((name, apart(argument(g, resolve(a)))) for name, a in scatter.kwargs.items())
        target, given, mutates = IN_PLACE[scatter.target], (part.view, *rest), (part.view.buffer,)
        g.call(target_name(target), given, kwargs=named, mutates=mutates, device=part.device)

    def _put_aside(self, names: set[str], now: Node, base: Lazy) -> None:
        """Store what is made of the old contents, and still wanted, before these are gone; ``now``: who writes."""
        # once all who read a value are lowered, nobody will want it again: each value is dropped once, not asked at each write
        new = itertools.islice(self.env.items(), self.looked, None)
        self.wanted = [
            (node, value)
            for node, value in (*self.wanted, *new)
            if any(self._is_to_come(user) for user in node.users)
        ]
        self.looked = len(self.env)
        for at, (node, value) in enumerate(self.wanted):
            for x in value if isinstance(value, tuple) else (value,):
                if isinstance(x, Lazy) and x.view is None and x.dtype.is_computable and self._reads(x, names):
                    self.g.realize(x)
            later = any(self.skipped.get(u, u) is not now and self._is_to_come(u) for u in node.users)
            if later and isinstance(value, Lazy) and self._is_small_window(value, names, base):
                self.env[node] = apart = self._apart(value)
                self.wanted[at] = (node, apart)

    def _is_to_come(self, reader: Node) -> bool:
        """Whether a node has not read its arguments yet; a step of a scatter into the whole reads with that."""
        return self.skipped.get(reader, reader) not in self.env

    def _is_small_window(self, x: Lazy, names: set[str], base: Lazy) -> bool:
        """Whether a value is a window on less than half of the old contents, so that a copy of it is cheaper than one of the whole."""
        if x.view is None or x.view.buffer not in names or not x.dtype.is_computable:
            return False
        return known_le(numel(x.sizes) * 2, numel(base.sizes))

    def _apart(self, x: Lazy) -> Lazy:
        """A window's value in memory of its own."""
        found = self.g.lazy(self.g.copy(x).buffer)
        found.hint, found.origin = x.hint, x.origin
        return found

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
