"""POINTWISE groups: every step in one loop nest, stored values handed on in registers."""

from __future__ import annotations

from braze.codegen.c.body import Body
from braze.codegen.c.expr import to_c
from braze.codegen.c.kernel import Frame, finish, open_tasks, start_body
from braze.codegen.c.prelude import STORAGE
from braze.codegen.c.segments import Segment, segments
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.ir import Buffer, LoopNest
from braze.schedule.cpu.processors import plan_kernel
from braze.schedule.facts.passes import stride
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group
from braze.symbolic.expr import Expr

#: loops that conditions on two axes make of one, at most
_WAYS = 4


def pointwise_kernel(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> KernelText:
    """The C of a group without reductions."""
    frame = Frame(group, buffers, plan_kernel(group, buffers, ctx.target))
    body = start_body(frame)
    number = open_tasks(frame, body)
    if frame.plan.form is Form.TILED:
        _squares(frame, body)
    elif frame.plan.vector is None:
        _steps(frame, body)
    else:
        _vector_loop(frame, body, number)
    body.close()
    return finish(frame, body, ctx.options.threads)


def _steps(frame: Frame, body: Body, steps: tuple[LoopNest, ...] = ()) -> None:
    for step in steps or frame.group.steps:
        body.stores(step.stores, frame.plan.arguments)


def _vector_loop(frame: Frame, body: Body, number: str) -> None:
    """Vectors along the vector axis (or a block of it), cut where a condition on it changes."""
    assert frame.plan.vector is not None
    axis, extent = frame.plan.vector, frame.plan.vector.extent
    if number:
        block = frame.plan.points[0].block
        low, high, end = body.name("x"), body.name("x"), body.index(extent)
        body.line(f"const int64_t {low} = {number}*{block};")
        body.line(f"const int64_t {high} = {low} + {block} < {end} ? {low} + {block} : {end};")
        parts = segments(frame.group.steps, axis)
        if len(parts) < 2:
            _range(frame, body, low, high, extent.value, frame.group.steps)
        else:
            _parts_of_block(frame, body, low, high, parts)
        return
    _decided(frame, body)


def _decided(frame: Frame, body: Body) -> None:
    """The whole axis, behind the conditions on one of the others (parts that are joined or stacked), which are the same for all of it."""
    axis, steps = frame.plan.vector, frame.group.steps
    for other in frame.plan.outer:
        parts, i = segments(steps, other), other.symbol.name
        if len(parts) < 2 or len(parts) * max(1, len(segments(steps, axis))) > _WAYS:
            continue
        for part in parts:
            scope = body.open(f"if ({part.low} <= {i} && {i} < {part.high}) ")
            scope.guard = scope.depth
            _whole(frame, body, part.steps)
            body.close()
        return
    _whole(frame, body, steps)


def _whole(frame: Frame, body: Body, steps: tuple[LoopNest, ...]) -> None:
    """The vectors' axis in the parts between which a condition on it changes."""
    assert frame.plan.vector is not None
    parts = segments(steps, frame.plan.vector)
    if not parts:
        _range(frame, body, "0", body.index(frame.plan.vector.extent), None, steps)
    for part in parts:
        _range(frame, body, str(part.low), str(part.high), part.high - part.low, part.steps)


def _parts_of_block(frame: Frame, body: Body, low: str, high: str, parts: tuple[Segment, ...]) -> None:
    """Of each part of the axis what lies in the block; most blocks lie in one."""
    for part in parts:
        first, end = body.name("x"), body.name("x")
        body.line(f"const int64_t {first} = {low} > {part.low} ? {low} : {part.low};")
        body.line(f"const int64_t {end} = {high} < {part.high} ? {high} : {part.high};")
        _range(frame, body, first, end, None, part.steps)


def _range(
    frame: Frame, body: Body, low: str, high: str, length: int | None, steps: tuple[LoopNest, ...]
) -> None:
    """Vectors from ``low`` to ``high``, then what is left; ``length`` (modulo the vector) where it is known."""
    assert frame.plan.vector is not None
    w, symbol = frame.plan.lanes, frame.plan.vector.symbol
    j = symbol.name
    body.open("")
    body.line(f"int64_t {j} = {low};")
    if body.only_copies(steps):
        body.open("" if length is not None and not frame.plan.points else f"if ({j} < {high}) ", {symbol: j})
        body.copies(steps, f"({high} - {j})")
        body.close()
        body.close()
        return
    if length is None or length >= w:
        test = f"{j} < {high}" if length is not None and length % w == 0 else f"{j} + {w} <= {high}"
        body.open(f"for (; {test}; {j} += {w}) ", {symbol: j})
        _steps(frame, body, steps)
        body.close()
    if length is None or length % w:
        body.open(
            f"if ({j} < {high}) ", {symbol: j}, count=f"({high} - {j})" if length is None else str(length % w)
        )
        _steps(frame, body, steps)
        body.close()
    body.close()


def _squares(frame: Frame, body: Body) -> None:
    """One strip of squares: turn what runs across, then the steps row by row."""
    plan = frame.plan
    assert plan.vector is not None
    w, along, (across,) = plan.lanes, plan.vector, plan.points[0].axes
    j, k = along.symbol.name, across.symbol.name
    first, rows, end = body.name("x"), body.name("x"), body.index(along.extent)
    body.line(f"const int64_t {first} = block*{w};")
    left = f"{body.index(across.extent)} - {first}"
    body.line(f"const int64_t {rows} = {left} < {w} ? {left} : {w};")
    pointers = []
    for node in plan.turned:
        pointers.append(body.name("k"))
        c = STORAGE[body.storage[node.attr[0]]][0]
        body.line(f"{c} {pointers[-1]}[{w * w}] __attribute__((aligned(64)));")
    body.line(f"int64_t {j} = 0;")
    known = along.extent.value
    parts = []
    if known is None or known >= w:
        parts.append((f"for (; {j} + {w} <= {end}; {j} += {w}) ", ""))
    if known is None or known % w:
        parts.append((f"if ({j} < {end}) ", f"({end} - {j})"))
    for head, count in parts:
        body.open(head, {along.symbol: j, across.symbol: first}, count=count)
        for node, pointer in zip(plan.turned, pointers, strict=True):
            buffer, at = node.attr
            step = stride(at, along.symbol)
            base = f"{body.pointers[buffer]} + {to_c(at, body.names())}"
            shown = to_c(step, body.names()) if isinstance(step, Expr) else step
            storage = body.storage[buffer]
            body.line(f"bz_turn_{storage}x{w}({pointer}, {base}, {shown}, {rows}, {count or w});")
        row = body.name("r")
        head = f"for (int64_t {row} = 0; {row} < {rows}; ++{row}) "
        body.open(head, {along.symbol: j, across.symbol: k})
        body.line(f"const int64_t {k} = {first} + {row};")
        body.tiles = {node: f"{p} + {row}*{w}" for node, p in zip(plan.turned, pointers, strict=True)}
        _steps(frame, body)
        body.tiles = {}
        body.close()
        body.close()
