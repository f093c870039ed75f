"""Give every temporary a place in one arena, by liveness.

Slots of buffers alive at the same time never overlap. A pointwise kernel may write its result over an operand
that dies there, read at the same index (``reuse``). Where sizes are expressions, the plan here is only an upper
bound (a free slot is reused where it is provably large enough); the host plans again when it knows the numbers.

An arena is as large throughout as at its worst moment. That is paid for by memory that is warm, and does not matter beside
the weights of inference; in training (``lean``) the worst moments of the arena and of what is saved would add up. There
large temporaries are taken from the allocator when they are first written, and given back after their last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.loops.ir import Buffer, BufferKind, BufferView, ExternCall, LoopProgram, Op, Store
from braze.loops.rewrite import loads, roots, store_roots, walk
from braze.runtime.memory.placement import ALIGNMENT, place
from braze.schedule.facts.dependences import accesses
from braze.schedule.facts.domains import injective
from braze.schedule.facts.records import Group, GroupKind, MemoryPlan, Slot
from braze.support.layouts import span
from braze.support.record import record
from braze.symbolic.expr import ZERO, Expr, Integer, Symbol


@record
class Life:
    """A buffer in the arena is alive from group ``start`` to group ``stop``, both inclusive."""

    buffer: str
    start: int
    stop: int
    bytes: Expr


#: bytes from which on a temporary of a training step has memory of its own, on the CPU and on a GPU: there PyTorch's allocator
#: takes large ones from memory that it keeps, and what is smaller does not count beside a model
LARGE, LARGE_ON_GPU = 64 << 10, 1 << 20
#: kinds of groups that may write a buffer over another
_POINTS = (GroupKind.POINTWISE, GroupKind.COMBO)


def plan_memory(
    program: LoopProgram,
    groups: Sequence[Group],
    kept: set[str],
    *,
    lean: bool = False,
    consumes: bool = False,
) -> MemoryPlan:
    """The arena plan for groups in their final order. ``consumes``: inputs belong to the call."""
    buffers = {b.name: b for b in program.buffers}
    lives = lifetimes(groups, buffers, kept, program.device, frozenset(program.made))
    handed: tuple[tuple[str, str], ...] = ()
    if lean:
        lives = [life for life in lives if not is_large(life.bytes, program.device)]
        going = inputs_that_may_go(program) if consumes else set()
        handed = handed_over(groups, buffers, kept - going, {life.buffer for life in lives})
    reuse = in_place(groups, lives, buffers)
    renewed = renewed_inputs(program, groups, buffers) if program.renewed else ()
    chains = _chains(lives, reuse)
    if all(c.bytes.value is not None for c in chains):
        offsets, total = _pack_static(chains)
    else:
        offsets, total = _pack_symbolic(chains)
    roots = dict(reuse)
    slots = []
    for life in lives:
        root = life.buffer
        while root in roots:
            root = roots[root]
        slots.append(Slot(life.buffer, offsets[root], life.bytes, life.start, life.stop))
    return MemoryPlan(tuple(slots), total, tuple(reuse), handed, renewed)


def is_large(size: Expr, device: str) -> bool:
    """Whether so many bytes are not kept in an arena between calls; where they are not known, they may be many."""
    return size.value is None or size.value >= (LARGE if device == "cpu" else LARGE_ON_GPU)


def inputs_that_may_go(program: LoopProgram) -> set[str]:
    """Inputs of which the caller gets no view, also none that an operator of PyTorch makes."""
    returned = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    for step in reversed(program.steps):
        if isinstance(step, ExternCall) and not returned.isdisjoint(step.outputs):
            returned.update(step.aliases)
    return {b.name for b in program.buffers if b.kind is BufferKind.INPUT} - returned


def handed_over(
    groups: Sequence[Group], buffers: Mapping[str, Buffer], kept: set[str], in_arena: set[str]
) -> tuple[tuple[str, str], ...]:
    """(new, old) pairs outside the arena: a pointwise group may write the large new buffer over the old one, read last there."""
    last, writers = _last_uses(groups), _writers(groups)
    stays = in_arena | kept
    taken: set[str] = set()
    pairs: list[tuple[str, str]] = []
    for k, group in enumerate(groups):
        if group.kind not in _POINTS:
            continue
        dying = [n for n in group.reads if last[n] == k and n not in stays and n not in group.writes]
        for new in group.writes:
            b = buffers[new]
            if new in in_arena or writers[new] != [k] or not is_large(storage_bytes(b), b.device):
                continue
            if b.kind not in (BufferKind.TEMPORARY, BufferKind.OUTPUT):
                continue
            for old in dying:
                if old not in taken and _alike(b, buffers[old]) and _same_elements(group, new, old, buffers):
                    pairs.append((new, old))
                    taken.add(old)
                    break
    return tuple(pairs)


def renewed_inputs(
    program: LoopProgram, groups: Sequence[Group], buffers: Mapping[str, Buffer]
) -> tuple[tuple[str, str], ...]:
    """(new, old) pairs of inputs' new contents that a pointwise group may write over the old ones, which nobody reads later.

    After such a group nothing runs that may fail, or the input would be written by a call that raises.
    """
    last, writers = _last_uses(groups), _writers(groups)
    returned = [o.buffer for o in program.outputs if isinstance(o, BufferView)]
    seen = {name for step in program.steps if isinstance(step, ExternCall) for name in step.aliases}
    safe = max([-1, *(k for k, group in enumerate(groups) if _may_fail(group))])
    pairs = []
    for output, old in program.renewed:
        view = program.outputs[output]
        if not isinstance(view, BufferView):
            continue
        new = view.buffer
        found = writers.get(new, [])
        alone = returned.count(new) == 1 and old not in returned and seen.isdisjoint((new, old))
        if (
            alone
            and len(found) == 1
            and found[0] >= max(safe + 1, last.get(old, 0))
            and buffers[new].kind is BufferKind.OUTPUT
            and _alike(buffers[new], buffers[old])
            and _lies_as(view, buffers[old])
            and _same_elements(groups[found[0]], new, old, buffers)
        ):
            pairs.append((new, old))
    return tuple(pairs)


def _lies_as(view: BufferView, memory: Buffer) -> bool:
    """Whether an element of a view has the place that it has in memory laid out as a buffer: a turned view of a square one has not."""
    same = view.sizes == memory.sizes and view.strides == memory.strides
    return same and view.offset == ZERO and view.dtype is memory.dtype


def _may_fail(group: Group) -> bool:
    """Whether a group calls what may raise, or looks something up at a place that may not exist."""
    if isinstance(group.call, ExternCall):
        return True
    found = [r for step in group.steps for r in roots(step)]
    if group.call is not None:
        found += store_roots(group.call.epilogue)
        found += [r for step in group.call.prologue for r in roots(step)]
    return any(node.op is Op.CHECK_INDEX for node in walk(*found))


def _alike(a: Buffer, b: Buffer) -> bool:
    same = a.sizes == b.sizes and a.strides == b.strides
    return same and a.dtype is b.dtype and a.device == b.device


def _writers(groups: Sequence[Group]) -> dict[str, list[int]]:
    """The groups that write a buffer."""
    found: dict[str, list[int]] = {}
    for k, group in enumerate(groups):
        for name in group.writes:
            found.setdefault(name, []).append(k)
    return found


def _last_uses(groups: Sequence[Group]) -> dict[str, int]:
    """The last group that touches a buffer, or what an extern call returned over its memory."""
    last = {name: k for k, g in enumerate(groups) for name in (*g.reads, *g.writes)}
    for g in reversed(groups):
        if isinstance(g.call, ExternCall) and g.call.aliases:
            stop = max((last.get(n, 0) for n in g.call.outputs), default=0)
            for name in g.call.aliases:
                last[name] = max(last.get(name, 0), stop)
    return last


def storage_bytes(buffer: Buffer) -> Expr:
    """Bytes from the first to the last element."""
    sizes = [s.number for s in buffer.sizes if isinstance(s, Integer)]
    strides = [s.number for s in buffer.strides if isinstance(s, Integer)]
    if len(sizes) == len(strides) == len(buffer.sizes):
        return Integer(span(sizes, strides) * buffer.dtype.itemsize)
    return ZERO if ZERO in buffer.sizes else (buffer.last + 1) * buffer.dtype.itemsize


def aligned(size: Expr) -> Expr:
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def lifetimes(
    groups: Sequence[Group],
    buffers: Mapping[str, Buffer],
    kept: set[str],
    device: str,
    made: frozenset[Symbol],
) -> list[Life]:
    """Lives of the temporaries that kernels and out-variants write; extern results live with the allocator.

    The one arena is on ``device``; what a graph keeps elsewhere is allocated on each call, and so is what has
    a size that is known only on the way (``made``).
    """
    placed: dict[str, int] = {}
    own: set[str] = set()
    last = _last_uses(groups)
    for k, g in enumerate(groups):
        if isinstance(g.call, ExternCall) and not g.call.out_variant:
            own.update(g.call.outputs)
        for name in g.writes:
            placed.setdefault(name, k)
    lives = [
        Life(name, start, last[name], storage_bytes(buffers[name]))
        for name, start in placed.items()
        if name not in kept
        and name not in own
        and buffers[name].device == device
        and not (made and made & storage_bytes(buffers[name]).symbols())
    ]
    return sorted(lives, key=lambda x: (x.start, x.buffer))


def in_place(
    groups: Sequence[Group], lives: Sequence[Life], buffers: Mapping[str, Buffer]
) -> list[tuple[str, str]]:
    """(new, old) pairs where a pointwise group may write the new buffer over the old one."""
    dying: dict[int, list[Life]] = {}
    for life in lives:
        dying.setdefault(life.stop, []).append(life)
    taken: set[str] = set()
    pairs: list[tuple[str, str]] = []
    for life in lives:
        group = groups[life.start]
        if group.kind not in _POINTS:
            continue
        for old in dying.get(life.start, ()):
            if old.start == life.start or old.buffer in taken or old.bytes is not life.bytes:
                continue
            if _same_elements(group, life.buffer, old.buffer, buffers):
                pairs.append((life.buffer, old.buffer))
                taken.add(old.buffer)
                break
    return pairs


def _same_elements(group: Group, new: str, old: str, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the group reads ``old`` only where it writes ``new`` at the same point; on a GPU, whose threads share a point's work and where one may
    have stored before another loads, only for what it writes there."""
    if any(old in m.reads for m in group.members if new not in m.writes):
        return False
    group = group.writer(new)
    if group.kind is not GroupKind.POINTWISE or len(group.steps) != 1:
        return False
    if buffers[new].dtype.itemsize != buffers[old].dtype.itemsize:
        return False
    found = accesses(group.steps[0])
    others = [s for s in group.steps[0].stores if s.buffer != new]
    if group.device != "cpu" and old in loads(*store_roots(others)):
        return False
    indices = found.reads[old] | found.writes[new]
    return len(indices) == 1 and None not in indices and new not in found.reads and _covers_domain(group, new)


def _covers_domain(group: Group, name: str) -> bool:
    """Whether each point writes its own element (else a later point could read a clobbered one)."""
    stores: list[Store] = [s for s in group.steps[0].stores if s.buffer == name]
    return all(injective(s.index, group.axes) for s in stores)


def slot_lives(plan: MemoryPlan) -> tuple[list[Life], dict[str, str]]:
    """The lives that need a place each, and for every buffer whose place it has."""
    lives = [Life(s.buffer, s.start, s.stop, s.bytes) for s in plan.slots]
    owner = {s.buffer: s.buffer for s in plan.slots}
    for new, old in plan.reuse:
        owner[new] = old
    for name in owner:
        while owner[owner[name]] != owner[name]:
            owner[name] = owner[owner[name]]
    return _chains(lives, plan.reuse), owner


def _chains(lives: Sequence[Life], reuse: Sequence[tuple[str, str]]) -> list[Life]:
    """Lives with each in-place chain as one life under its first buffer's name."""
    by_name = {life.buffer: life for life in lives}
    following = {old: new for new, old in reuse}
    later = {new for new, _ in reuse}
    chains = []
    for life in lives:
        if life.buffer in later:
            continue
        stop, name = life.stop, life.buffer
        while name in following:
            name = following[name]
            stop = by_name[name].stop
        chains.append(Life(life.buffer, life.start, stop, life.bytes))
    return chains


def _pack_static(lives: Sequence[Life]) -> tuple[dict[str, Expr], Expr]:
    """Offsets for known sizes."""
    offsets, total = place([(x.start, x.stop, x.bytes.value or 0) for x in lives])
    return {x.buffer: Integer(at) for x, at in zip(lives, offsets, strict=True)}, Integer(total)


def _pack_symbolic(lives: Sequence[Life]) -> tuple[dict[str, Expr], Expr]:
    """Whole slots are handed on to buffers that provably fit."""
    offsets: dict[str, Expr] = {}
    slots: list[tuple[Expr, Expr, int]] = []  # offset, bytes, free after group
    total: Expr = ZERO
    for life in lives:
        need = aligned(life.bytes)
        fitting = [k for k, (_, size, stop) in enumerate(slots) if stop < life.start and _fits(need, size)]
        exact = [k for k in fitting if slots[k][1] is need]
        if fitting:
            k = (exact or fitting)[-1]
            offset, size, _ = slots[k]
            slots[k] = offset, size, life.stop
        else:
            offset = total
            slots.append((offset, need, life.stop))
            total = total + need
        offsets[life.buffer] = offset
    return offsets, total


def _fits(need: Expr, size: Expr) -> bool:
    if need is size:
        return True
    low = (size - need).bounds()[0]
    return low is not None and low >= 0
