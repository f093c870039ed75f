"""A schedule as readable text, each group with its reason."""

from __future__ import annotations

from braze.loops.ir import Axis, BufferView, ExternCall, LoopNest, Node, Op, Store, TemplateCall
from braze.schedule.records import Group, Schedule
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
        steps = g.steps or ((g.call,) if g.call else ())
        ops = tuple(dict.fromkeys(op for step in steps for op in step.ops))
        origins = tuple(dict.fromkeys(str(step.origin) for step in steps if step.origin))
        rows.append(GroupReport(g.name, g.kind.value, len(steps), ops, g.reads, g.writes, g.reason, origins))
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
    if isinstance(g.call, ExternCall):
        lines.append(
            f"  {', '.join(g.call.outputs)} = {g.call.target}({', '.join(map(_argument, g.call.args))})"
        )
    elif isinstance(g.call, TemplateCall):
        for step in g.call.prologue:
            lines += _nest(step)
        lines.append(f"  {g.call.kind}({', '.join(map(_argument, g.call.args))})")
        lines += [f"    {line}" for line in _stores(g.call.epilogue)]
    for step in g.steps:
        lines += _nest(step)
    return lines


def _nest(step: LoopNest) -> list[str]:
    over = f" reduce [{_axes(step.reduce_axes)}]" if step.reduce_axes else ""
    lines = [f"  {step.name}: [{_axes(step.axes)}]{over}"]
    names: dict[Node, str] = {}
    for k, r in enumerate(step.reductions):
        lines.append(f"    reduced{k} = {r.kind.value}.{r.dtype.label}({node_text(r.value, names)})")
    return lines + [f"    {line}" for line in _stores(step.stores)]


def _stores(stores: tuple[Store, ...]) -> list[str]:
    names: dict[Node, str] = {}
    return [
        f"{s.buffer}[{s.index}] {'+=' if s.mode.value == 'add' else '='} {node_text(s.value, names)}"
        for s in stores
    ]


def node_text(node: Node, names: dict[Node, str]) -> str:
    """A scalar expression as a call; ``names`` keeps the text of nodes already printed."""
    found = names.get(node)
    if found is not None:
        return found
    inner = [node_text(a, names) for a in node.args]
    if node.op is Op.LOAD:
        text = f"{node.attr[0]}[{node.attr[1]}]"
        if inner:
            text = f"{node.attr[0]}[{node.attr[1]}; {', '.join(inner)}]"
    elif node.op is Op.CONST:
        text = repr(node.attr)
    elif node.op is Op.REDUCED:
        text = f"reduced{node.attr}"
    elif node.op is Op.CAST:
        text = f"{node.dtype.label}({inner[0]})"
    else:
        extra = [] if node.attr is None else [str(node.attr)]
        text = f"{node.op.value}({', '.join(inner + extra)})"
    names[node] = text if len(text) < 2000 else text[:2000] + "..."
    return names[node]


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{a.symbol}<{a.extent}" for a in axes)


def _argument(value: object) -> str:
    if isinstance(value, BufferView):
        return f"{value.buffer}{list(value.sizes)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_argument, value))})"
    return str(value)
