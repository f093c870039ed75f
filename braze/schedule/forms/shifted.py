"""What all rows of a kernel share, once for each place in a vector where one of them may begin.

A walk along whole vectors of rows that begin anywhere (``KernelPlan.begin``) reads a weight from where its row has its first vector: between vectors of
the weight, number by number, which takes longer than the rows themselves. So a small kernel lays it out before, as often as a vector has places:
copy ``h`` is the one whose vectors begin with number ``h`` of the weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from braze.loops import build
from braze.loops.build import nodes_of
from braze.loops.ir import Axis, Buffer, BufferKind, LoopNest, Node, Op, Store
from braze.loops.rewrite import Substitution, nest_with_nodes, rewriter, roots
from braze.schedule.facts.passes import arguments
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.fusion.canonical import borders
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.kernels import plan_kernel
from braze.symbolic.expr import ONE, Expr, Integer, axis_symbol, modulo, product
from braze.symbolic.guess import likely_size

#: rows that are worth the kernel
LEAST_ROWS = 256


def shift_shared(groups: Iterable[Group], buffers: Mapping[str, Buffer]) -> tuple[list[Group], list[Buffer]]:
    """Groups of a GPU, with kernels before those whose rows begin anywhere and read what they share; and the buffers between them."""
    out: list[Group] = []
    made: list[Buffer] = []
    for group in groups:
        plan = _worthwhile(group, buffers)
        shared = _shared(group, buffers) if plan is not None else []
        if plan is None or not shared:
            out.append(group)
        else:
            before, after, between = _shifted(group, plan, shared, buffers)
            out += [before, after]
            made += between
    return out, made


def _worthwhile(group: Group, buffers: Mapping[str, Buffer]) -> KernelPlan | None:
    """The plan of a group whose many rows begin anywhere."""
    if group.device == "cpu" or group.kind is not GroupKind.LOOPED or len(group.row_axes) != 1:
        return None
    if likely_size(product([a.extent for a in group.axes])) < LEAST_ROWS:
        return None
    plan = plan_kernel(group, dict(buffers))
    return plan if plan.begin is not None else None


def _shared(group: Group, buffers: Mapping[str, Buffer]) -> list[Node]:
    """Loads of what lies along the row as the row does, and is the same for all rows."""
    row = group.row_axes[0].symbol
    written = {s.buffer for step in group.steps for s in step.stores}
    found = (n for step in group.steps for n in nodes_of(*roots(step)))
    alike = {n: None for n in found if n.op is Op.LOAD and not n.args and n.attr[1] is row}
    return [n for n in alike if n.attr[0] not in written and n.attr[0] in arguments(group)]


def _shifted(
    group: Group, plan: KernelPlan, shared: list[Node], buffers: Mapping[str, Buffer]
) -> tuple[Group, Group, list[Buffer]]:
    """The kernel that lays out what rows share, the one that reads it there, and the buffers between them."""
    (row,), vector, begin = group.row_axes, plan.vector, plan.begin
    assert begin is not None and row.extent.value is not None
    stride = (row.extent.value // vector + 2) * vector
    head = modulo(vector - modulo(begin, Integer(vector)), Integer(vector))
    h, e = (Axis(axis_symbol(n, x), x) for n, x in (("head", Integer(vector)), ("element", row.extent)))
    along = Substitution({row.symbol: e.symbol})
    made: list[Buffer] = []
    stores: list[Store] = []
    turned: dict[Node, Node] = {}
    for node in shared:
        sizes = (Integer(vector * stride),)
        name = f"{group.name}_shifted{len(made)}"
        made.append(Buffer(name, node.dtype, sizes, (ONE,), group.device, BufferKind.TEMPORARY))
        stores.append(Store(name, place(h.symbol, e.symbol, stride, vector), along.node(node)))
        turned[node] = build.load(name, node.dtype, place(head, row.symbol, stride, vector))
    nest = LoopNest(f"{group.name}_shift", (h, e), (), (), tuple(stores), group.device, ("shift",))
    _, reads, writes = borders((nest,), {b.name for b in made})
    before = Group(
        f"{group.name}_shift", GroupKind.POINTWISE, (nest,), nest.axes, reads=reads, writes=writes, device=group.device,
        reason="what rows that begin anywhere share",
    )  # fmt: skip
    change = rewriter(lambda node: turned.get(node, node))
    steps = tuple(nest_with_nodes(step, change) for step in group.steps)
    _, reads, _ = borders(steps, {*group.writes})
    after = dataclasses.replace(
        group, steps=steps, reads=reads, shifted=tuple((b.name, stride) for b in made)
    )
    return before, after, made


def place(head: Expr, element: Expr, stride: int, vector: int) -> Expr:
    """Where an element lies in the copy for rows whose first vector begins with their number ``head``: that one on a vector, and those ahead of it before."""
    return head * stride + vector + element - head
