"""What each kernel of a schedule moves and computes in one call: the least that its time follows from.

Each element of a buffer counts once, however often a kernel reads it: caches may serve the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from braze.loops.ir import Axis, Buffer, ExternCall, LoopNest, Node, Op, Store, StoreMode, TemplateCall
from braze.loops.rewrite import walk
from braze.schedule.facts.records import Group, Schedule
from braze.support.record import record
from braze.symbolic.expr import Expr, Symbol
from braze.symbolic.guess import likely

#: what is no operation on numbers
_NONE = frozenset(
    {Op.LOAD, Op.CONST, Op.INDEX, Op.REDUCED, Op.CAST, Op.BITCAST, Op.MASKED, Op.WHERE, Op.CHECK_INDEX}
)


@record
class Work:
    """Bytes read and written, operations on numbers one by one, and those of matrix products of type ``product``."""

    read: int
    written: int
    operations: int
    flops: int = 0
    product: str = ""


def work_of(group: Group, buffers: Mapping[str, Buffer], sizes: Mapping[str, int]) -> Work:
    """What the kernel of a group does; ``sizes``: likely values of size symbols, by name."""
    assert not isinstance(group.call, ExternCall)
    return _Count(group, buffers, sizes).work()


def compiled_groups(s: Schedule) -> Iterator[tuple[Group, Mapping[str, Buffer]]]:
    """The groups that are kernels, with what they work on."""
    for plan in [part.schedule for part in s.parts] or [s]:
        buffers = {b.name: b for b in plan.program.buffers}
        for group in plan.groups:
            if not isinstance(group.call, ExternCall):
                yield group, buffers


class _Count:
    """The accesses of one group. Points of the same place are one."""

    def __init__(self, group: Group, buffers: Mapping[str, Buffer], sizes: Mapping[str, int]) -> None:
        self.group = group
        self.buffers = buffers
        self.sizes = sizes
        self.inside = {*group.internal}
        #: buffer -> place and axes -> elements
        self.reads: dict[str, dict[object, int]] = defaultdict(dict)
        self.writes: dict[str, dict[object, int]] = defaultdict(dict)
        self.operations = self.flops = 0
        self.product = ""

    def work(self) -> Work:
        """Count all of it."""
        call = self.group.call
        if isinstance(call, TemplateCall):
            self._template(call)
        for nest in self.group.steps:
            self._nest(nest)
        return Work(
            self._bytes(self.reads), self._bytes(self.writes), self.operations, self.flops, self.product
        )

    def _template(self, call: TemplateCall) -> None:
        self.inside |= call.inside
        for nest in call.prologue:
            self._nest(nest)
        left = call.args[0]
        for view in call.args:
            if view.buffer not in self.inside:
                elements = math.prod(self._size(n) for n in view.sizes)
                self.reads[view.buffer][view] = elements
        rows = math.prod(self._size(n) for n in left.sizes)
        self.flops = sum(2 * rows * self._size(right.sizes[-1]) for right in call.rights)
        self.product = left.dtype.label
        self._stores(call.epilogue, call.axes)

    def _nest(self, nest: LoopNest) -> None:
        axes = (*nest.axes, *nest.reduce_axes)
        values = [r.value for r in nest.reductions]
        self._values(values, axes)
        self.operations += len(values) * self._points(axes)
        self._stores(nest.stores, nest.axes)

    def _stores(self, stores: Iterable[Store], axes: Sequence[Axis]) -> None:
        stores = tuple(stores)
        self._values([v for s in stores for v in (s.value, *s.args)], axes)
        for store in stores:
            if store.buffer in self.inside:
                continue
            place = store.index, store.args, tuple(axes)
            elements = self._points(axes)
            self.writes[store.buffer][place] = elements
            if store.mode is StoreMode.ADD:
                self.reads[store.buffer][place] = elements

    def _values(self, values: Iterable[Node], axes: Sequence[Axis]) -> None:
        """What is loaded and computed at each point of some axes."""
        seen: set[Node] = set()
        for value in values:
            seen.update(walk(value))
        self.operations += sum(node.op not in _NONE for node in seen) * self._points(axes)
        for node in seen:
            if node.op is Op.LOAD:
                buffer, index = node.attr
                if buffer not in self.inside:
                    moved = index.symbols().union(*(_symbols(arg) for arg in node.args))
                    along = [axis for axis in axes if axis.symbol in moved]
                    self.reads[buffer][index, node.args, tuple(along)] = self._points(along)

    def _bytes(self, accesses: Mapping[str, Mapping[object, int]]) -> int:
        return sum(
            min(sum(places.values()), self._elements(name)) * self.buffers[name].dtype.itemsize
            for name, places in accesses.items()
            if name in self.buffers
        )

    def _elements(self, name: str) -> int:
        """Elements that a buffer has in memory: a repeated one is one."""
        b = self.buffers[name]
        return math.prod(
            self._size(n) for n, stride in zip(b.sizes, b.strides, strict=True) if stride.value != 0
        )

    def _points(self, axes: Iterable[Axis]) -> int:
        return math.prod(self._size(axis.extent) for axis in axes)

    def _size(self, size: Expr) -> int:
        return max(likely(size, self.sizes), 0)


def _symbols(node: Node) -> set[Symbol]:
    """What the value of a node depends on of the axes."""
    found: set[Symbol] = set()
    for each in walk(node):
        if each.op is Op.INDEX:
            found |= each.attr.symbols()
        elif each.op is Op.LOAD:
            found |= each.attr[1].symbols()
    return found
