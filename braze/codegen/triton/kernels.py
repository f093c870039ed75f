"""Kernel plans -> Triton kernels: the body that a writer wrote, its parameters, and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.codegen.records import KernelText, TritonLaunch
from braze.codegen.triton import asserts
from braze.codegen.triton.columns import RowsAndColumns
from braze.codegen.triton.ops import POINTERS
from braze.codegen.triton.prelude import used
from braze.codegen.triton.walks import Walker
from braze.codegen.triton.writer import Writer
from braze.loops.ir import Buffer
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.gpu.kernel_plan import KernelPlan
from braze.support.errors import InternalError
from braze.symbolic.expr import Expr

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
#: what kernels import that wait by themselves for those before them, or let those behind them begin
EARLY_HEADER = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"


def kernel(
    group: Group,
    plan: KernelPlan,
    schedule: Schedule,
    *,
    nvidia: bool = True,
    waits: bool = False,
    triggers: bool = False,
) -> KernelText:
    """The text of one group's kernel, for a GPU of NVIDIA's or another; ``waits``: it begins early and waits by itself for what is before it, ``triggers``:
    it lets what is behind it begin (then)."""
    both = plan.walked is not None and not plan.whole
    writer = RowsAndColumns(group, plan) if both else Walker(group, plan)
    begins = ["    if EARLY:", "        gdc_wait()"] if waits else ["    if LETS:"] if triggers else []
    begins += ["        gdc_launch_dependents()"] if triggers else []
    body = [*begins, *writer.write()]
    tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
    constants = tuple((f"{tile.letter.upper()}BLOCK", tile.block) for tile in tiles)
    constants += (("HELD", plan.registers if nvidia else 0),) if plan.held else ()
    constants += (("EARLY", 1),) if waits else (("LETS", 1),) if triggers else ()
    buffers = {name: schedule.buffer(name) for name in plan.arguments}
    return kernel_text(group.name, body, writer, buffers, constants, plan.programs, early=bool(begins))


def kernel_text(
    name: str,
    body: Sequence[str],
    writer: Writer,
    buffers: Mapping[str, Buffer],
    constants: tuple[tuple[str, int], ...],
    programs: Expr,
    *,
    early: bool,
) -> KernelText:
    """The kernel with the lines that a writer wrote. ``early``: they wait by themselves, or let others begin."""
    plan, sizes = writer.plan, tuple(s.name for s in writer.plan.sizes)
    if writer.emitter.asserts:
        raise InternalError("BZ9074", f"{name} does not write what it asserts: {writer.emitter.asserts}")
    constants += asserts.constants(body)
    pointers = [writer.emitter.pointers[b] for b in plan.arguments]
    parameters = ", ".join([*pointers, *sizes, *(f"{b}: tl.constexpr" for b, _ in constants)])
    function = "\n".join([f"@triton.jit\ndef {name}({parameters}):", *body, ""])
    source = f"{HEADER}{EARLY_HEADER if early else ''}\n{used(function)}\n\n{function}"
    dtypes = tuple(POINTERS[buffers[b].dtype.stored] for b in plan.arguments)
    launch = TritonLaunch(str(programs), constants, plan.warps, plan.stages, dtypes)
    canonical = f"{launch}\n{source.replace(name, 'kernel')}"
    return KernelText(name, "triton", source, plan.arguments, sizes, canonical, launch)
