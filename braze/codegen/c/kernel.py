"""One group of loop nests as one C kernel, as its plan says.

The tasks are numbered; a thread gets a contiguous share of the numbers and walks it with an
odometer.
"""

from __future__ import annotations

from braze.codegen.c.body import Body, Storage
from braze.codegen.c.expr import to_c
from braze.codegen.c.operations import Representations
from braze.codegen.c.prelude import STORAGE
from braze.codegen.records import KernelText
from braze.loops.ir import Buffer
from braze.loops.rewrite import loads, roots
from braze.schedule.cpu.processors import ProcessorPlan, Work, varying_of
from braze.schedule.facts.plans import blocks
from braze.schedule.facts.records import Group
from braze.support.record import record


@record
class Frame:
    """What every kernel of a group needs: its plan, and the names of its sizes."""

    group: Group
    buffers: dict[str, Buffer]
    plan: ProcessorPlan

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(symbol.name for symbol in self.plan.sizes)


def start_body(frame: Frame) -> Body:
    """The empty body of a kernel."""
    plan, group = frame.plan, frame.group
    symbol = plan.vector.symbol if plan.vector is not None else None
    varying = varying_of(group, plan.vector, plan.phases)
    body = Body(plan.lanes, symbol, varying, Representations(), Storage(frame.buffers), plan.gathers)
    body.reloaded = frozenset(loads(*(root for step in group.steps for root in roots(step))))
    for i, name in enumerate(plan.arguments):
        body.pointers[name] = f"b{i}"
    for size in plan.sizes:
        body.scope.symbols[size] = size.name
    return body


def open_tasks(frame: Frame, body: Body) -> str:
    """Open the loop over tasks, with a C variable per point axis; the name of the block's number, or ""."""
    plan = frame.plan
    digits = [(a.symbol.name, body.index(a.extent)) for a in plan.outer]
    digits += [("block", body.index(blocks(tile.extent, tile.block))) for tile in plan.points]
    if digits:
        body.line("int64_t rest = lo;")
    for n, (name, extent) in reversed(list(enumerate(digits))):
        body.line(f"int64_t {name} = rest{f' % {extent}; rest /= {extent}' if n else ''};")
    step = _odometer(digits)
    symbols = {a.symbol: a.symbol.name for a in plan.outer}
    body.open(f"for (int64_t task = lo; task < hi; ++task{step}) ", symbols)
    return "block" if plan.points else ""


def _odometer(digits: list[tuple[str, str]]) -> str:
    """The increment of the task's digits, as part of the for statement."""
    if not digits:
        return ""
    text = f"++{digits[0][0]}"
    for name, extent in digits[1:]:
        text = f"(++{name} == {extent} ? ({name} = 0, {text}) : 0)"
    return f", {text}"


def work_text(work: Work, threads: int) -> str:
    """C text of a kernel's cost, for at most so many threads."""
    counts = [f"({to_c(count)})*{each}" for count, each in work.counts]
    return capped(" + ".join([*counts, str(work.static)]), threads)


def capped(work: str, threads: int) -> str:
    """The work, or as much of it as keeps a number of threads busy (0: all of it)."""
    return f"bz_min_s({work}, {threads}L << 16)" if threads else work


def finish(frame: Frame, body: Body, threads: int) -> KernelText:
    """The complete function around a body's lines."""
    name, plan = frame.group.name, frame.plan
    lines = [f"static void {name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{"]
    lines += header(frame)
    lines += body.scope.lines
    lines.append("}")
    lines.append(f"void {name}(void **b, const int64_t *s) {{")
    lines += [f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)]
    cost = "0" if plan.serial else work_text(plan.work, threads)
    lines.append(f"  bz_run({name}_body, b, s, {to_c(plan.tasks)}, {cost});")
    lines.append("}")
    source = "\n".join(lines) + "\n"
    return text_of(frame, source)


def finish_parts(
    frame: Frame, part: list[str], rest: list[str], size: str, tasks: int, threads: int
) -> KernelText:
    """The complete functions of a kernel whose rows are cut: ``part`` leaves its results in ``parts``, of so many bytes; ``rest`` combines them."""
    name, plan = frame.group.name, frame.plan
    at = len(plan.arguments) + plan.status
    parts = f"  char *const parts = (char *)b[{at}];"
    lines = [
        f"static void {name}_body(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t tid) {{",
        *header(frame), parts, *part, "}",
        f"static void {name}_rest(void **b, const int64_t *s) {{",
        *header(frame), parts, *rest, "}",
        f"void {name}(void **b, const int64_t *s) {{",
        *(f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)),
        f"  char parts[{size}] __attribute__((aligned(64)));",
        f"  void *own[{at + 1}];",
        f"  for (int i = 0; i < {at}; ++i) own[i] = b[i];",
        f"  own[{at}] = parts;",
        f"  bz_run({name}_body, own, s, {tasks}, {work_text(plan.work, threads)});",
        f"  {name}_rest(own, s);",
        "}",
    ]  # fmt: skip
    return text_of(frame, "\n".join(lines) + "\n")


def text_of(frame: Frame, source: str) -> KernelText:
    """A kernel's source with what it is called with."""
    plan, name = frame.plan, frame.group.name
    args = (*plan.arguments, "status") if plan.status else plan.arguments
    return KernelText(name, "c", source, args, frame.sizes, source.replace(name, "KERNEL"))


def header(frame: Frame) -> list[str]:
    """Named pointers and sizes."""
    out = []
    for i, name in enumerate(frame.plan.arguments):
        c = STORAGE[frame.buffers[name].dtype.stored.label][0]
        out.append(f"  {c} *const b{i} = ({c} *)b[{i}];")
    if frame.plan.status:
        out.append(f"  int64_t *const status = (int64_t *)b[{len(frame.plan.arguments)}];")
    out += [f"  const int64_t {x} = s[{i}];" for i, x in enumerate(frame.sizes)]
    return out
