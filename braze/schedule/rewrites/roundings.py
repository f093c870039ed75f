"""Roundings to half types that nobody sees are left out: inside a kernel values stay in the type in which they are computed.

Eager rounds what each operation gives. Lowering does so too, by casts that are marked (``ROUNDING``); what the program itself converts is
not marked, and stays. Of the marked ones those stay that somebody sees, and then for all who use the value in the kernel, so
that it is one value:

1. of values that the kernel stores in memory: what is read there later is what was used here;
2. of values by which something is decided: compared, made whole, made an integer or a bool, taken apart in bits, looked for its place,
   an exponent, whole or not.
   A fraction x - floor(x) stays within 0 and 1, and eager's ties stay ties.

What a kernel keeps for itself between its steps is kept wide too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from braze.loops.build import cast, nodes_of
from braze.loops.dtypes import HALVES
from braze.loops.ir import DType, LoopNest, LoopProgram, Node, Op, Reduction, Store, StoreMode, TemplateCall
from braze.loops.rewrite import roots
from braze.schedule.facts.passes import is_step
from braze.schedule.facts.records import Group

_CHOICES = (Op.WHERE, Op.MASKED)


def without_roundings(program: LoopProgram, groups: Sequence[Group]) -> tuple[LoopProgram, list[Group]]:
    """The groups, and the program whose buffers inside them are as wide as what they hold."""
    kernels = [_Kernel(g) for g in groups]
    wide = _widened(program, kernels)
    out = [k.rewritten(wide) if k.found else k.group for k in kernels]
    if not wide:
        return program, out
    buffers = tuple(dataclasses.replace(b, dtype=DType.F32) if b.name in wide else b for b in program.buffers)
    return dataclasses.replace(program, buffers=buffers), out


def _widened(program: LoopProgram, kernels: Sequence[_Kernel]) -> set[str]:
    """The buffers of half types that only lie inside kernels, and get nothing but values that need not be rounded."""
    halves = {b.name for b in program.buffers if b.dtype in HALVES}
    wide = halves & {n for k in kernels for n in k.group.internal}
    for k in kernels:
        wide -= k.seen
        wide -= {n for n in (*k.group.reads, *k.group.writes) if n not in k.group.internal}
    refused = wide
    while refused:
        refused = set().union(*(k.refused(wide) for k in kernels))
        wide = wide - refused
    return wide


class _Kernel:
    """The expressions of one group, and which of their roundings somebody sees."""

    def __init__(self, group: Group) -> None:
        self.group = group
        #: values that are seen rounded, and buffers inside whose values are
        self.kept: set[Node] = set()
        self.seen: set[str] = set()
        self.steps = _steps(group)
        self.stores = [s for step in self.steps for s in step.stores]
        self.nodes = nodes_of(*(r for step in self.steps for r in roots(step)))
        #: whether there is any rounding that may be left out
        self.found = any(n.op is Op.CAST and n.attr is not None for n in self.nodes)
        if self.found:
            self._look()

    def _look(self) -> None:
        """Find what is stored in memory, or decided by."""
        for s in self.stores:
            if s.buffer not in self.group.internal:
                self._keep(s.value)
        decided = [a for n in self.nodes if is_step(n) or n.op is Op.BITCAST for a in n.args]
        decided += [n.args[1] for n in self.nodes if n.op is Op.POW]
        decided += [r.value for step in self.steps for r in step.reductions if r.kind.finds_place]
        visited: set[Node] = set()
        while decided:
            node = decided.pop()
            if node in visited or not node.dtype.is_float:
                continue
            visited.add(node)
            self._keep(node)
            if node.dtype not in HALVES or node.op in _CHOICES:
                decided.extend(node.args)
        for s in self.stores:
            if s.buffer in self.seen:
                self._keep(s.value)

    def _keep(self, value: Node) -> None:
        if value.dtype in HALVES:
            self.kept.add(value)
            if value.op is Op.LOAD:
                self.seen.add(value.attr[0])

    def refused(self, wide: Collection[str]) -> set[str]:
        """Of the buffers ``wide``, those that get a value here that is seen, or has been rounded before."""
        mine = [s for s in self.stores if s.buffer in wide]
        if not mine:
            return set()
        free = self.unseen(wide)
        return {s.buffer for s in mine if s.mode is not StoreMode.PLAIN or s.value not in free}

    def unseen(self, wide: Collection[str]) -> set[Node]:
        """The values of half types that nobody sees rounded, where the buffers ``wide`` are not."""
        free: set[Node] = set()
        for n in self.nodes:
            if n.dtype not in HALVES or n in self.kept:
                continue
            if (
                (n.op is Op.CAST and n.attr is not None)
                or (n.op is Op.LOAD and n.attr[0] in wide)
                or (n.op in _CHOICES and not free.isdisjoint(n.args[1:]))
            ):
                free.add(n)
        return free

    def rewritten(self, wide: Collection[str]) -> Group:
        """The group, its expressions without what nobody sees."""
        change = _Change(self.unseen(wide), wide)
        for n in self.nodes:
            change.node(n)
        group, call = self.group, self.group.call
        if isinstance(call, TemplateCall):
            prologue = tuple(map(change.nest, call.prologue))
            call = dataclasses.replace(
                call, epilogue=tuple(map(change.store, call.epilogue)), prologue=prologue
            )
        return dataclasses.replace(group, steps=tuple(map(change.nest, group.steps)), call=call)


class _Change:
    """What expressions become, arguments before users: as they are read, and values of ``free`` as they are computed."""

    def __init__(self, free: Collection[Node], wide: Collection[str]) -> None:
        self.free = free
        self.wide = wide
        self.made: dict[Node, Node] = {}
        self.computed: dict[Node, Node] = {}

    def node(self, n: Node) -> None:
        args = tuple(self.made[a] for a in n.args)
        if n in self.free:
            self.computed[n] = self._as_computed(n, args)
        if n.op is Op.CAST and n.dtype in (DType.F32, DType.F64) and n.args[0] in self.free:
            self.made[n] = cast(self.computed[n.args[0]], n.dtype)
        elif n.op is Op.LOAD and n in self.free:
            self.made[n] = Node(Op.CAST, n.dtype, (self.computed[n],))
        elif n.op is Op.CAST:
            self.made[n] = Node(Op.CAST, n.dtype, args)
        else:
            same = all(x is y for x, y in zip(args, n.args, strict=True))
            self.made[n] = n if same else Node(n.op, n.dtype, args, n.attr)

    def _as_computed(self, n: Node, args: tuple[Node, ...]) -> Node:
        """A value of a half type in float32."""
        if n.op is Op.CAST:
            return cast(args[0], DType.F32)
        if n.op is Op.LOAD:
            return Node(Op.LOAD, DType.F32, args, n.attr)
        branches = [self.computed.get(a, cast(self.made[a], DType.F32)) for a in n.args[1:]]
        return Node(n.op, DType.F32, (args[0], *branches), n.attr)

    def nest(self, nest: LoopNest) -> LoopNest:
        reductions = tuple(Reduction(r.kind, r.dtype, self.made[r.value]) for r in nest.reductions)
        return dataclasses.replace(nest, reductions=reductions, stores=tuple(map(self.store, nest.stores)))

    def store(self, s: Store) -> Store:
        value = self.computed[s.value] if s.buffer in self.wide else self.made[s.value]
        return Store(s.buffer, s.index, value, s.mode, tuple(self.made[a] for a in s.args))


def _steps(group: Group) -> list[LoopNest]:
    """The loops of a group; of a template's call, what is around its products."""
    call = group.call
    if not isinstance(call, TemplateCall):
        return list(group.steps)
    around = LoopNest(call.name, call.axes, (), (), call.epilogue, call.device)
    return [*call.prologue, around]
