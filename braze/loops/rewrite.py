"""Walk and change scalar nodes and loop nests: what they hold, and other symbols or nodes in it.

Nodes are interned, so each function keeps a memo by node and an unchanged node comes back itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from braze.loops.ir import Axis, LoopNest, Node, Op, Reduction, Store
from braze.symbolic.expr import Expr, Symbol

SymbolMap = Mapping[Symbol, Expr]


class Substitution:
    """Replaces symbols in expressions, nodes and stores; remembers what it has done."""

    def __init__(self, mapping: SymbolMap) -> None:
        self.mapping = {s: e for s, e in mapping.items() if s is not e}
        self._exprs: dict[Expr, Expr] = {}
        self._nodes: dict[Node, Node] = {}

    def expr(self, e: Expr) -> Expr:
        if not self.mapping:
            return e
        found = self._exprs.get(e)
        if found is None:
            found = self._exprs[e] = e.subs(self.mapping)
        return found

    def node(self, node: Node) -> Node:
        if not self.mapping:
            return node
        return rewrite(node, self._replace, self._nodes)

    def store(self, store: Store) -> Store:
        return with_nodes(store, self.node, self.expr(store.index))

    def nest(self, nest: LoopNest, axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...]) -> LoopNest:
        """The nest over other axes."""
        return nest_with_nodes(nest, self.node, self.expr, axes=axes, reduce_axes=reduce_axes)

    def _replace(self, node: Node) -> Node:
        attr = map_attr(node.attr, self.expr)
        return node if attr is node.attr else Node(node.op, node.dtype, node.args, attr)


def rewriter(replace: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """What rebuilds expressions with ``replace`` applied to every node; it remembers what it has done."""
    memo: dict[Node, Node] = {}
    return lambda node: rewrite(node, replace, memo)


def reading(known: Mapping[tuple[str, Expr], Node]) -> Callable[[Node], Node]:
    """What rebuilds expressions with the nodes in ``known`` in place of loads of (buffer, index)."""
    return rewriter(lambda n: known.get(n.attr, n) if n.op is Op.LOAD and not n.args else n)


def with_results(store: Store, result: Callable[[Node], Node]) -> Store:
    """The store with ``result`` of each result of a reduction that it names."""
    return with_nodes(store, rewriter(lambda n: result(n) if n.op is Op.REDUCED else n))


def rewrite(node: Node, replace: Callable[[Node], Node], memo: dict[Node, Node]) -> Node:
    """Rebuild an expression bottom-up with ``replace`` applied to every node."""
    stack: list[Any] = [node]
    while stack:
        n = stack.pop()
        if n is None:  # the arguments of the one below are done
            n = stack.pop()
            args = tuple([memo[a] for a in n.args])
            memo[n] = replace(n if args == n.args else Node(n.op, n.dtype, args, n.attr))
        elif n not in memo:
            if n.args:
                stack += (n, None)
                stack += n.args
            else:
                memo[n] = replace(n)
    return memo[node]


def with_nodes(store: Store, node: Callable[[Node], Node], index: Expr | None = None) -> Store:
    """The store with each of its expressions as ``node`` makes it; at its place, or at ``index``."""
    args = tuple(map(node, store.args))
    return Store(store.buffer, store.index if index is None else index, node(store.value), store.mode, args)


def nest_with_nodes(
    nest: LoopNest,
    node: Callable[[Node], Node],
    index: Callable[[Expr], Expr] | None = None,
    *,
    axes: tuple[Axis, ...] | None = None,
    reduce_axes: tuple[Axis, ...] | None = None,
) -> LoopNest:
    """The same of all that a nest evaluates, over its axes or other ones."""
    reductions = tuple(Reduction(r.kind, r.dtype, node(r.value)) for r in nest.reductions)
    stores = tuple(with_nodes(s, node, None if index is None else index(s.index)) for s in nest.stores)
    over = nest.axes if axes is None else axes
    reduced = nest.reduce_axes if reduce_axes is None else reduce_axes
    return dataclasses.replace(nest, axes=over, reduce_axes=reduced, reductions=reductions, stores=stores)


def map_attr(attr: object, f: Callable[[Expr], Expr]) -> object:
    """Apply ``f`` to the expressions in a node's ``attr`` (bare, or inside a tuple)."""
    if isinstance(attr, Expr):
        return f(attr)
    if isinstance(attr, tuple):
        out = tuple(map_attr(a, f) for a in attr)
        return attr if all(x is y for x, y in zip(out, attr, strict=True)) else out
    return attr


def walk(*roots: Node) -> Iterator[Node]:
    """Every node under ``roots`` once, in no order; ``nodes_of`` has one."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(node.args)


def loads(*found: Node) -> set[str]:
    """The buffers that some expressions read."""
    return {n.attr[0] for n in walk(*found) if n.op is Op.LOAD}


def roots(nest: LoopNest) -> Iterator[Node]:
    """The expressions a nest evaluates: reductions' values, stores' values and indirect indices."""
    for r in nest.reductions:
        yield r.value
    for s in nest.stores:
        yield s.value
        yield from s.args


def store_roots(stores: Iterable[Store]) -> tuple[Node, ...]:
    """The expressions that some stores evaluate."""
    return tuple(n for s in stores for n in (*s.args, s.value))


def index_exprs(nest: LoopNest) -> Iterator[Expr]:
    """Every expression over the nest's axes: indices of loads and stores, index values, bounds."""
    for s in nest.stores:
        yield s.index
    for node in walk(*roots(nest)):
        yield from attr_exprs(node.attr)


def attr_exprs(attr: object) -> Iterator[Expr]:
    """The expressions in a node's ``attr``."""
    if isinstance(attr, Expr):
        yield attr
    elif isinstance(attr, tuple):
        for a in attr:
            yield from attr_exprs(a)
