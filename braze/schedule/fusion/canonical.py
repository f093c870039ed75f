"""Blocks -> groups in a canonical form, so that equal kernels have equal text.

1. Values stored and loaded again at the same point are forwarded; stores nobody needs are dropped.
2. Adjacent axes are merged wherever all accesses of the group stay linear.
3. Axes are called i0, i1, ... and r0, r1, ....
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from braze.loops.ir import Axis, Buffer, LoopNest, Node, Op, Store, StoreMode, TemplateCall
from braze.loops.rewrite import Substitution, index_exprs, loads, nest_with_nodes, rewriter, roots, walk
from braze.loops.simplify import merged
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import accesses
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.fusion.blocks import Block, Part, Role, Shape, moved
from braze.schedule.fusion.flat_conditions import flattened
from braze.symbolic.expr import ONE, Expr, Symbol, axis_symbol


def group_of(
    block: Block, number: str, needed: set[str], buffers: Mapping[str, Buffer], choices: Choices
) -> Group:
    """The group of a block; ``needed``: the buffers somebody outside of it reads."""
    if block.shape is Shape.EXTERN:
        return _extern(block, number)
    forwarded, passes = forward(block, buffers, choices)
    parts = _flat(block, drop_unneeded(forwarded, needed))
    axes, rows, substitution = canonical_axes(block, parts)
    steps = tuple(
        one_nest(tuple(moved(p, substitution, axes, rows, p.role).nest for p in run))
        for run in runs_of(parts, passes)
    )
    if block.shape is Shape.TEMPLATE:
        return _template(block, steps[0], number)
    internal, reads, writes = borders(steps, needed)
    kind = GroupKind.POINTWISE
    if block.shape is Shape.ROW:
        widest = max(r.dtype.itemsize for s in steps for r in s.reductions)
        kind = choices.reduction_kind([a.extent for a in rows], widest)
    name = f"{_language(block.device)}_{kind.value}_fused_{_ops_text(steps)}_{number}"
    return Group(
        name, kind, steps, axes, rows, internal, None, reads, writes, block.device, "; ".join(block.reasons)
    )


def _language(device: str) -> str:
    return "cpu" if device == "cpu" else "triton"


def _extern(block: Block, number: str) -> Group:
    assert block.call is not None
    found = block.accesses
    name = f"{block.call.name}_{number}"
    reads, writes = (
        tuple(sorted(n for n in names if not n.startswith("<"))) for names in (found.reads, found.writes)
    )
    return Group(name, GroupKind.EXTERN, call=block.call, reads=reads, writes=writes, device=block.device)


def _template(block: Block, nest: LoopNest, number: str) -> Group:
    call = block.call
    assert isinstance(call, TemplateCall)
    made = dataclasses.replace(call, axes=nest.axes, epilogue=nest.stores, ops=_ops((call, nest)))
    found = accesses(made)
    reads, writes = tuple(sorted(found.reads)), tuple(sorted(found.writes))
    name = f"{_language(block.device)}_tem_fused_{'_'.join(made.ops[:6]) or call.kind}_{number}"
    reason = "; ".join(block.reasons)
    return Group(name, GroupKind.TEMPLATE, (), nest.axes, (), (), made, reads, writes, block.device, reason)


@dataclasses.dataclass(slots=True)
class _Known:
    """A value stored earlier in the block, and in which pass."""

    passes: int
    role: Role
    value: Node


class _Forwarding:
    """What is known of a block's buffers while its steps are walked in order."""

    def __init__(self, buffers: Mapping[str, Buffer], choices: Choices) -> None:
        self.buffers = buffers
        self.choices = choices
        self.passes = 0
        self.known: dict[tuple[str, Expr], _Known] = {}
        self.written: dict[str, int] = {}  # buffer -> the last pass that wrote it

    def part(self, part: Part) -> Part:
        """The part with known values in place of loads; its stores become known."""

        def replace(node: Node) -> Node:
            if node.op is Op.LOAD and not node.args:
                found = self.known.get(node.attr)
                if found is not None and self.usable(found, part.role):
                    return found.value
            return node

        nest = nest_with_nodes(part.nest, rewriter(replace))
        for s in nest.stores:
            self.forget(s)
        for s in nest.stores:
            self.stored(s, part.role)
        return Part(part.number, nest, part.role)

    def usable(self, found: _Known, role: Role) -> bool:
        """Whether a stored value may be had without loading it.

        In its own pass it is at hand. In a later pass it is computed again: that must be cheap, over the same
        points, and from buffers that nothing has written since its pass began.
        """
        if found.role is role and found.passes == self.passes:
            return True
        same_points = found.role is role or (found.role is Role.ROW and role is Role.REDUCE)
        return same_points and self.choices.recompute(found.value) and self.unchanged(found)

    def unchanged(self, found: _Known) -> bool:
        return all(
            self.written.get(n.attr[0], -1) < found.passes for n in walk(found.value) if n.op is Op.LOAD
        )

    def forget(self, s: Store) -> None:
        for key in [k for k in self.known if k[0] == s.buffer]:
            del self.known[key]

    def stored(self, s: Store, role: Role) -> None:
        self.written[s.buffer] = self.passes
        if s.mode is StoreMode.PLAIN and not s.args and role is not Role.REDUCE:
            dtype = self.buffers[s.buffer].dtype.stored
            value = s.value if s.value.dtype is dtype else Node(Op.CAST, dtype, (s.value,))
            self.known[s.buffer, s.index] = _Known(self.passes, role, value)


def forward(
    block: Block, buffers: Mapping[str, Buffer], choices: Choices
) -> tuple[list[Part], dict[int, int]]:
    """Replace loads of what earlier steps of the block stored at the same points by the values; also each part's pass.

    Adjacent steps over the same points are one pass, whose loads come before its stores.
    """
    state = _Forwarding(buffers, choices)
    out: list[Part] = []
    passes: dict[int, int] = {}
    for part in block.parts:
        if out and (part.role is not out[-1].role or part.role is Role.REDUCE):
            state.passes += 1
        out.append(state.part(part))
        passes[part.number] = state.passes
    return out, passes


def runs_of(parts: list[Part], passes: Mapping[int, int]) -> list[list[Part]]:
    """The parts of each nest: passes over the same points that are left side by side, unless one loads what another stores."""
    runs: list[list[Part]] = []
    for _, several in groupby(parts, lambda part: passes[part.number]):
        run = list(several)
        before = runs[-1] if runs else run
        stored = {s.buffer for part in before for s in part.nest.stores}
        if runs and before[0].role is run[0].role is not Role.REDUCE and stored.isdisjoint(_loaded(run)):
            before += run
        else:
            runs.append(run)
    return runs


def _loaded(parts: Iterable[Part]) -> set[str]:
    return loads(*(root for part in parts for root in roots(part.nest)))


def drop_unneeded(parts: list[Part], needed: set[str]) -> list[Part]:
    """Drop stores that nobody reads, last step first, and steps without stores."""
    read: set[str] = set(needed)
    out: list[Part] = []
    for part in reversed(parts):
        nest = part.nest
        stores = tuple(s for s in nest.stores if s.buffer in read)
        if not stores:
            continue
        if len(stores) != len(nest.stores):
            nest = dataclasses.replace(nest, stores=stores)
        out.append(Part(part.number, nest, part.role))
        read |= _loaded(out[-1:])
    return out[::-1] or parts[-1:]


def _flat(block: Block, parts: list[Part]) -> list[Part]:
    """The parts of a processor's points with conditions that let short rows become one axis."""
    if block.device != "cpu" or block.shape is not Shape.POINT:
        return parts
    values = [root for p in parts for root in roots(p.nest)]
    change = flattened(block.axes, values, {s.index for p in parts for s in p.nest.stores})
    return (
        parts if change is None else [Part(p.number, nest_with_nodes(p.nest, change), p.role) for p in parts]
    )


def canonical_axes(
    block: Block, parts: list[Part]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Substitution]:
    """Merge and rename the axes of a block; the substitution carries the old symbols over."""
    indices = {e for p in parts for e in index_exprs(p.nest)}
    if block.shape is Shape.TEMPLATE:
        return block.axes, (), Substitution({})
    mapping: dict[Symbol, Expr] = {}
    axes = merged(block.axes, indices, "i", mapping)
    rows = merged(block.row_axes, indices, "r", mapping)
    if block.shape is Shape.ROW and not rows:
        rows = (Axis(axis_symbol("r0", ONE), ONE),)  # a row of one element is still a row
    return axes, rows, Substitution(mapping)


def one_nest(steps: tuple[LoopNest, ...]) -> LoopNest:
    """One nest with all stores, of steps over the same points; all values are computed before any is stored."""
    if len(steps) == 1:
        return steps[0]
    last: dict[object, Store] = {}
    for k, s in enumerate(s for step in steps for s in step.stores):
        last[(s.buffer, s.index) if s.mode is StoreMode.PLAIN else k] = s
    stores = tuple(last.values())
    return dataclasses.replace(steps[-1], stores=stores, ops=_ops(steps))


def borders(
    steps: tuple[LoopNest, ...], needed: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(internal, reads, writes) of the steps."""
    reads: set[str] = set()
    writes: set[str] = set()
    first_read: set[str] = set()
    for step in steps:
        found = accesses(step)
        first_read |= set(found.reads) - writes
        reads |= set(found.reads)
        writes |= set(found.writes)
    internal = {n for n in writes if n not in needed and n not in first_read}
    return tuple(sorted(internal)), tuple(sorted(reads - internal)), tuple(sorted(writes - internal))


def part_of(
    group: Group,
    ending: str,
    kind: GroupKind,
    steps: Sequence[LoopNest],
    axes: tuple[Axis, ...],
    rows: tuple[Axis, ...],
    needed: set[str],
    why: str,
) -> Group:
    """The kernel of some of a group's steps, from which what is ``needed`` is stored; ``why``: what ``explain`` says of it."""
    if not rows:
        steps = [dataclasses.replace(step, axes=axes) for step in steps]
    internal, reads, writes = borders(tuple(steps), needed)
    reason = "; ".join(filter(None, (group.reason, why)))
    return dataclasses.replace(
        group, name=f"{group.name}_{ending}", kind=kind, steps=tuple(steps), axes=axes, row_axes=rows, internal=internal,
        reads=reads, writes=writes, reason=reason,
    )  # fmt: skip


def _ops(steps: tuple[LoopNest | TemplateCall, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op for step in steps for op in step.ops))


def _ops_text(steps: tuple[LoopNest, ...]) -> str:
    return "_".join(_ops(steps)[:6]) or "copy"
