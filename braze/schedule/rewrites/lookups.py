"""What is looked up at single places of a temporary is computed there from what the temporary is made of.

A loss takes one number of each row of ``x - max(x)``. Looked up in memory, it would be the only reason to write the whole
difference, which is as large as the logits. A lookup of few places is cheaper made again from one element of ``x`` each.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from braze.loops.ir import Axis, LoopNest, LoopProgram, Node, Op, Store, StoreMode
from braze.loops.rewrite import Substitution, loads, nest_with_nodes, rewriter, roots, walk
from braze.schedule.facts.dependences import accesses, families
from braze.schedule.facts.domains import injective
from braze.symbolic.expr import ZERO, Expr, Symbol, product
from braze.symbolic.guess import likely_size

#: places of the temporary to one lookup, at least
FEWER = 8
#: loads that take the place of one, at most
LOADS = 4


def computed_lookups(program: LoopProgram, kept: set[str]) -> LoopProgram:
    """The program with such lookups as values; that a temporary is then not needed, others find."""
    if not any(_looked_up(step) for step in program.steps):
        return program
    made = _makers(program, kept)
    writes = _writes(program)
    family = families(program)
    steps = list(program.steps)
    for number, step in enumerate(steps):
        wanted = [n for n in _looked_up(step) if n.attr[0] in made]
        found: dict[Node, Node] = {}
        for node in wanted:
            at, maker, store = made[node.attr[0]]
            value = _value(node, maker, store, step) if at < number else None  # type: ignore[arg-type]
            between = {name for k in range(at, number + 1) for name in writes[k]}
            if value is not None and not any(family[n] in between for n in loads(store.value)):
                found[node] = value
        if found:
            steps[number] = _replaced(step, found)  # type: ignore[arg-type]
    return dataclasses.replace(program, steps=tuple(steps))


def _looked_up(step: object) -> list[Node]:
    """The loads of a step whose places are read from memory."""
    if not isinstance(step, LoopNest):
        return []
    return [n for n in walk(*roots(step)) if n.op is Op.LOAD and n.args]


def _makers(program: LoopProgram, kept: set[str]) -> dict[str, tuple[int, LoopNest, Store]]:
    """Temporary -> (number, loops, store) of what makes it, where that is one store of a value cheap enough to make again."""
    writers = Counter(name for step in program.steps for name in accesses(step).writes)
    out: dict[str, tuple[int, LoopNest, Store]] = {}
    for number, step in enumerate(program.steps):
        if not isinstance(step, LoopNest) or step.reductions:
            continue
        for s in step.stores:
            alone = writers[s.buffer] == 1 and sum(t.buffer == s.buffer for t in step.stores) == 1
            plain = s.mode is StoreMode.PLAIN and not s.args and s.buffer not in kept
            if alone and plain and _may_be_made_again(s.value) and injective(s.index, step.axes):
                out[s.buffer] = number, step, s
    return out


def _may_be_made_again(value: Node) -> bool:
    nodes = list(walk(value))
    read = [n for n in nodes if n.op is Op.LOAD]
    fixed = all(n.op not in (Op.RANDOM, Op.CHECK_INDEX, Op.INDEX, Op.MASKED) for n in nodes)
    return fixed and 0 < len(read) <= LOADS and not any(n.args for n in read)


def _writes(program: LoopProgram) -> list[set[str]]:
    """What each step writes, every storage by one name."""
    family = families(program)
    return [{family.get(name, name) for name in accesses(step).writes} for step in program.steps]


def _value(load: Node, maker: LoopNest, store: Store, reader: LoopNest) -> Node | None:
    """What a lookup gives, of what its buffer is made of; None where that is not known to be at that place, or not worth it."""
    axes = (*reader.axes, *reader.reduce_axes)
    if FEWER * _count(axes) > _count(maker.axes):
        return None
    point = _point(load, maker.axes, store.index, {a.symbol: a.extent for a in axes})
    if point is None:
        return None
    moved = Substitution(point).node(store.value)
    if not any(map(_read_there, walk(moved))):
        return None  # nobody would see that the place must exist
    value = rewriter(lambda n: Node(n.op, n.dtype, load.args, n.attr) if _read_there(n) else n)(moved)
    return value if value.dtype is load.dtype else Node(Op.CAST, load.dtype, (value,))


def _read_there(node: Node) -> bool:
    """Whether a node is a load at a place that is read from memory."""
    return node.op is Op.LOAD and any(s.place is not None for s in node.attr[1].symbols())


def _count(axes: Iterable[Axis]) -> int:
    return likely_size(product([a.extent for a in axes]))


def _point(
    load: Node, axes: tuple[Axis, ...], stored: Expr, extents: Mapping[Symbol, Expr]
) -> dict[Symbol, Expr] | None:
    """The point of the maker's axes at which it stores what the load reads."""
    index: Expr = load.attr[1]
    point: dict[Symbol, Expr] = {a.symbol: ZERO for a in axes}
    for symbol in index.symbols():
        step = index.coefficient(symbol)
        axis = next(
            (a for a in axes if stored.coefficient(a.symbol) == step and point[a.symbol] is ZERO), None
        )
        if step is None or axis is None or not _fits(symbol, axis.extent, load, extents):
            return None
        point[axis.symbol] = symbol
    return point if stored.subs(point) == index else None


def _fits(symbol: Symbol, extent: Expr, load: Node, extents: Mapping[Symbol, Expr]) -> bool:
    """Whether a symbol of a lookup's place stays below an extent."""
    if symbol in extents:
        return extents[symbol] == extent
    if symbol.place is None:
        return False
    place = load.args[symbol.place]
    return place.op is Op.CHECK_INDEX and place.attr == extent


def _replaced(step: LoopNest, found: Mapping[Node, Node]) -> LoopNest:
    return nest_with_nodes(step, rewriter(lambda n: found.get(n, n)))
