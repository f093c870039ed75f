"""One group of loop nests as one C kernel.

The parallel points are numbered; a thread gets a contiguous share of the numbers and walks it with an
odometer. The vector axis is either the innermost part of a task (then the axis is cut in blocks if there
are few other points), or lies in the row.
"""

from __future__ import annotations

from collections.abc import Iterable

from braze.codegen.c import analysis
from braze.codegen.c.analysis import Ranges, Varying
from braze.codegen.c.body import Body
from braze.codegen.c.expr import to_c
from braze.codegen.c.prelude import STORAGE
from braze.codegen.c.tiles import TilePlan, tile_plan
from braze.codegen.records import KernelText
from braze.loops.ir import Axis, Buffer, Node, Op, StoreMode
from braze.loops.rewrite import roots
from braze.schedule.passes import accesses_of, arguments, loads, size_symbols
from braze.schedule.records import Group
from braze.support.record import record
from braze.symbolic.expr import Expr, Integer, Symbol, floor_div, product

#: elements of the vector axis in one task, where that axis is cut
_BLOCK = 4096


@record
class Frame:
    """What every kernel of a group needs: its arguments, sizes, vector axis and lanes."""

    group: Group
    buffers: dict[str, Buffer]
    args: tuple[str, ...]
    sizes: tuple[str, ...]
    vector: Axis | None
    lanes: int
    serial: bool
    status: bool
    tiles: TilePlan | None = None
    #: vectors of columns that one task of a reduction takes
    strip: int = 1


def make_frame(
    group: Group, buffers: dict[str, Buffer], vector_bytes: int, registers: Iterable[str], nodes: list[Node]
) -> tuple[Frame, Body]:
    """Choose the vector axis and lanes of a group, and start its body."""
    found = accesses_of(group, buffers)
    vector = analysis.choose_vector_axis((*group.axes, *group.row_axes), found, vector_bytes // 4)
    symbol = vector.symbol if vector is not None else None
    in_row = vector in group.row_axes
    varying = Varying(symbol, () if in_row else registers)
    ranges = Ranges()
    lanes = analysis.choose_lanes(nodes, varying, ranges, vector_bytes)
    names = arguments(group)
    sizes = tuple(symbol.name for symbol in size_symbols(group))
    serial = any(s.mode is StoreMode.ADD for step in group.steps for s in step.stores)
    status = any(n.op is Op.CHECK_INDEX for n in nodes)
    tiles = None if group.row_axes else tile_plan(group.axes, vector, nodes)
    frame = Frame(group, buffers, names, sizes, vector, lanes, serial, status, tiles)
    storage = {name: b.dtype.label for name, b in buffers.items()}
    body = Body(lanes, symbol, varying, ranges, storage)
    body.reloaded = frozenset(loads(*(root for step in group.steps for root in roots(step))))
    for i, name in enumerate(names):
        body.pointers[name] = f"b{i}"
    for s in sizes:
        body.scope.symbols[Symbol(s)] = s
    return frame, body


def tasks_of(frame: Frame) -> tuple[list[Axis], Expr, int]:
    """(point axes walked one by one, number of tasks, block of the vector axis or 0)."""
    vector = frame.vector
    others = [a for a in frame.group.axes if a is not vector]
    if frame.tiles is not None:
        across = frame.tiles.across
        others.remove(across)
        count = product([a.extent for a in others]) if others else Integer(1)
        return others, count * _blocks(across, frame.lanes), frame.lanes
    count = product([a.extent for a in others]) if others else Integer(1)
    if vector is None or vector in frame.group.row_axes:
        return others, count, 0
    if frame.group.row_axes:
        block = frame.lanes * frame.strip
    else:
        few = analysis.size_of(count) < 64
        block = _BLOCK if few else 0
    if block:
        count = count * _blocks(vector, block)
    return others, count, block


def _blocks(axis: Axis, size: int) -> Expr:
    """Blocks of an axis, the last one perhaps short."""
    return floor_div(axis.extent + (size - 1), Integer(size))


def open_tasks(frame: Frame, body: Body) -> str:
    """Open the loop over tasks, with a C variable per point axis; the name of the block's number, or ""."""
    others, _, block = tasks_of(frame)
    digits = [(a.symbol.name, body.index(a.extent)) for a in others]
    if block and frame.vector is not None:
        cut = frame.tiles.across if frame.tiles is not None else frame.vector
        digits.append(("block", body.index(_blocks(cut, block))))
    if digits:
        body.line("int64_t rest = lo;")
    for n, (name, extent) in reversed(list(enumerate(digits))):
        body.line(f"int64_t {name} = rest{f' % {extent}; rest /= {extent}' if n else ''};")
    step = _odometer(digits)
    body.open(f"for (int64_t task = lo; task < hi; ++task{step}) ", {a.symbol: a.symbol.name for a in others})
    return "block" if block else ""


def _odometer(digits: list[tuple[str, str]]) -> str:
    """The increment of the task's digits, as part of the for statement."""
    if not digits:
        return ""
    text = f"++{digits[0][0]}"
    for name, extent in digits[1:]:
        text = f"(++{name} == {extent} ? ({name} = 0, {text}) : 0)"
    return f", {text}"


def finish(frame: Frame, body: Body, name: str, tasks: Expr, work: str, extra: str = "") -> KernelText:
    """The complete function(s) around a body's lines."""
    lines = [f"static void {name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{"]
    lines += header(frame)
    lines += body.scope.lines
    lines.append("}")
    lines += [extra] if extra else []
    lines.append(f"void {name}(void **b, const int64_t *s) {{")
    lines += [f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)]
    cost = "0" if frame.serial else work
    lines.append(f"  bz_run({name}_body, b, s, {to_c(tasks)}, {cost});")
    lines.append("}")
    source = "\n".join(lines) + "\n"
    args = (*frame.args, "status") if frame.status else frame.args
    return KernelText(name, "c", source, args, frame.sizes, source.replace(name, "KERNEL"))


def header(frame: Frame) -> list[str]:
    """Named pointers and sizes."""
    out = []
    for i, name in enumerate(frame.args):
        c = STORAGE[frame.buffers[name].dtype.label][0]
        out.append(f"  {c} *const b{i} = ({c} *)b[{i}];")
    if frame.status:
        out.append(f"  int64_t *const status = (int64_t *)b[{len(frame.args)}];")
    out += [f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)]
    return out
