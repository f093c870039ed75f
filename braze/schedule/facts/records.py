"""What the scheduler decides: which loops share a kernel, in which order, and where buffers live."""

from __future__ import annotations

import enum

from braze.loops.ir import Axis, Buffer, ExternCall, LoopNest, LoopProgram, Step, TemplateCall
from braze.support.record import record
from braze.symbolic.expr import Expr, Symbol


class GroupKind(enum.Enum):
    POINTWISE = "poi"
    PERSISTENT = "per"  # a whole reduced row is held at once
    LOOPED = "red"  # the reduced row is walked in blocks, once per pass
    MIXED = "mix"  # rows are held at once, and summed down their columns too
    COMBO = "com"  # several small kernels by one launch
    EXTERN = "ext"
    TEMPLATE = "tem"


@record
class Walked:
    """How a kernel cuts its points: row ``part.symbol * within.extent + within.symbol`` lies in a part. Where rows begin between vectors a part has as many that
    begin at one place in a vector instead: no sum down the columns asks which rows they are."""

    part: Axis
    within: Axis

    @property
    def row(self) -> Expr:
        return self.part.symbol * self.within.extent + self.within.symbol


@record
class Group:
    """One kernel (or one extern call).

    ``steps``: loop nests in program order, all rewritten to the same symbols: the parallel points are
    ``axes``; steps that also run over the row use ``row_axes`` (as their reduce axes, or, for a pointwise
    step inside a reduction kernel, as the innermost of their own axes). ``internal``: buffers that are
    written and read only inside this group and need no memory outside it. ``reason``: why these steps
    are together, for the report. ``walked``: of kind MIXED, how its points are cut; the steps that reduce down the
    columns run over the part and ``row_axes``, and reduce over what lies within a part. ``whole``: it is not to be cut. ``follows``: it is
    short, and reads what a kernel just before it leaves. ``shifted``: buffers with a copy of what all rows share for each place in a vector where a
    row may begin, and the elements from one copy to the next. ``kept``: how many times as much as on an H200 the cache keeps of each row that is walked again.
    ``alone``: each of its programs has a multiprocessor for itself.
    ``members``: of kind COMBO, the groups that share its launch, none of which touches what another writes; ``steps`` are theirs, one behind the other.
    """

    name: str
    kind: GroupKind
    steps: tuple[LoopNest, ...] = ()
    axes: tuple[Axis, ...] = ()
    row_axes: tuple[Axis, ...] = ()
    internal: tuple[str, ...] = ()
    call: ExternCall | TemplateCall | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    device: str = "cpu"
    reason: str = ""
    walked: Walked | None = None
    whole: bool = False
    follows: bool = False
    shifted: tuple[tuple[str, int], ...] = ()
    kept: float = 1.0
    alone: bool = False
    members: tuple[Group, ...] = ()

    @property
    def work(self) -> tuple[Step, ...]:
        """The loop nests, or the call."""
        return self.steps if self.call is None else (self.call,)

    @property
    def each(self) -> tuple[Group, ...]:
        """The groups that share its launch: itself, where it is no combo."""
        return self.members or (self,)

    def writer(self, name: str) -> Group:
        """The one of these that writes a buffer, and alone touches it."""
        return next((m for m in self.members if name in m.writes), self)


@record
class Slot:
    """A buffer's place: byte ``offset`` in the arena of its device; ``bytes`` long; needed by groups ``start`` to ``stop``."""

    buffer: str
    offset: Expr
    bytes: Expr
    start: int = 0
    stop: int = 0


@record
class MemoryPlan:
    """Where temporaries live. ``arena_bytes``: size of the one arena, 64-byte aligned slots.

    ``reuse``: (new buffer, old buffer) pairs where the new one is written over the dead old one in place.
    ``handed``: such pairs outside the arena, where the host finds nobody else holding the old one's memory.
    ``renewed``: such pairs whose old one is an input that the program writes: what is returned of the new one is None.
    Buffers that are neither in ``slots`` nor inputs are allocated by the host (outputs), or returned by
    an extern call that has no out variant.
    """

    slots: tuple[Slot, ...]
    arena_bytes: Expr
    reuse: tuple[tuple[str, str], ...] = ()
    handed: tuple[tuple[str, str], ...] = ()
    renewed: tuple[tuple[str, str], ...] = ()


@record
class Schedule:
    """``fixed``: the part that depends on constants only. Its outputs are the last inputs of ``program``; the
    host computes them once, and again when a constant changes. ``parts``: the groups once more, cut; the host
    calls one after another then, and only they have memory."""

    program: LoopProgram
    groups: tuple[Group, ...]
    memory: MemoryPlan
    aliases: tuple[tuple[str, str], ...] = ()  # buffer -> buffer whose storage it shares
    fixed: Schedule | None = None
    parts: tuple[Part, ...] = ()

    def buffer(self, name: str) -> Buffer:
        return self.program.buffer(name)


@record
class Part:
    """A run of a schedule's groups that the host calls as one.

    ``schedule``'s inputs are ``takes``, then the sizes ``sizes`` as whole numbers; its outputs are ``gives``, then the sizes
    ``told``. ``why``: the reason that no recorder may record it, or "". ``fixed``: of ``takes``, those whose
    memory the part writes, so that no copy can stand for them.
    """

    schedule: Schedule
    why: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    sizes: tuple[Symbol, ...]
    told: tuple[Symbol, ...]
    fixed: tuple[str, ...]
