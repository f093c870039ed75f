"""A schedule as readable text, each group with its reason."""

from __future__ import annotations

from braze.loops.ir import Axis
from braze.loops.printer import print_step
from braze.schedule.facts.records import Group, Schedule
from braze.support.record import record


@record
class GroupReport:
    """One line of the report: what became one kernel, and why."""

    name: str
    kind: str
    steps: int
    ops: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reason: str
    origins: tuple[str, ...]


def report(s: Schedule) -> tuple[GroupReport, ...]:
    """The groups of a schedule, for ``explain``."""
    rows = []
    for g in s.groups:
        ops = tuple(dict.fromkeys(op for step in g.work for op in step.ops))
        origins = tuple(dict.fromkeys(str(step.origin) for step in g.work if step.origin))
        rows.append(GroupReport(g.name, g.kind.value, len(g.work), ops, g.reads, g.writes, g.reason, origins))
    return tuple(rows)


def print_schedule(s: Schedule) -> str:
    """The whole schedule as text, for dumps."""
    lines = [f"schedule of {s.program.name}: {len(s.groups)} groups, arena {s.memory.arena_bytes} bytes"]
    for g in s.groups:
        lines += ["", *_group(g)]
    lines += ["", "memory"]
    replaced = dict(s.memory.reuse)
    for slot in s.memory.slots:
        over = f" over {replaced[slot.buffer]}" if slot.buffer in replaced else ""
        lines.append(f"  {slot.buffer}: {slot.bytes} bytes at {slot.offset}{over}")
    text = "\n".join(lines) + "\n"
    return text if s.fixed is None else f"{text}\ncomputed once:\n{print_schedule(s.fixed)}"


def _group(g: Group) -> list[str]:
    lines = [
        f"{g.name}: {g.kind.value} over [{_axes(g.axes)}]"
        + (f" rows [{_axes(g.row_axes)}]" if g.row_axes else "")
    ]
    lines.append(f"  reads {', '.join(g.reads) or '-'}; writes {', '.join(g.writes) or '-'}")
    if g.internal:
        lines.append(f"  internal {', '.join(g.internal)}")
    if g.reason:
        lines.append(f"  because {g.reason}")
    for step in g.work:
        lines += [f"  # {step.name}", *(f"  {line}" for line in print_step(step))]
    return lines


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.symbol}<{a.extent}" for a in axes)
