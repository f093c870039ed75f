"""What autograd's graph says of a trace: which results are one operation of its, and where their gradients go.

A result from which others are computed is seen in eager on the way: a hook on it, ``retain_grad`` and
``torch.autograd.grad(loss, result)`` get the gradient that the others lead to it. So those others are an operation of their own, of
which it is an argument, wherever all that they lead to the inputs goes through such results.

Operations that share others which save nothing go backward apart, too. What they lead there autograd adds before the common ones, so these
are an operation of their own, whose results are hidden: they stand between operations, and nobody has them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from braze.graph.private import torch_compat
from braze.support.order import on_demand
from braze.support.record import record

#: what autograd calls ``as_strided``
_WINDOW = "AsStridedBackward0"

#: what autograd calls operations that give each element elsewhere, and no more
_ORDERING = frozenset(
    ["ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "AliasBackward", "CloneBackward"]
    + ["TBackward", "TransposeBackward", "PermuteBackward", "UnsqueezeBackward", "SqueezeBackward"]
)

#: one of autograd's nodes, and which of its results
Edge = tuple[Any, int]


@record
class Operations:
    """Results by number: those together that are one operation, each behind the operations whose results it takes; and what results these are.

    ``saving``: of each operation, whether it saves anything in eager, where it goes backward once then, unless that is retained.
    ``hidden``: the last results, which are nobody's but other operations'.
    """

    groups: tuple[tuple[int, ...], ...]
    taken: tuple[int, ...] = ()
    saving: tuple[bool, ...] = ()
    hidden: tuple[Edge, ...] = ()


def operations_of(
    edges: Sequence[Edge], known: Collection[Any], between: Collection[int] | None
) -> Operations:
    """The operations of results with these histories, whose graph ends at ``known``; ``between``: those that others may take (None: nothing may be)."""
    found = _operations(edges, known, between or ())
    meetings = () if between is None else _meetings(found, edges, known, between)
    while meetings:
        hidden = [edge for edge in meetings if edge not in edges]
        every = [*edges, *hidden]
        finer = _operations(every, known, {*(between or ()), *map(every.index, meetings)})
        if all(every.index(edge) in finer.taken for edge in meetings):
            return dataclasses.replace(finer, hidden=tuple(hidden)) if _divides(finer, found) else found
        meetings = tuple(edge for edge in meetings if every.index(edge) in finer.taken)
    return found


def _operations(edges: Sequence[Edge], known: Collection[Any], between: Collection[int]) -> Operations:
    """The operations of results, of which ``between`` may be taken by others.

    Results with operations in common that save tensors are one: a backward from one frees what the others need. So are
    results that have any in common beside what one takes of the other: it would run twice. Results that have operations in common
    and save nothing at all are one, too: a backward frees nothing, and what they lead to those operations is added before them, as in eager.
    So are those that come to one leaf alone, but for results that others of them take: these stand between operations where they can.
    """
    places = {edges[i]: i for i in between if edges.count(edges[i]) == 1}
    walks = [_walk(edge, known, places) for edge in edges]
    taken = [taken for _, taken in walks]
    before = [{*on_demand(results, lambda j: sorted(taken[j]))} for results in taken]
    groups = _Groups(len(edges))
    walkers = _walkers([nodes for nodes, _ in walks])
    for node, through in walkers.items():
        if len(through) == 1:
            continue
        if saves(node):
            groups.join(through)
        elif type(node) is not torch_compat.ACCUMULATE:
            for i in through:
                groups.join([i, *before[i].intersection(through)])
    groups.settle(taken)
    savers = {i for i, (nodes, _) in enumerate(walks) if any(map(saves, nodes))}
    saving = {groups.of(i) for i in savers}
    for node, through in walkers.items():
        plain = [i for i in through if groups.of(i) not in saving]
        groups.join(groups.beside(plain, before) if type(node) is torch_compat.ACCUMULATE else plain)
    groups.settle(taken)
    crossing = {j for i in range(len(edges)) for j in taken[i] if groups.of(i) != groups.of(j)}
    found = groups.in_order(taken)
    return Operations(found, tuple(sorted(crossing)), tuple(not savers.isdisjoint(group) for group in found))


def _meetings(
    found: Operations, edges: Sequence[Edge], known: Collection[Any], between: Collection[int]
) -> tuple[Edge, ...]:
    """Where several operations come to common ones whose gradients hang on whether they are added before these."""
    if len(found.groups) < 2:
        return ()
    places = {edges[i]: i for i in between if edges.count(edges[i]) == 1}
    number = {i: n for n, group in enumerate(found.groups) for i in group}
    walks = [_walk(edge, known, places)[0] for edge in edges]
    through = _walkers(walks).items()
    common = {node for node, by in through if len({number[i] for i in by}) > 1}
    common = _beyond_order({node for node in common if type(node) is not torch_compat.ACCUMULATE})
    met: dict[Edge, None] = {}
    for walk in walks:
        for node in walk:
            if node not in common:
                met |= dict.fromkeys(e for e in node.next_functions if e[0] in common and e not in places)
    return tuple(edge for edge in met if edges.count(edge) <= 1)


def _beyond_order(nodes: set[Any]) -> set[Any]:
    """Those of some nodes that hang together with one which does more than order elements: gradients are added alike before and behind that."""
    readers: dict[Any, list[Any]] = {node: [] for node in nodes}
    for node in nodes:
        for behind, _ in node.next_functions:
            if behind in nodes:
                readers[behind].append(node)
    kept: set[Any] = set()
    pending = [node for node in nodes if type(node).__name__.rstrip("0123456789") not in _ORDERING]
    while pending:
        node = pending.pop()
        if node not in kept:
            kept.add(node)
            pending += [*readers[node], *(behind for behind, _ in node.next_functions if behind in nodes)]
    return kept


def _divides(finer: Operations, coarser: Operations) -> bool:
    """Whether no two results are one operation that were apart."""
    number = {i: n for n, group in enumerate(coarser.groups) for i in group}
    return all(len({number[i] for i in group if i in number}) <= 1 for group in finer.groups)


def _walk(
    start: Edge, known: Collection[Any], places: Mapping[Edge, int]
) -> tuple[dict[Any, None], set[int]]:
    """Autograd's nodes behind a result, up to results that it takes; and those."""
    seen: dict[Any, None] = {}
    taken = set()
    pending = [start[0]]
    while pending:
        node = pending.pop()
        if node is None or node in seen or node in known:
            continue
        seen[node] = None
        for edge in node.next_functions:
            if edge in places and edge != start:
                taken.add(places[edge])
            else:
                pending.append(edge[0])
    return seen, taken


def _walkers(walks: Sequence[Collection[Any]]) -> dict[Any, list[int]]:
    """Node -> the results on whose ways it is."""
    through: dict[Any, list[int]] = {}
    for i, nodes in enumerate(walks):
        for node in nodes:
            through.setdefault(node, []).append(i)
    return through


class _Groups:
    """Sets of results, as they come to be joined."""

    def __init__(self, count: int) -> None:
        self.roots = list(range(count))

    def of(self, i: int) -> int:
        while self.roots[i] != i:
            i = self.roots[i]
        return i

    def join(self, members: Sequence[int]) -> bool:
        """Whether they were not one set already."""
        found = {self.of(i) for i in members}
        for root in found:
            self.roots[root] = min(found)
        return len(found) > 1

    def beside(self, members: Sequence[int], before: Sequence[Collection[int]]) -> list[int]:
        """Those of some results whose sets the others' sets take nothing of; ``before``: what each takes, and what that takes."""
        sets = {self.of(i) for i in members}
        behind = {
            self.of(j)
            for i in range(len(self.roots))
            if self.of(i) in sets
            for j in before[i]
            if self.of(j) != self.of(i)
        }
        return [i for i in members if self.of(i) not in behind]

    def settle(self, taken: Sequence[set[int]]) -> None:
        """Join what cannot be apart: who takes a result of its own operation, and operations that take each other's."""
        while self._joined_takers(taken) or self._joined_circles(taken):
            pass

    def _joined_takers(self, taken: Sequence[set[int]]) -> bool:
        found = False
        for j in range(len(taken)):
            takers = [i for i, results in enumerate(taken) if j in results]
            if any(self.of(i) == self.of(j) for i in takers):
                found |= self.join([j, *takers])
        return found

    def _joined_circles(self, taken: Sequence[set[int]]) -> bool:
        behind = {self.of(i): set[int]() for i in range(len(taken))}
        for i, results in enumerate(taken):
            behind[self.of(i)] |= {self.of(j) for j in results} - {self.of(i)}
        for middle in behind:
            for ends in behind.values():
                if middle in ends:
                    ends |= behind[middle]
        circles = [[root, *(r for r in ends if root in behind[r])] for root, ends in behind.items()]
        return sum(self.join(circle) for circle in circles if len(circle) > 1) > 0

    def in_order(self, taken: Sequence[set[int]]) -> tuple[tuple[int, ...], ...]:
        members: dict[int, list[int]] = {}
        for i in range(len(self.roots)):
            members.setdefault(self.of(i), []).append(i)

        def needs(root: int) -> list[int]:
            return sorted({self.of(j) for i in members[root] for j in taken[i]} - {root})

        return tuple(tuple(members[root]) for root in on_demand(members, needs))


def comings(starts: Sequence[Edge], taken: Mapping[Edge, int]) -> tuple[dict[Any, int], dict[int, int]]:
    """For each of autograd's nodes the bits of the numbers of those from which autograd comes to it; and for each result that others take.

    A node that is come to only where its formula gives nothing for that is as one that is not.
    """
    bits: dict[Any, int] = {}

    def arrive(edge: Edge, found: int) -> None:
        known = bits.get(edge[0], 0)
        bits[edge[0]] = known if torch_compat.gives_nothing(*edge) else known | found

    for i, start in enumerate(starts):
        arrive(start, 1 << i)
    come = dict.fromkeys(taken.values(), 0)
    for node in reversed(leaves_first([node for node, _ in starts])):
        for edge in node.next_functions:
            if edge in taken:
                come[taken[edge]] |= bits[node]
            else:
                arrive(edge, bits.get(node, 0))
    return bits, come


def reached_leaves(leaves: Sequence[Any], coming: Mapping[Any, int]) -> list[int]:
    """For each leaf, the bits of those from which autograd comes to it."""
    places = {id(leaf): i for i, leaf in enumerate(leaves)}
    found = [0] * len(leaves)
    for node, bits in coming.items():
        if (at := places.get(id(getattr(node, "variable", None)))) is not None:
            found[at] = bits
    return found


def leaves_first(starts: Sequence[Any]) -> list[Any]:
    """Autograd's nodes behind some, and these, each behind all that its gradients go to."""
    return on_demand(
        [start for start in starts if start is not None],
        lambda node: [behind for behind, _ in node.next_functions if behind is not None],
    )


def behind(starts: list[Edge], known: Collection[Any]) -> Iterator[Edge]:
    """Autograd's nodes from some on back to the leaves, each once for each of its results that is reached."""
    pending, seen, expanded = starts, set(), {None, *known}
    while pending:
        reached = pending.pop()
        node = reached[0]
        if node is None or node in known or reached in seen:
            continue
        seen.add(reached)
        yield reached
        if node not in expanded:
            expanded.add(node)
            pending += node.next_functions


def is_written_past_its_history(tensor: torch.Tensor) -> bool:
    """Whether a write in place is more to autograd than that new contents are computed from a tensor's old ones.

    The gradient of what a view held goes to its base at once: not to hooks on the view, nor through a window on another
    view, which leads there only what that sees. And ``retain_grad`` is of the new contents, whoever reads them.
    """
    if not tensor.requires_grad or tensor.is_leaf:
        return False
    if tensor.retains_grad or not tensor._is_view():
        return tensor.retains_grad
    if tensor._backward_hooks:
        return True
    assert tensor._base is not None
    node, whole = tensor.grad_fn, tensor._base.grad_fn
    while node is not None and node is not whole and node.next_functions:
        made_of = node.next_functions[0][0]
        if node.name() == _WINDOW and made_of is not whole:
            return True
        node = made_of
    return False


def leads_nowhere(value: torch.Tensor) -> bool:
    """Whether a value says that it requires a gradient and has none to give: a view, made without gradients, of what requires one."""
    if not (value.requires_grad and value._is_view()) or value.grad_fn is not None:
        return False
    with torch.enable_grad():
        node: Any = value.view_as(value).grad_fn
    return node.next_functions[0][0] is None  # else the program has made a leaf of it


def is_function(node: Any) -> bool:
    """Whether a node is one of the program's own, an ``autograd.Function``."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def saves(node: Any) -> bool:
    """Whether an operation may save tensors, as far as its class tells."""
    kind: Any = type(node)
    return is_function(node) or _kind_saves(kind)


@functools.cache
def _kind_saves(kind: Any) -> bool:
    if kind is torch_compat.ACCUMULATE:
        return False
    plain = kind.__name__.rstrip("0123456789").endswith("Backward") and kind.__name__[-1].isdigit()
    return not plain or any(name.startswith("_raw_saved_") for name in dir(kind))
