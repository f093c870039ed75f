"""Which kernels begin before what is ahead of them on the stream has ended, and the proof that they wait before they touch what that may write.

A kernel waits for all of the kernel ahead of it, which has waited for all ahead of that: behind the wait everything is as in the plain order.
Before it a kernel reads what no kernel of its graph writes, its weights. Who wrote these before the graph was called is done when the graph's first
kernel begins, if that is launched in its turn.
"""

from __future__ import annotations

import re

from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.ir import BufferKind, TemplateCall
from braze.schedule.records import Group, GroupKind, Schedule
from braze.support.errors import InternalError
from braze.support.record import record

#: GPUs on which a kernel can begin before the one ahead of it on its stream has ended, and wait for that by itself
WAITING = frozenset({"sm_90"})
WAIT = "    if EARLY:\n        gdc_wait()"
_POINTER = re.compile(r"\b(?:in|out)_ptr(\d+)\b")


@record
class Early:
    """``following``: kernels that are short and read what the one ahead of them leaves begin early; ``products``: and those of a row or two that have
    weights to read, which are ``constants``; ``others``: and all others that are no products. ``turns``: the kernels that begin in their turn all the same."""

    following: bool = False
    products: bool = False
    others: bool = False
    constants: frozenset[str] = frozenset()
    turns: frozenset[str] = frozenset()

    def ahead(self, group: Group) -> frozenset[str] | None:
        """What a product may read before it waits; None: it is not to begin early."""
        return self.constants if self.products and group.name not in self.turns else None

    def waits(self, group: Group, *, follows: bool) -> bool:
        """Whether a kernel that is no product begins early."""
        return group.name not in self.turns and (self.others or (self.following and follows))


def early_of(schedule: Schedule, ctx: CompileContext) -> Early:
    """What of a schedule begins early."""
    if ctx.target.arch not in WAITING or ctx.options.early_launches == "none":
        return Early()
    written = {name for group in schedule.groups for name in group.writes} | {*schedule.program.mutated}
    constants = frozenset(
        b.name for b in schedule.program.buffers if b.kind is BufferKind.CONSTANT and b.name not in written
    )
    told = ctx.options.early_launches
    # in recordings this was measured only with the others
    following = told == "all" or not ctx.options.cudagraphs
    turns = _in_turn(schedule) if told == "all" else frozenset[str]()
    return Early(following, told in ("products", "all"), told == "all", constants, turns)


def _in_turn(schedule: Schedule) -> frozenset[str]:
    """The kernels up to the first that runs for any sizes: what comes after it comes after all that was launched before the graph."""
    names = set()
    for group in schedule.groups:
        if group.kind is GroupKind.EXTERN or group.device == "cpu":
            continue
        names.add(group.name)
        axes = group.call.axes if isinstance(group.call, TemplateCall) else group.axes
        if all((axis.extent.bounds()[0] or 0) > 0 for axis in axes):
            break
    return frozenset(names)


def require_wait_first(text: KernelText, ahead: frozenset[str]) -> None:
    """Raise InternalError BZ9073 where a kernel that begins early touches other buffers than ``ahead`` before it waits, or does not wait,
    or one that does not begin early has a wait. Works from the text alone."""
    body = text.source.split(f"def {text.name}(", 1)[1].split("\n", 1)[1]
    assert text.launch is not None
    if "EARLY" not in dict(text.launch.constants):
        if "gdc_" in body:
            _refuse(text, "waits and does not begin early")
        return
    before, wait, after = body.partition(WAIT)
    if (
        not wait
        or "gdc_wait" in after
        or re.search(r"^    (?:for|while|if (?!EARLY)|return)", before, re.MULTILINE)
    ):
        _refuse(text, "does not wait once, on every way")
    for line in before.splitlines():
        touched = {text.args[int(found)] for found in _POINTER.findall(line)}
        if touched - ahead or (touched and ("tl.load(" not in line or "tl.store(" in line)):
            _refuse(text, f"touches memory before it waits: {line.strip()}")


def _refuse(text: KernelText, why: str) -> None:
    raise InternalError("BZ9073", f"kernel {text.name} {why}")
