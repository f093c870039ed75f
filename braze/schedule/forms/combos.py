"""Small kernels of a GPU that have nothing in common but what launches take, as one kernel: lists of tensors of different sizes, unrelated siblings.

Each member keeps its own points, masks and tile, and has a range of the kernel's programs. Members only move forward in the order of groups, to
where the first of them stands, so that all that they read is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from braze.loops.ir import Buffer, BufferKind, BufferView, ExternCall, LoopProgram, Op
from braze.loops.rewrite import roots, walk
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import edges, families, group_accesses
from braze.schedule.facts.passes import arguments, kinds_of, size_symbols
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.schedule.gpu.kernels import plan_kernel
from braze.schedule.gpu.tile_sizes import PLAIN, power
from braze.symbolic.expr import product

#: pointers of a kernel: they and what Triton adds have 4,096 bytes, and our launcher takes 400
POINTERS = 360
#: members of a kernel, and kinds of them, each of which is a text of its own that is built
MEMBERS, KINDS = 64, 8
#: operations of all kinds of a kernel together
OPERATIONS = 400
#: groups that a member may pass on its way forward
REACH = 400
#: bytes of temporaries that begin to live earlier by that, of a member and of a kernel
EARLIER, EARLIER_IN_ALL = 1 << 20, 16 << 20
#: warps of programs without rows, elements of each at most and at least
POINT_WARPS, MOST, LEAST = 4, 1024, 256
#: elements of a row that a program takes at once, and its warps; rows that are few
ROW_BLOCK, ROW_WARPS, FEW_ROWS = 2048, 8, 132
#: programs of each multiprocessor that are enough for programs of many elements
ENOUGH = 4


@dataclasses.dataclass(slots=True)
class _Open:
    """A kernel that may take more members."""

    at: int
    members: list[Group]
    pointers: set[str]
    kinds: dict[object, int]
    earlier: int = 0


def combined(
    program: LoopProgram, groups: Sequence[Group], kept: AbstractSet[str], choices: Choices
) -> list[Group]:
    """The groups, in order, with small independent ones as one."""
    return _Combiner(program, groups, kept, choices).run()


class _Combiner:
    def __init__(
        self, program: LoopProgram, groups: Sequence[Group], kept: AbstractSet[str], choices: Choices
    ) -> None:
        self.groups = groups
        self.choices = choices
        self.buffers = {b.name: b for b in program.buffers}
        self.kept = kept
        made = frozenset(program.made)
        found = [group_accesses(g, made, self.buffers) for g in groups]
        self.before = edges(found, families(program))
        #: what is to stay as it is for as long as a group may fail
        self.inputs = {name for name, _ in program.again} | {
            b.name for b in program.buffers if b.kind in (BufferKind.INPUT, BufferKind.CONSTANT)
        }
        for output, _ in program.renewed:
            view = program.outputs[output]
            if isinstance(view, BufferView):
                self.inputs.add(view.buffer)
        self.open: dict[object, list[_Open]] = {}
        #: where each group stands: the place of the first member of its kernel
        self.at: dict[int, int] = {}

    def run(self) -> list[Group]:
        taken: dict[int, _Open] = {}
        failing = alone = -1
        for k, group in enumerate(self.groups):
            self.at[k] = k
            if _may_fail(group):
                failing = k
            key = shape_of(group, self.buffers)
            if key is None:
                alone = k
                continue
            least = max([self.at[n] for n in self.before[k]], default=-1)
            if not self.inputs.isdisjoint(group.writes):
                least = max(least, failing)
            if any(self.choices.bytes_of(self.buffers[n]) > EARLIER for n in group.writes):
                least = max(least, alone)  # what is large is not to be there while something else runs
            candidates = self.open.setdefault(key, [])
            for kernel in candidates:
                if kernel.at > least and k - kernel.at <= REACH and self._joins(kernel, group):
                    self.at[k] = kernel.at
                    break
            else:
                kernel = _Open(k, [group], set(arguments(group)), {_kind(group, self.buffers): 1})
                candidates.append(kernel)
                taken[k] = kernel
        out: list[Group] = []
        for k, group in enumerate(self.groups):
            if k in taken:
                members = taken[k].members
                out.append(group if len(members) == 1 else combo(members))
            elif self.at[k] == k:
                out.append(group)
        return out

    def _joins(self, kernel: _Open, group: Group) -> bool:
        """Whether a kernel takes one more member; if so, it has it."""
        if len(kernel.members) >= MEMBERS:
            return False
        kind = _kind(group, self.buffers)
        like = kind in kernel.kinds
        if not like and (
            len(kernel.kinds) >= KINDS
            or not all(self._is_small(g) for g in (group, *kernel.members))
            or sum(kernel.kinds.values()) + _operations(group) > OPERATIONS
        ):
            return False
        pointers = kernel.pointers | set(arguments(group))
        if len(pointers) > POINTERS:
            return False
        earlier = sum(self.choices.bytes_of(self.buffers[n]) for n in group.writes if n not in self.kept)
        if earlier > EARLIER or kernel.earlier + earlier > EARLIER_IN_ALL:
            return False
        kernel.members.append(group)
        kernel.pointers = pointers
        kernel.earlier += earlier
        kernel.kinds.setdefault(kind, _operations(group))
        return True

    def _is_small(self, group: Group) -> bool:
        """Whether a GPU launches another kernel in the time that all accesses of a group take."""
        touched = {*group.reads, *group.writes}
        return sum(self.choices.bytes_of(self.buffers[n]) for n in touched) <= self.choices.launch_bytes


def _may_fail(group: Group) -> bool:
    if isinstance(group.call, ExternCall):
        return True
    return any(n.op is Op.CHECK_INDEX for step in group.steps for n in walk(*roots(step)))


def combo(members: Sequence[Group]) -> Group:
    """One kernel of several groups, none of which touches what another writes."""
    first = members[0]
    language, _, rest = first.name.split("_", 2)
    name = f"{language}_{GroupKind.COMBO.value}_{rest}"
    reads = tuple(sorted({n for m in members for n in m.reads}))
    writes = tuple(sorted({n for m in members for n in m.writes}))
    internal = tuple(sorted({n for m in members for n in m.internal}))
    steps = tuple(step for m in members for step in m.steps)
    reason = f"{len(members)} small kernels share a launch"
    return Group(
        name, GroupKind.COMBO, steps, internal=internal, reads=reads, writes=writes, device=first.device,
        reason=reason, members=tuple(members),
    )  # fmt: skip


def shape_of(group: Group, buffers: dict[str, Buffer]) -> object | None:
    """What the members of a kernel have in common; None for a group that stays alone."""
    if group.device == "cpu" or group.call is not None or group.walked is not None or group.shifted:
        return None
    if group.kind not in (GroupKind.POINTWISE, GroupKind.PERSISTENT, GroupKind.LOOPED):
        return None
    axes = (*group.axes, *group.row_axes)
    if any(not a.extent.value for a in axes) or size_symbols(group):
        return None
    plan = plan_kernel(group, buffers)
    if plan.wide or plan.limit is not None or plan.together or plan.begin is not None:
        return None
    if plan.form is Form.FLAT:
        return group.device, "points"
    if _is_walked_alike(group, plan):
        return group.device, "sums"
    return group.device, plan.form, plan.warps, plan.stages


def _is_walked_alike(group: Group, plan: KernelPlan) -> bool:
    """Whether a group takes sums and the like along few or long rows, in one walk: rows of any length are walked by one text."""
    once = all(step.reductions for step in group.steps) and kinds_of(group.steps) <= PLAIN
    if plan.form is not Form.ROWS or not once or len(group.row_axes) != 1 or len(group.steps) > 1:
        return False
    rows = product([a.extent for a in group.axes]).value or 0
    return rows <= FEW_ROWS or (group.row_axes[0].extent.value or 0) >= ROW_BLOCK // 4


def _kind(group: Group, buffers: Mapping[str, Buffer]) -> object:
    """What is the same of groups whose texts differ in numbers alone."""
    operations = tuple((n.op, n.dtype) for step in group.steps for n in walk(*roots(step)))
    dtypes = tuple(buffers[n].dtype for n in arguments(group))
    return len(group.axes), len(group.row_axes), group.kind, operations, dtypes


def _operations(group: Group) -> int:
    return sum(1 for step in group.steps for _ in walk(*roots(step)))


def plan_members(group: Group, buffers: dict[str, Buffer], cores: int) -> tuple[KernelPlan, ...]:
    """The plans of a kernel's members: those without rows have tiles of one size, so that they are programs of as many warps."""
    plans = [plan_kernel(m, buffers) for m in group.members]
    if all(_is_walked_alike(m, p) for m, p in zip(group.members, plans, strict=True)):
        return tuple(_walked(m, buffers) for m in group.members)
    if plans[0].form is not Form.FLAT:
        return tuple(plans)
    total = sum(product([a.extent for a in m.axes]).value or 0 for m in group.members)
    block = max(LEAST, min(MOST, power(total // (ENOUGH * max(cores, 1)) + 1)))
    return tuple(
        dataclasses.replace(p, points=(dataclasses.replace(p.points[0], block=block),), warps=POINT_WARPS)
        for p in plans
    )


def _walked(group: Group, buffers: dict[str, Buffer]) -> KernelPlan:
    """The plan of a member that walks its rows, as all of its kernel do."""
    plan = plan_kernel(dataclasses.replace(group, kind=GroupKind.LOOPED), buffers, hold=False)
    assert plan.row is not None
    points = tuple(dataclasses.replace(tile, block=1) for tile in plan.points)
    row = dataclasses.replace(plan.row, block=ROW_BLOCK)
    return dataclasses.replace(plan, points=points, row=row, warps=ROW_WARPS, stages=1, unrolled=1)
