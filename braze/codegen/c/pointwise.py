"""POINTWISE groups: every step in one loop nest, stored values handed on in registers."""

from __future__ import annotations

from braze.codegen.c import analysis
from braze.codegen.c.body import Body
from braze.codegen.c.expr import stride, to_c
from braze.codegen.c.kernel import Frame, finish, make_frame, open_tasks, tasks_of
from braze.codegen.c.prelude import STORAGE
from braze.codegen.c.segments import segments
from braze.codegen.c.tiles import TilePlan
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.build import nodes_of
from braze.loops.ir import Buffer, LoopNest
from braze.loops.rewrite import roots
from braze.schedule.records import Group
from braze.symbolic.expr import Expr


def pointwise_kernel(group: Group, buffers: dict[str, Buffer], ctx: CompileContext) -> KernelText:
    """The C of a group without reductions."""
    nodes = nodes_of(*(n for step in group.steps for n in roots(step)))
    frame, body = make_frame(group, buffers, ctx.target.vector_bytes, (), nodes)
    _, tasks, block = tasks_of(frame)
    number = open_tasks(frame, body)
    if frame.tiles is not None:
        _squares(frame, body, frame.tiles)
    elif frame.vector is None:
        _steps(frame, body)
    else:
        _vector_loop(frame, body, number, block)
    body.close()
    work = analysis.work_bytes(group.steps, buffers, ctx.options.threads)
    return finish(frame, body, group.name, tasks, work)


def _steps(frame: Frame, body: Body, steps: tuple[LoopNest, ...] = ()) -> None:
    for step in steps or frame.group.steps:
        body.stores(step.stores, frame.args)


def _vector_loop(frame: Frame, body: Body, number: str, block: int) -> None:
    """Vectors along the vector axis (or a block of it), cut where a condition on it changes."""
    assert frame.vector is not None
    axis, extent = frame.vector, frame.vector.extent
    if number:
        low, high, end = body.name("x"), body.name("x"), body.index(extent)
        body.line(f"const int64_t {low} = {number}*{block};")
        body.line(f"const int64_t {high} = {low} + {block} < {end} ? {low} + {block} : {end};")
        _range(frame, body, low, high, extent.value, frame.group.steps)
        return
    parts = segments(frame.group.steps, axis)
    if not parts:
        _range(frame, body, "0", body.index(extent), None, frame.group.steps)
    for part in parts:
        _range(frame, body, str(part.low), str(part.high), part.high - part.low, part.steps)


def _range(
    frame: Frame, body: Body, low: str, high: str, length: int | None, steps: tuple[LoopNest, ...]
) -> None:
    """Vectors from ``low`` to ``high``, then what is left; ``length`` (modulo the vector) where it is known."""
    assert frame.vector is not None
    w, symbol = frame.lanes, frame.vector.symbol
    j = symbol.name
    body.open("")
    body.line(f"int64_t {j} = {low};")
    if length is None or length >= w:
        test = f"{j} < {high}" if length is not None and length % w == 0 else f"{j} + {w} <= {high}"
        body.open(f"for (; {test}; {j} += {w}) ", {symbol: j})
        _steps(frame, body, steps)
        body.close()
    if length is None or length % w:
        body.open(f"if ({j} < {high}) ", {symbol: j}, count=f"({high} - {j})")
        _steps(frame, body, steps)
        body.close()
    body.close()


def _squares(frame: Frame, body: Body, plan: TilePlan) -> None:
    """One strip of squares: turn what runs across, then the steps row by row."""
    assert frame.vector is not None
    w, along, across = frame.lanes, frame.vector, plan.across
    j, k = along.symbol.name, across.symbol.name
    first, rows, end = body.name("x"), body.name("x"), body.index(along.extent)
    body.line(f"const int64_t {first} = block*{w};")
    left = f"{body.index(across.extent)} - {first}"
    body.line(f"const int64_t {rows} = {left} < {w} ? {left} : {w};")
    pointers = []
    for node in plan.loads:
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
        for node, pointer in zip(plan.loads, pointers, strict=True):
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
        body.tiles = {node: f"{p} + {row}*{w}" for node, p in zip(plan.loads, pointers, strict=True)}
        _steps(frame, body)
        body.tiles = {}
        body.close()
        body.close()
