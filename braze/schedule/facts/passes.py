"""What a kernel touches, and the walks over its row: facts of a group that every generator needs alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from braze.loops.dtypes import HALVES
from braze.loops.ir import Axis, Buffer, LoopNest, Node, Op, ReduceKind, StoreMode
from braze.loops.rewrite import index_exprs, loads, roots, walk
from braze.loops.scalars import COARSE, SCALARS
from braze.schedule.facts.records import Group
from braze.support.record import record
from braze.symbolic.expr import ZERO, Expr, Symbol

#: operations that make a large difference of the least one
STEPS = frozenset(op for op, row in SCALARS.items() if row.steps)


@record
class Access:
    """A load or a store: where, of how many bytes an element; ``indirect``: through a value read from memory."""

    buffer: str
    index: Expr
    itemsize: int
    store: bool
    indirect: bool


def arguments(group: Group) -> tuple[str, ...]:
    """The buffers that a kernel touches in memory: read first, then written."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for step in group.steps:
        for node in walk(*roots(step)):
            if node.op is Op.LOAD:
                reads[node.attr[0]] = None
        writes.update(dict.fromkeys(s.buffer for s in step.stores))
    return tuple(b for b in dict.fromkeys([*reads, *writes]) if b not in group.internal)


def size_symbols(group: Group) -> tuple[Symbol, ...]:
    """Sizes that a kernel needs at run time, by name."""
    axes = {a.symbol for step in group.steps for a in (*step.axes, *step.reduce_axes)}
    axes |= {a.symbol for a in (*group.axes, *group.row_axes)}
    found: set[Symbol] = set()
    for axis in (*group.axes, *group.row_axes):
        found |= axis.extent.symbols()
    for step in group.steps:
        for e in (*(a.extent for a in (*step.axes, *step.reduce_axes)), *index_exprs(step)):
            found |= e.symbols()
    return tuple(sorted((s for s in found - axes if s.place is None), key=lambda s: s.name))


def covering(group: Group, found: Iterable[Access]) -> list[Access]:
    """The accesses by which each row of a group has its own elements."""
    own = {group.axes[0].symbol, *(a.symbol for a in group.row_axes)}
    return [a for a in found if own <= a.index.symbols()]


def accesses_of(group: Group, buffers: dict[str, Buffer]) -> Iterator[Access]:
    """Every access of a kernel to memory, each once."""
    found = (each for step in group.steps for each in touched(step))
    for buffer, index, store, indirect in dict.fromkeys(found):
        if buffer not in group.internal:
            yield Access(buffer, index, buffers[buffer].dtype.itemsize, store, indirect)


def touched(step: LoopNest) -> Iterator[tuple[str, Expr, bool, bool]]:
    """Loads and stores of a step: (buffer, index, whether it is a store, whether it goes through a value read from memory)."""
    for node in walk(*roots(step)):
        if node.op is Op.LOAD:
            yield node.attr[0], node.attr[1], False, bool(node.args)
    for s in step.stores:
        yield s.buffer, s.index, True, bool(s.args)


def stride(e: Expr, symbol: Symbol) -> int | Expr | None:
    """The step of ``e`` per step of ``symbol``: an int, an expression, or None where it is not linear."""
    if symbol not in e.symbols():
        return 0
    c = e.coefficient(symbol)
    if c is None:
        return None
    return c.value if c.value is not None else c


def flat(axes: Sequence[Axis]) -> Expr:
    """The number of a point of some axes."""
    out: Expr = ZERO
    for axis in axes:
        out = out * axis.extent + axis.symbol
    return out


def over_row(step: LoopNest, row_axes: Iterable[Axis]) -> bool:
    """Whether a step without reductions runs along the row."""
    row = {a.symbol for a in row_axes}
    return any(a.symbol in row for a in step.axes)


@record
class Pass:
    """One walk over the row: the steps that are done ``along`` it, reductions among them, and those ``behind`` it, at the point."""

    along: tuple[LoopNest, ...]
    behind: tuple[LoopNest, ...]

    @property
    def reduces(self) -> bool:
        """Whether it takes sums or the like; one that does not only stores what follows from those before."""
        return any(step.reductions for step in self.along)


def passes_of(steps: Iterable[LoopNest], row_axes: tuple[Axis, ...]) -> tuple[Pass, ...]:
    """Cut the steps into walks over the row: where one needs, along the row, the result of a reduction of the same walk."""
    passes: list[tuple[list[LoopNest], list[LoopNest]]] = [([], [])]
    pending: set[str] = set()  # buffers whose values exist only after the current walk
    for step in steps:
        along = bool(step.reductions) or over_row(step, row_axes)
        reads = loads(*roots(step))
        if along and reads & pending:
            passes.append(([], []))
            pending = set()
        passes[-1][0 if along else 1].append(step)
        if step.reductions or (reads & pending) or not along:
            pending |= {s.buffer for s in step.stores}
    return tuple(Pass(tuple(along), tuple(behind)) for along, behind in passes)


def loads_along(steps: Iterable[LoopNest], made: Mapping[tuple[str, Expr], Node]) -> set[Node]:
    """The loads that steps need wherever they are, through what earlier walks ``made`` and later ones compute again."""
    found: set[Node] = set()
    stack = [r for step in steps for r in roots(step)]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        again = made.get(node.attr) if node.op is Op.LOAD and not node.args else None
        if again is None and node.op is Op.LOAD:
            found.add(node)
        inside = node.args if node.op is not Op.MASKED else (node.args[0], node.args[2])
        stack.extend(inside if again is None else (again,))
    return found


def read_again(group: Group, passes: Sequence[Pass]) -> tuple[Node, ...]:
    """The loads of a row's own numbers that more than one walk needs, and none of its kernel writes over."""
    row, points = {a.symbol for a in group.row_axes}, {a.symbol for a in group.axes}
    other = {s.buffer for step in group.steps for s in step.stores} | {name for name, _ in group.shifted}
    made: dict[tuple[str, Expr], Node] = {}
    before: set[Node] = set()
    found: dict[Node, None] = {}
    for each in passes:
        needed = loads_along(each.along, made)
        for node in walk(*(r for step in each.along for r in roots(step)), *made.values()):
            if node in needed & before and not node.args and node.attr[0] not in other:
                symbols = node.attr[1].symbols()
                if symbols & row and symbols & points:
                    found[node] = None
        before |= needed
        for step in each.along:
            if not step.reductions:
                made.update({(s.buffer, s.index): s.value for s in step.stores})
    return tuple(found)


def kinds_of(steps: Iterable[LoopNest]) -> set[ReduceKind]:
    """The kinds of reductions in some steps."""
    return {r.kind for step in steps for r in step.reductions}


def counts_positions(steps: Iterable[LoopNest]) -> bool:
    """Whether a result is a place along the row: then the order of the row's axes counts."""
    return any(kind.finds_place for kind in kinds_of(steps))


def writes_what_it_reads(group: Group) -> bool:
    """Whether a later kernel could not compute a value again, or a store adds to what is there."""
    read: set[str] = set()
    for step in group.steps:
        stored = {s.buffer for s in step.stores}
        read |= loads(*roots(step))
        if stored & read or any(s.mode is not StoreMode.PLAIN for s in step.stores):
            return True
        read -= stored
    return False


def keeps_what_it_stores(steps: Iterable[LoopNest]) -> bool:
    """Whether what steps store is read by later ones at the same points alone, where it is at hand, so that stores may wait."""
    stored: set[tuple[str, Expr]] = set()
    written: set[str] = set()
    for step in steps:
        for node in walk(*roots(step)):
            if node.op is Op.LOAD and node.attr[0] in written and (node.args or node.attr not in stored):
                return False
        if any(s.mode is not StoreMode.PLAIN for s in step.stores):
            return False
        stored |= {(s.buffer, s.index) for s in step.stores if not s.args}
        written |= {s.buffer for s in step.stores}
    return True


def is_coarse(group: Group, buffers: dict[str, Buffer]) -> bool:
    """Whether all that leaves a kernel is rounded to half or bfloat16, and no step function sees what cheap operations make."""
    stores = [s for step in group.steps for s in step.stores]
    if not all(s.buffer in group.internal or buffers[s.buffer].dtype in HALVES for s in stores):
        return False
    found = list(walk(*(r for step in group.steps for r in roots(step))))
    if not any(n.op in COARSE for n in found):
        return False
    touched: set[str] = set()
    for step in group.steps:
        if any(n.op in COARSE or (n.op is Op.LOAD and n.attr[0] in touched) for n in walk(*roots(step))):
            touched |= {s.buffer for s in step.stores}
    return not any(is_step(n) and _sees(n, touched) for n in found)


def is_step(node: Node) -> bool:
    """Whether a node is a step function of a float."""
    of_float = any(a.dtype.is_float for a in node.args)
    return of_float and (node.op in STEPS or (node.op is Op.CAST and not node.dtype.is_float))


def _sees(node: Node, touched: set[str]) -> bool:
    return any(
        n.op in COARSE or n.op is Op.REDUCED or (n.op is Op.LOAD and n.attr[0] in touched)
        for n in walk(*node.args)
    )
