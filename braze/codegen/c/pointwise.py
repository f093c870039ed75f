"""POINTWISE groups: every step in one loop nest, stored values handed on in registers."""

from __future__ import annotations

from braze.codegen.c import analysis
from braze.codegen.c.analysis import walk
from braze.codegen.c.body import Body
from braze.codegen.c.kernel import Frame, finish, make_frame, open_tasks, tasks_of
from braze.codegen.records import KernelText
from braze.loops.ir import Buffer
from braze.schedule.records import Group


def pointwise_kernel(group: Group, buffers: dict[str, Buffer], vector_bytes: int) -> KernelText:
    """The C of a group without reductions."""
    nodes = list(walk(*(n for step in group.steps for n in analysis.roots(step))))
    frame, body = make_frame(group, buffers, vector_bytes, (), nodes)
    _, tasks, block = tasks_of(frame)
    number = open_tasks(frame, body)
    if frame.vector is None:
        _steps(frame, body)
    else:
        _vector_loop(frame, body, number, block)
    body.close()
    work = analysis.work_bytes(group.steps, buffers)
    return finish(frame, body, group.name, tasks, work)


def _steps(frame: Frame, body: Body) -> None:
    for step in frame.group.steps:
        body.stores(step.stores, frame.args)


def _vector_loop(frame: Frame, body: Body, number: str, block: int) -> None:
    """Vectors along the vector axis (or a block of it), then what is left."""
    assert frame.vector is not None
    w, axis = frame.lanes, frame.vector
    j, extent = axis.symbol.name, axis.extent
    if number:
        end = body.name("x")
        body.line(f"int64_t {j} = {number}*{block};")
        body.line(
            f"const int64_t {end} = {j} + {block} < {body.index(extent)} ? {j} + {block} : {body.index(extent)};"
        )
    else:
        end = body.index(extent)
        body.line(f"int64_t {j} = 0;")
    known = extent.value
    if known is None or known >= w:
        test = f"{j} < {end}" if known is not None and known % w == 0 else f"{j} + {w} <= {end}"
        body.open(f"for (; {test}; {j} += {w}) ", {axis.symbol: j})
        _steps(frame, body)
        body.close()
    if known is None or known % w:
        body.open(f"if ({j} < {end}) ", {axis.symbol: j}, count=f"({end} - {j})")
        _steps(frame, body)
        body.close()
