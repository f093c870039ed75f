"""Where in rows that one tile holds whole their extremes lie: the extreme first, then the first place that has it.

A reduction of pairs takes ten instructions a pair, since a number that is none comes before all others and places break ties; of many short rows it takes
twice as long as memory. The extreme alone takes one, and of elements that one load gives side by side it is enough to know that it is among them: these few are then read again.
"""

from __future__ import annotations

import re
from typing import Protocol

from braze.codegen.triton.accumulate import LANES, XR, R, X, identity
from braze.codegen.triton.emit import Emitter, Scope, Value
from braze.loops.build import nodes_of
from braze.loops.ir import LoopNest, Node, Op, ReduceKind, Reduction
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.schedule.gpu.kernel_plan import KernelPlan

#: no place in a row
NOWHERE = 2147483647
#: bytes that one instruction loads, and of an element of which several are taken together: of wider ones memory leaves time to look at each
VECTOR, NARROW = 16, 4


class OfRows(Protocol):
    """What a kernel's writer tells and writes of its rows."""

    group: Group
    plan: KernelPlan
    emitter: Emitter

    def full(self, value: Value, scope: Scope) -> Value: ...
    def vector(self, load: Node) -> int: ...
    def row_scope(self, scope: Scope, index: str) -> Scope: ...


class Extremes:
    """The extremes that one step of a kernel takes of rows, each found once for its value and its place."""

    def __init__(self, writer: OfRows, step: LoopNest, scope: Scope) -> None:
        self.writer = writer
        self.scope = scope
        self.placed = {(r.kind.extreme, r.value) for r in step.reductions if r.kind.finds_place}
        self.found: dict[tuple[ReduceKind | None, Node], tuple[Value, Value]] = {}

    def finds(self, reduction: Reduction) -> bool:
        """Whether a reduction asks for a place, or for an extreme whose place another one asks for."""
        return (reduction.kind.extreme, reduction.value) in self.placed

    def of(self, reduction: Reduction) -> list[Value]:
        """The result of one of them."""
        key = reduction.kind.extreme, reduction.value
        if key not in self.found:
            self.found[key] = self._extreme(reduction)
        return [self.found[key][reduction.kind.finds_place]]

    def _extreme(self, reduction: Reduction) -> tuple[Value, Value]:
        """A row's extreme, and its first place."""
        kind, value = reduction.kind.extreme, reduction.value
        assert kind is not None
        emit, scope = self.writer.emitter, self.scope
        name = self.writer.full(emit.value(value, scope), scope).name
        if emit.masks["r"]:
            name = emit.assign(f"tl.where(rmask, {name}, {identity(kind, value.dtype)})", XR, scope).name
        combine, few = f"bz_{kind.value}", self._few(value)
        if few == 1:
            along, spread = emit.along("r"), emit.placed("x")
            best = emit.assign(f"tl.reduce({name}, {along}, {combine}){spread}", X, scope)
            where = f"tl.where({_has(name, best.name, value)}, (rindex).to(tl.int32), {NOWHERE})"
            return best, emit.assign(f"tl.min({where}, {along}){spread}.to(tl.int64)", X, scope)
        shape = f"[XBLOCK, RBLOCK // {few}, {few}]"
        each = emit.assign(f"tl.reduce(tl.reshape({name}, {shape}), 2, {combine})", XR, scope).name
        best = emit.assign(f"tl.reduce({each}, 1, {combine})[:, None]", X, scope)
        places = f"{few} * tl.arange(0, RBLOCK // {few})[None, :]"
        where = f"tl.where({_has(each, best.name, value)}, {places}, {NOWHERE})"
        begin = emit.assign(f"tl.min({where}, 1)[:, None]", X, scope)
        return best, among(self.writer, value, best, begin, few, scope)

    def _few(self, value: Node) -> int:
        """Elements that one instruction loads, where what is computed of them can be computed again from memory."""
        plan, group = self.writer.plan, self.writer.group
        row, stores = {a.symbol for a in group.row_axes}, [s for step in group.steps for s in step.stores]
        assert plan.row is not None
        written = {s.buffer for s in stores}
        # a load has points side by side, not a row's elements; or elements that no thread has together
        if plan.form is not Form.ROWS or plan.together:
            return 1
        # what is stored along the row may lie where it was read
        if any(s.buffer not in group.internal and (s.args or s.index.symbols() & row) for s in stores):
            return 1
        nodes = list(nodes_of(value))
        loads = [n for n in nodes if n.op is Op.LOAD and n.attr[1].symbols() & row]
        again = all(not n.args and n.attr[0] not in written for n in loads)
        if not loads or not again or any(n.op is Op.RANDOM for n in nodes):
            return 1
        widest = max(n.dtype.itemsize for n in loads)
        few = VECTOR // widest
        whole = all(self.writer.vector(n) >= LANES for n in loads)
        return few if widest <= NARROW and whole and plan.row.block % few == 0 else 1


def _has(name: str, best: str, value: Node) -> str:
    """Whether an element is the extreme, or, where the extreme is none, no number."""
    return f"({name} == {best}) | ({name} != {name})" if value.dtype.is_float else f"{name} == {best}"


def among(writer: OfRows, value: Node, best: Value, begin: Value, few: int, scope: Scope) -> Value:
    """Which of a few elements from a place on is the extreme: the first that is, or is no number. They are read again, in names of their own."""
    emit, axes = writer.emitter, [a.symbol for a in writer.group.row_axes]
    symbols, last = {a: emit.symbols[a] for a in axes if a in emit.symbols}, emit.last
    body = Scope(
        [f"{scope.indent}rbase = tl.arange(0, {few})[None, :]"], scope.indent, outer=_of_points(scope)
    )
    writer.row_scope(body, f"{begin.name} + rbase")
    found = _has(emit.value(value, body).name, best.name, value)
    if emit.masks["r"]:
        found = f"({found}) & rmask"
    place = emit.assign(f"tl.min(tl.where({found}, rindex, {NOWHERE}), 1)", XR, body)
    emit.end(body)
    own = {"RBLOCK": str(few), "rindex": "pindex", "rmask": "pmask", "rbase": "pbase"}
    scope.lines += [
        re.sub(r"\b(RBLOCK|rindex|rmask|rbase|r\d+)\b", lambda m: own.get(m[0], f"p{m[0][1:]}"), line)
        for line in body.lines
    ]
    for a in axes:
        emit.symbols.pop(a)
    emit.symbols.update(symbols)
    emit.last = last
    return emit.assign(f"{place.name}[:, None].to(tl.int64)", X, scope)


def _of_points(scope: Scope) -> Scope:
    """What is known of a tile's points, which is so for other elements of their rows, too."""
    every = list(scope.outward())
    known = {n: v for s in reversed(every) for n, v in s.known.items() if not v.deps & R}
    stored = {k: v for s in reversed(every) for k, v in s.stored.items() if not v.deps & R}
    return Scope([], scope.indent, known, stored=stored)
