"""What integers a program's values can be, where its text tells: of counters, of what is clamped or taken modulo, of places that a search finds.

An index on a GPU that is known to exist is not looked at (``known_to_exist``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from braze.loops.bounds import Range, range_of
from braze.loops.build import nodes_of, wrapped
from braze.loops.dtypes import integer_range
from braze.loops.ir import (
    BufferKind,
    BufferView,
    DType,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    Step,
    StoreMode,
)
from braze.loops.rewrite import nest_with_nodes, rewriter, roots, walk
from braze.loops.verify import writes_of
from braze.symbolic.expr import ZERO, Expr, as_expr, maximum, minimum, product
from braze.symbolic.flat import close_bounds, flat

#: calls that find places along a dimension: which of the results has them, and which argument is the dimension, the last one where it is not given
_PLACES = {
    "aten.sort.default": (1, 1), "aten.sort.stable": (1, 2), "aten.argsort.default": (0, 1), "aten.topk.default": (1, 2),
    "aten.max.dim": (1, 1), "aten.min.dim": (1, 1), "aten.argmax.default": (0, 1), "aten.argmin.default": (0, 1),
}  # fmt: skip


def known_to_exist(program: LoopProgram) -> LoopProgram:
    """The program without looks at indices on a GPU that are known to exist."""
    if not any(_looks(step) for step in program.steps):
        return program
    held = _Held(program)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, LoopNest):
            values = _Values(step, held)
            made = nest_with_nodes(step, rewriter(values.without_look)) if _looks(step) else step
            step = made if any(a is not b for a, b in zip(roots(made), roots(step), strict=True)) else step
            held.note_nest(step, _Values(step, held))
        else:
            held.note_call(step)
        steps.append(step)
    if all(a is b for a, b in zip(steps, program.steps, strict=True)):
        return program
    return dataclasses.replace(program, steps=tuple(steps))


def _looks(step: Step) -> bool:
    found = isinstance(step, LoopNest) and step.device != "cpu"
    return found and any(n.op is Op.CHECK_INDEX for n in walk(*roots(step)))  # type: ignore[arg-type]


class _Held:
    """What is known of the integers in a program's own buffers, as far as its steps have written them."""

    def __init__(self, program: LoopProgram) -> None:
        own = (BufferKind.TEMPORARY, BufferKind.OUTPUT)
        self.dtypes = {b.name: b.dtype for b in program.buffers if b.kind in own and b.dtype.is_integer}
        self.ranges: dict[str, Range | None] = {}

    def of(self, load: Node) -> Range | None:
        """What a load can find."""
        name = load.attr[0]
        return self.ranges.get(name) if self.dtypes.get(name) is load.dtype else None

    def note_nest(self, nest: LoopNest, values: _Values) -> None:
        """What loops write is there."""
        for store in nest.stores:
            if store.buffer in self.dtypes:
                plain = store.mode is not StoreMode.ADD
                self._add(store.buffer, values.of_root(store.value) if plain else None)

    def note_call(self, step: Step) -> None:
        """What a call writes is there."""
        for name in writes_of(step):
            self._add(name, _places(step, name) if isinstance(step, ExternCall) else None)

    def _add(self, name: str, found: Range | None) -> None:
        before = self.ranges.get(name, found)
        self.ranges[name] = None if found is None or before is None else _both(found, before)


def _places(call: ExternCall, name: str) -> Range | None:
    """The places that a call finds, if that is what it writes to a buffer."""
    which, at = _PLACES.get(call.target, (-1, 0))
    if (
        which < 0
        or name != call.outputs[which]
        or not isinstance(x := call.args[0], BufferView)
        or not x.sizes
    ):
        return None
    dim = dict(call.kwargs).get("dim", call.args[at] if len(call.args) > at else -1)
    if not isinstance(dim, int):  # of all elements
        return Range(ZERO, product(x.sizes) - 1)
    return Range(ZERO, x.sizes[dim] - 1)


class _Values:
    """What is known of the integers that a nest computes."""

    def __init__(self, nest: LoopNest, held: _Held) -> None:
        self.held, self.nest = held, nest
        self.axes = {a.symbol: Range(ZERO, a.extent - 1) for a in (*nest.axes, *nest.reduce_axes)}
        self.known: dict[Node, Range | None] = {}

    def without_look(self, node: Node) -> Node:
        """An index by itself, where it is known to exist; any other node as it is."""
        if node.op is Op.CHECK_INDEX and (found := self.of(node.args[0])) is not None:
            if _not_negative(found.low) and _not_negative(node.attr - 1 - found.high):
                return node.args[0]
        self.of(node)
        return node

    def of_root(self, node: Node) -> Range | None:
        """The range of an expression of which nothing is known yet."""
        for each in nodes_of(node):
            self.of(each)
        return self.known[node]

    def of(self, node: Node) -> Range | None:
        """The range of a value, of which its type is known at least; None for what is no integer."""
        if node not in self.known:
            self.known[node] = self._found(node) if node.dtype.is_integer else None
        return self.known[node]

    def _found(self, node: Node) -> Range | None:
        rule = _RULES.get(node.op)
        found = rule(self, node) if rule is not None else None
        return _any(node.dtype) if found is None else found

    def _const(self, node: Node) -> Range | None:
        return Range(as_expr(node.attr), as_expr(node.attr))

    def _index(self, node: Node) -> Range | None:
        return range_of(node.attr, self.axes)

    def _load(self, node: Node) -> Range | None:
        return self.held.of(node)

    def _reduced(self, node: Node) -> Range | None:
        kinds = [r.kind for r in self.nest.reductions for _ in r.results]
        if not kinds[node.attr].finds_place:
            return None
        return Range(ZERO, product([a.extent for a in self.nest.reduce_axes]) - 1)

    def _cast(self, node: Node) -> Range | None:
        inner = node.args[0]
        if inner.dtype is DType.BOOL:
            return Range(ZERO, as_expr(1))
        found = self.of(inner)
        return found if found is not None and _inside(found, node.dtype) else None

    def _look(self, node: Node) -> Range | None:
        return Range(ZERO, node.attr - 1)

    def _where(self, node: Node) -> Range | None:
        _, then, other = node.args
        found = self.of(other)
        if node.op is Op.WHERE and then.op is Op.ADD and found is not None:
            size = next((self.of(a) for a in then.args if a is not other), None)
            if size is not None and size.low == size.high and node is wrapped(other, _other(then, other)):
                if _not_negative(found.low + size.low) and _not_negative(size.low - 1 - found.high):
                    return Range(ZERO, size.low - 1) if not _not_negative(found.low) else found
        given = self.of(then)
        return None if found is None or given is None else _both(found, given)

    def _larger(self, node: Node) -> Range | None:
        a, b = map(self.of, node.args)
        if a is None or b is None:
            return None
        return Range(maximum(a.low, b.low), maximum(a.high, b.high), False)

    def _smaller(self, node: Node) -> Range | None:
        a, b = map(self.of, node.args)
        if a is None or b is None:
            return None
        return Range(minimum(a.low, b.low), minimum(a.high, b.high), False)

    def _remainder(self, node: Node) -> Range | None:
        by = self.of(node.args[1])
        if by is None or not _not_negative(by.low - 1):
            return None
        return Range(ZERO, by.high - 1, False)

    def _and(self, node: Node) -> Range | None:
        known = [r for a in node.args if (r := self.of(a)) is not None and _not_negative(r.low)]
        return Range(ZERO, known[0].high, False) if known else None

    def _arithmetic(self, node: Node) -> Range | None:
        """Of numbers that fit in their type."""
        corners = [_numbers(r) for a in node.args if (r := self.of(a)) is not None]
        if len(corners) < len(node.args) or not all(corners):
            return None
        found = list(_corners(node.op, *corners))  # type: ignore[arg-type]
        made = Range(as_expr(min(found)), as_expr(max(found)), False) if found else None
        return made if made is not None and _inside(made, node.dtype) else None


_RULES: dict[Op, Callable[[_Values, Node], Range | None]] = {
    Op.CONST: _Values._const,
    Op.INDEX: _Values._index,
    Op.LOAD: _Values._load,
    Op.REDUCED: _Values._reduced,
    Op.CAST: _Values._cast,
    Op.CHECK_INDEX: _Values._look,
    Op.WHERE: _Values._where,
    Op.MASKED: _Values._where,
    Op.MAXIMUM: _Values._larger,
    Op.MINIMUM: _Values._smaller,
    Op.REMAINDER: _Values._remainder,
    Op.AND: _Values._and,
    **dict.fromkeys((Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.FLOORDIV, Op.SHR), _Values._arithmetic),
}


def _corners(op: Op, a: tuple[int, int], b: tuple[int, int] = (0, 0)) -> Iterator[int]:
    """The results among which the least and the greatest are."""
    if op is Op.ABS:
        yield from map(abs, a)
        yield from (0,) if a[0] < 0 < a[1] else ()
    elif op is Op.NEG:
        yield from (-x for x in a)
    elif op is Op.FLOORDIV:
        yield from (x // y for x in a for y in b if b[0] > 0)
    elif op is Op.SHR:
        yield from (x >> y for x in a for y in b if 0 <= b[0] <= b[1] < 64)
    else:
        combine: Callable[[int, int], int] = {Op.ADD: int.__add__, Op.SUB: int.__sub__, Op.MUL: int.__mul__}[
            op
        ]
        yield from (combine(x, y) for x in a for y in b)


def _any(dtype: DType) -> Range:
    """All numbers of a type."""
    low, high = integer_range(dtype)
    return Range(as_expr(low), as_expr(high), False)


def _other(sum_: Node, one: Node) -> Node:
    """The other one of two that are added."""
    return sum_.args[1] if sum_.args[0] is one else sum_.args[0]


def _both(a: Range, b: Range) -> Range:
    if a == b:
        return a
    return Range(minimum(a.low, b.low), maximum(a.high, b.high), False)


def _numbers(r: Range) -> tuple[int, int] | None:
    """A range as numbers."""
    low, high = close_bounds(flat(r.low))[0], close_bounds(flat(r.high))[1]
    return None if low is None or high is None else (low, high)


def _inside(r: Range, dtype: DType) -> bool:
    """Whether a type has all numbers of a range; sizes fit in 64 bits."""
    if dtype is DType.I64 and _numbers(r) is None:
        return True
    found, (least, most) = _numbers(r), integer_range(dtype)
    return found is not None and least <= found[0] and found[1] <= most


def _not_negative(e: Expr) -> bool:
    low = close_bounds(flat(e))[0]
    return low is not None and low >= 0
