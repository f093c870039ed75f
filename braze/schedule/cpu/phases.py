"""A group's steps as the phases of one kernel of a processor.

A reduction kernel does, for each parallel point, a sequence of *phases*: loops over the row, and
statements at the point between them. Results of reductions become named registers (``%r0``), so that
steps refer to them as to any buffer. ``WELFORD`` and ``ONLINE_SOFTMAX`` become two plain passes each:
the row is in cache, and two passes are more exact and cost one exponential less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from braze.loops import build
from braze.loops.build import nodes_of, register
from braze.loops.ir import Axis, DType, LoopNest, Node, Op, ReduceKind, Store, StoreMode
from braze.loops.rewrite import loads, reading, rewriter, store_roots, with_nodes, with_results
from braze.loops.scalars import cost
from braze.schedule.facts.passes import flat, over_row
from braze.support.record import record
from braze.symbolic.expr import ONE, ZERO, Expr, product

#: values at least this costly are kept for a later pass over the row rather than computed again
_WORTH_KEEPING = 8


@record
class Fold:
    """One reduction to one register: ``register`` = ``kind`` of ``value`` over the row."""

    register: str
    kind: ReduceKind
    dtype: DType
    value: Node


@record
class Item:
    """A part of a step: reductions or stores over the row, or stores at the point."""

    over_row: bool
    folds: tuple[Fold, ...] = ()
    stores: tuple[Store, ...] = ()

    def roots(self) -> tuple[Node, ...]:
        return tuple(f.value for f in self.folds) + store_roots(self.stores)

    def reads(self) -> set[str]:
        return loads(*self.roots())


@record
class Phase:
    """Items that are done together: one loop over the row, or statements at the point."""

    over_row: bool
    items: tuple[Item, ...]

    def roots(self) -> Iterator[Node]:
        for item in self.items:
            yield from item.roots()

    @property
    def folds(self) -> tuple[Fold, ...]:
        return tuple(fold for item in self.items for fold in item.folds)


@record
class Phases:
    """Phases in order, and the types of the registers and of the row buffers that outlive their phase."""

    phases: tuple[Phase, ...]
    registers: tuple[tuple[str, DType], ...]
    kept: tuple[tuple[str, DType], ...]

    def roots(self) -> Iterator[Node]:
        for phase in self.phases:
            yield from phase.roots()


@dataclasses.dataclass(slots=True)
class _Draft:
    """A phase to which items are still added."""

    over_row: bool
    items: list[Item]

    def roots(self) -> Iterator[Node]:
        for item in self.items:
            yield from item.roots()


def phases_of(steps: tuple[LoopNest, ...], row_axes: tuple[Axis, ...], internal: tuple[str, ...]) -> Phases:
    """Arrange the steps of a reduction group in as few passes over the row as their order allows."""
    registers: dict[str, DType] = {}
    items: list[Item] = []
    for number, step in enumerate(steps):
        items.extend(_items(step, row_axes, f"%{number}_", registers))
    items = _use_registers(items)
    drafts = _arrange(items)
    kept = _keep_costly(drafts, row_axes)
    types = {s.buffer: s.value.dtype for i in items for s in i.stores}
    for name in _outliving(drafts, frozenset(internal)):
        kept[name] = types[name]
    phases = tuple(Phase(d.over_row, tuple(d.items)) for d in drafts)
    return Phases(phases, tuple(registers.items()), tuple(kept.items()))


def _items(
    step: LoopNest, row_axes: tuple[Axis, ...], prefix: str, registers: dict[str, DType]
) -> Iterator[Item]:
    if not step.reductions:
        yield Item(over_row(step, row_axes), (), step.stores)
        return
    results: list[Node] = []
    first: list[Fold] = []
    point: list[Store] = []
    second: list[Fold] = []

    def new(kind: ReduceKind, dtype: DType, value: Node, into: list[Fold]) -> Node:
        name = f"{prefix}{len(registers)}"
        result = DType.I64 if kind.finds_place else dtype
        registers[name] = result
        into.append(Fold(name, kind, dtype, value))
        return register(name, result)

    count = product([a.extent for a in row_axes]) if row_axes else ONE
    for r in step.reductions:
        value = (
            r.value if r.value.dtype is r.dtype or r.kind.finds_place else Node(Op.CAST, r.dtype, (r.value,))
        )
        dtype = r.value.dtype if r.kind.finds_place else r.dtype
        if r.kind is ReduceKind.WELFORD:
            total = new(ReduceKind.SUM, dtype, value, first)
            mean_name = f"{prefix}{len(registers)}"
            registers[mean_name] = dtype
            point.append(Store(mean_name, ZERO, Node(Op.DIV, dtype, (total, _number(count, dtype)))))
            mean = register(mean_name, dtype)
            off = Node(Op.SUB, dtype, (value, mean))
            results += [mean, new(ReduceKind.SUM, dtype, Node(Op.MUL, dtype, (off, off)), second)]
        elif r.kind is ReduceKind.ONLINE_SOFTMAX:
            top = new(ReduceKind.MAX, dtype, value, first)
            power = Node(Op.EXP, dtype, (Node(Op.SUB, dtype, (value, top)),))
            results += [top, new(ReduceKind.SUM, dtype, power, second)]
        else:
            results.append(new(r.kind, dtype, value, first))

    def result(named: Node) -> Node:
        return build.cast(results[named.attr], named.dtype)

    yield Item(True, tuple(first), ())
    if second:
        if point:
            yield Item(False, (), tuple(point))
        yield Item(True, tuple(second), ())
    yield Item(False, (), tuple(with_results(s, result) for s in step.stores))


def _use_registers(items: list[Item]) -> list[Item]:
    """Read a stored result of a reduction from its register, so that equal expressions are the same node."""
    known: dict[tuple[str, Expr], Node] = {}
    new = reading(known)
    out = []
    for item in items:
        out.append(_mapped(item, new))
        for s in out[-1].stores:
            if (
                not item.over_row
                and s.mode is StoreMode.PLAIN
                and s.value.op is Op.LOAD
                and s.value.attr[0][0] == "%"
            ):
                known[s.buffer, s.index] = s.value
                new = reading(known)
    return out


def _mapped(item: Item, new: Callable[[Node], Node]) -> Item:
    folds = tuple(Fold(f.register, f.kind, f.dtype, new(f.value)) for f in item.folds)
    return Item(item.over_row, folds, tuple(with_nodes(s, new) for s in item.stores))


def _number(count: Expr, dtype: DType) -> Node:
    if count.value is not None:
        return Node(Op.CONST, dtype, (), float(count.value))
    return Node(Op.CAST, dtype, (Node(Op.INDEX, DType.I64, (), count),))


def _arrange(items: list[Item]) -> list[_Draft]:
    """Put each item in the first phase in which what it needs is there."""
    phases: list[_Draft] = []
    #: buffer -> first phase that may use what was written, and last phase that touches it
    ready: dict[str, int] = {}
    touched: dict[str, int] = {}
    for item in items:
        reads, writes = item.reads(), {s.buffer for s in item.stores}
        at = max((ready.get(b, 0) for b in reads), default=0)
        at = max([at, *(touched.get(b, 0) for b in writes)])
        while at < len(phases) and phases[at].over_row != item.over_row:
            at += 1
        if at == len(phases):
            phases.append(_Draft(item.over_row, []))
        phases[at].items.append(item)
        for b in reads | writes:
            touched[b] = max(touched.get(b, 0), at)
        for s in item.stores:
            # a row store is forwarded within its loop; a point store to all that follows
            ready[s.buffer] = at
        for f in item.folds:
            ready[f.register] = at + 1
    return phases


def _outliving(phases: list[_Draft], internal: frozenset[str]) -> list[str]:
    """Internal buffers written in a loop over the row and read in a later one."""
    written: dict[str, int] = {}
    found: dict[str, None] = {}
    for number, phase in enumerate(phases):
        for item in phase.items:
            for name in item.reads():
                if name in written and written[name] != number:
                    found[name] = None
            if phase.over_row:
                written.update({s.buffer: number for s in item.stores if s.buffer in internal})
    return list(found)


def _keep_costly(phases: list[_Draft], row_axes: tuple[Axis, ...]) -> dict[str, DType]:
    """Store costly values that several passes compute in row scratch the first time."""
    kept: dict[str, DType] = {}
    loops = [p for p in phases if p.over_row]
    seen: dict[Node, _Draft] = {}
    at = flat(row_axes)
    for phase in loops:
        repeated = [n for n in _costly(phase) if n in seen and seen[n] is not phase]
        for n in _outermost(repeated):
            name = f"%k{len(kept)}"
            kept[name] = n.dtype
            _insert_store(seen[n], n, Store(name, at, n))
            _replace_in(phase, n, Node(Op.LOAD, n.dtype, (), (name, at)))
        for n in _costly(phase):
            seen.setdefault(n, phase)
    return kept


def _costly(phase: _Draft) -> list[Node]:
    """Values of a pass that cost much, where they are computed for every element."""
    found: dict[Node, None] = {}
    for root in phase.roots():
        spent: dict[Node, int] = {}
        guarded = {m for n in nodes_of(root) if n.op is Op.MASKED for m in nodes_of(n.args[1])}
        for n in nodes_of(root):
            spent[n] = cost(n.op)
            if spent[n] >= _WORTH_KEEPING and n not in guarded and n.dtype.is_float:
                found[n] = None
    return list(found)


def _outermost(nodes: list[Node]) -> list[Node]:
    inside = {m for n in nodes for m in nodes_of(n) if m is not n}
    return [n for n in nodes if n not in inside]


def _insert_store(phase: _Draft, value: Node, store: Store) -> None:
    """Add a store to the first item of a loop that computes the value, after what it needs."""
    for k, item in enumerate(phase.items):
        if any(n is value for n in nodes_of(*item.roots())):
            phase.items.insert(k + 1, Item(True, (), (store,)))
            return


def _replace_in(phase: _Draft, old: Node, new: Node) -> None:
    replaced = rewriter(lambda n: new if n is old else n)
    phase.items[:] = [_mapped(item, replaced) for item in phase.items]
