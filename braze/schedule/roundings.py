"""Roundings to half types that nobody sees are left out: inside a kernel values stay in the type in which they are computed.

Eager rounds what each operation gives. Lowering does so too, by casts that are marked (``ROUNDING``); what the program itself converts is
not marked, and stays. Of the marked ones those stay that somebody sees, and then for all who use the value in the kernel, so
that it is one value:

1. of values that the kernel stores in memory: what is read there later is what was used here;
2. of values by which something is decided: compared, made whole, made an integer or a bool, taken apart in bits, looked for its place.
   A fraction x - floor(x) stays within 0 and 1, and eager's ties stay ties.

What a kernel keeps for itself between its steps is kept wide too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from braze.loops.build import nodes_of
from braze.loops.dtypes import HALVES
from braze.loops.ir import DType, LoopNest, LoopProgram, Node, Op, Reduction, Store, StoreMode, TemplateCall
from braze.loops.rewrite import roots
from braze.schedule.passes import is_step
from braze.schedule.records import Group

_CHOICES = (Op.WHERE, Op.MASKED)


def without_roundings(program: LoopProgram, groups: Sequence[Group]) -> tuple[LoopProgram, list[Group]]:
    """The groups, and the program whose buffers inside them are as wide as what they hold."""
    kernels = [_Kernel(g) for g in groups]
    wide = _widened(program, kernels)
    for kernel in kernels:
        kernel.wide = wide
    out = [k.rewritten() if k.found else k.group for k in kernels]
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
    while True:
        refused = {
            s.buffer
            for k in kernels
            for step in k.group.steps
            for s in step.stores
            if s.buffer in wide and (s.mode is not StoreMode.PLAIN or not k.is_wide(s.value, wide))
        }
        if not refused:
            return wide
        wide -= refused


class _Kernel:
    """The expressions of one group, and which of their roundings somebody sees."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.wide: Collection[str] = ()
        #: values that are seen rounded, and buffers inside whose values are
        self.kept: set[Node] = set()
        self.seen: set[str] = set()
        self.memo: dict[Node, Node] = {}
        steps = _steps(group)
        every = nodes_of(*(r for step in steps for r in roots(step)))
        #: whether there is any rounding that may be left out
        self.found = any(n.op is Op.CAST and n.attr is not None for n in every)
        if self.found:
            self._look(steps, every)

    def _look(self, steps: Sequence[LoopNest], every: Iterable[Node]) -> None:
        for s in (s for step in steps for s in step.stores):
            if s.buffer not in self.group.internal:
                self._keep(s.value)
        decided = [a for n in every if is_step(n) or n.op is Op.BITCAST for a in n.args]
        decided += [r.value for step in steps for r in step.reductions if r.kind.finds_place]
        visited: set[Node] = set()
        while decided:
            node = decided.pop()
            if node in visited or not node.dtype.is_float:
                continue
            visited.add(node)
            if node.dtype in HALVES:
                self._keep(node)
            if node.dtype not in HALVES or node.op in _CHOICES:
                decided.extend(node.args)
        for s in (s for step in steps for s in step.stores):
            if s.buffer in self.seen:
                self._keep(s.value)

    def _keep(self, value: Node) -> None:
        if value.dtype in HALVES:
            self.kept.add(value)
            if value.op is Op.LOAD:
                self.seen.add(value.attr[0])

    def is_wide(self, value: Node, wide: Collection[str]) -> bool:
        """Whether a value of a half type need not be rounded, where the buffers ``wide`` are not."""
        if value in self.kept:
            return False
        if value.op is Op.CAST:
            return value.attr is not None
        if value.op is Op.LOAD:
            return value.attr[0] in wide
        return value.op in _CHOICES and any(
            a.dtype in HALVES and self.is_wide(a, wide) for a in value.args[1:]
        )

    # -- the kernel without them

    def rewritten(self) -> Group:
        """The group, its expressions without what nobody sees."""
        group, call = self.group, self.group.call
        steps = tuple(map(self._nest, group.steps))
        if isinstance(call, TemplateCall):
            prologue = tuple(map(self._nest, call.prologue))
            call = dataclasses.replace(
                call, epilogue=tuple(map(self._store, call.epilogue)), prologue=prologue
            )
        return dataclasses.replace(group, steps=steps, call=call)

    def _nest(self, nest: LoopNest) -> LoopNest:
        reductions = tuple(Reduction(r.kind, r.dtype, self.node(r.value)) for r in nest.reductions)
        return dataclasses.replace(nest, reductions=reductions, stores=tuple(map(self._store, nest.stores)))

    def _store(self, s: Store) -> Store:
        value = self.node(s.value)
        if s.buffer in self.wide:
            value = self._as_computed(s.value, DType.F32)
        return Store(s.buffer, s.index, value, s.mode, tuple(map(self.node, s.args)))

    def node(self, root: Node) -> Node:
        """An expression without roundings that nobody sees."""
        memo = self.memo
        for n in nodes_of(root, known=memo):
            memo[n] = self._changed(n)
        return memo[root]

    def _changed(self, n: Node) -> Node:
        args = tuple(self.memo[a] for a in n.args)
        if n.op is Op.CAST and n.dtype in (DType.F32, DType.F64) and self.is_wide(n.args[0], self.wide):
            return self._as_computed(n.args[0], n.dtype)
        if n.op is Op.LOAD and n.dtype in HALVES and n.attr[0] in self.wide:
            return Node(Op.CAST, n.dtype, (Node(Op.LOAD, DType.F32, args, n.attr),))
        if n.op is Op.CAST:
            return Node(Op.CAST, n.dtype, args)
        same = all(x is y for x, y in zip(args, n.args, strict=True))
        return n if same else Node(n.op, n.dtype, args, n.attr)

    def _as_computed(self, n: Node, dtype: DType) -> Node:
        """A value of a half type, in a wider one; what is under it is changed already."""
        if not self.is_wide(n, self.wide):
            return _cast(self.memo[n], dtype)
        args = [self.memo[a] for a in n.args]
        if n.op is Op.CAST:
            return _cast(args[0], dtype)
        if n.op is Op.LOAD:
            return _cast(Node(Op.LOAD, DType.F32, tuple(args), n.attr), dtype)
        condition, x, y = n.args
        return Node(
            n.op,
            dtype,
            (self.memo[condition], self._as_computed(x, dtype), self._as_computed(y, dtype)),
            n.attr,
        )


def _cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else Node(Op.CAST, dtype, (x,))


def _steps(group: Group) -> list[LoopNest]:
    """The loops of a group; of a template's call, what is around its products."""
    call = group.call
    if not isinstance(call, TemplateCall):
        return list(group.steps)
    around = LoopNest(call.name, call.axes, (), (), call.epilogue, call.device)
    return [*call.prologue, around]
