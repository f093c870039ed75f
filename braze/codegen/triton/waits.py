"""Which kernels begin before what is ahead of them on the stream has ended, and the proof that they wait before they touch what that may write.

A kernel waits for all of the kernel ahead of it, which has waited for all ahead of that: behind the wait everything is as in the plain order.
Before it a kernel reads what no kernel of its graph writes, its weights, and what has been computed of these once. Who wrote these before the graph was called is
done when the graph's first kernel begins, if that is launched in its turn.

This is shown of kernels that are written here, and of no other. A library may launch its own so that they, too, begin early, and when those wait and what
they do before nobody can read: so a kernel begins in its turn behind a call, and lets what is behind it begin only where that is a kernel written here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.ir import BufferKind, ExternCall, TemplateCall
from braze.schedule.facts.records import Group, GroupKind, Schedule
from braze.support.errors import InternalError
from braze.support.record import record
from braze.symbolic.expr import product

#: GPUs on which a kernel can begin before the one ahead of it on its stream has ended, and wait for that by itself
WAITING = frozenset({"sm_90"})
#: rows of a step's products at most. On an H200 all kernels that begin early save 9% of a step of 24 layers for one row, 2% for eight (without its products'
#: beginning early 4 and 0), and cost a BERT of 1,024 rows 5%
STEP = 16
PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten._addmm_activation.default"})
WAIT = "    if EARLY:\n        gdc_wait()"
_POINTER = re.compile(r"\b(?:in|out)_ptr(\d+)\b")


@record
class Early:
    """``following``: kernels that are short and read what the one ahead of them leaves begin early; ``products``: and those of a row or two that have
    weights to read, which are ``constants``; ``others``: and all others that are no products. ``turns``: the kernels that begin in their turn all the same,
    ``lets``: those that may let what is behind them begin."""

    following: bool = False
    products: bool = False
    others: bool = False
    constants: frozenset[str] = frozenset()
    turns: frozenset[str] = frozenset()
    lets: frozenset[str] = frozenset()

    def ahead(self, group: Group) -> frozenset[str] | None:
        """What a product may read before it waits; None: it is not to begin early."""
        return self.constants if self.products and group.name not in self.turns else None

    def waits(self, group: Group) -> bool:
        """Whether a kernel that is no product begins early."""
        return group.name not in self.turns and (self.others or (self.following and group.follows))

    def triggers(self, group: Group, behind: Group | None) -> bool:
        """Whether a kernel that is no product lets the one behind it begin: where it begins early itself, or that one is short."""
        every = self.others and self.waits(group)
        return group.name in self.lets and (
            every or (behind is not None and behind.follows and self.waits(behind))
        )


def early_of(schedule: Schedule, ctx: CompileContext) -> Early:
    """What of a schedule begins early."""
    if ctx.target.arch not in WAITING or ctx.options.early_launches == "none":
        return Early()
    written = {name for group in schedule.groups for name in group.writes} | {*schedule.program.mutated}
    constants = frozenset(
        b.name for b in schedule.program.buffers if b.kind is BufferKind.CONSTANT and b.name not in written
    )
    told, between = ctx.options.early_launches, is_between(ctx)
    every = told == "all" or (told == "auto" and is_step(schedule))
    # in recordings this was measured only with the others
    following = every or not ctx.options.cudagraphs
    turns, lets = in_turn(schedule, between), lets_begin(schedule, between)
    return Early(following, told != "following", every, constants, turns, lets)


def is_step(schedule: Schedule) -> bool:
    """Whether a graph multiplies by matrices, none of its products has more than ``STEP`` rows, and it has no convolutions: a decoder's step."""
    shapes = {b.name: b.sizes for b in schedule.program.buffers}
    rows = []
    for group in schedule.groups:
        if isinstance(group.call, TemplateCall):
            if group.call.kind == "depthwise":
                return False
            # experts' rows are a step's tokens several times over
            if group.call.kind == "gemm":
                rows.append(product([axis.extent for axis in group.call.axes[:-1]]))
        elif isinstance(group.call, ExternCall):
            if group.call.target == "aten.convolution.default":
                return False
            if group.call.target in PRODUCTS and group.call.outputs[0]:
                rows.append(shapes[group.call.outputs[0]][0])
    return bool(rows) and all((n.bounds()[1] or STEP + 1) <= STEP for n in rows)


def is_between(ctx: CompileContext) -> bool:
    """Whether a graph is told to stand between kernels that are written here, as a piece of a served model between its attention operators."""
    return ctx.options.early_launches == "between"


def in_turn(schedule: Schedule, between: bool = False) -> frozenset[str]:
    """The kernels with no other certain to run right ahead of them: a graph's first, unless it stands ``between`` others, one behind a call, and what follows a kernel of
    sizes that may be 0 there. The first is one, too, where a graph has values that are computed once: these are constants to it, and in a recording, or of tensors
    without versions, the kernels that make them are right ahead of it in each call."""
    return _alone(schedule.groups, between and schedule.fixed is None)


def lets_begin(schedule: Schedule, between: bool) -> frozenset[str]:
    """The kernels with another certain to run right behind them: not a graph's last, unless it stands ``between`` others, nor one before a call."""
    every = frozenset(g.name for g in schedule.groups if _is_kernel(g))
    return every - _alone(schedule.groups[::-1], between)


def _alone(groups: Sequence[Group], between: bool) -> frozenset[str]:
    """The kernels with no kernel of the same GPU just before them in this order, or with one that may have no program."""
    names, before = set(), groups[0].device if between and groups else ""
    for group in groups:
        if group.kind is GroupKind.EXTERN:
            before = ""
        elif _is_kernel(group):
            if before != group.device:
                names.add(group.name)
                before = ""
            axes = group.call.axes if isinstance(group.call, TemplateCall) else group.axes
            if all((axis.extent.bounds()[0] or 0) > 0 for axis in axes):
                before = group.device
    return frozenset(names)


def _is_kernel(group: Group) -> bool:
    return group.kind is not GroupKind.EXTERN and group.device != "cpu"


def require_turns(schedule: Schedule, texts: Sequence[KernelText], between: bool = False) -> None:
    """Raise InternalError BZ9073 where a kernel begins early behind what nobody here has written, or lets such begin early."""
    turns, lets = in_turn(schedule, between), lets_begin(schedule, between)
    for text in texts:
        assert text.launch is not None
        if "EARLY" in dict(text.launch.constants) and text.name in turns:
            _refuse(text, "begins early behind what is no kernel of its graph")
        if "gdc_launch_dependents()" in text.source and text.name not in lets:
            _refuse(text, "lets begin early what is no kernel of its graph")


def require_wait_first(text: KernelText, ahead: frozenset[str]) -> None:
    """Raise InternalError BZ9073 where a kernel that begins early touches other buffers than ``ahead`` before it waits, or does not wait,
    or one that does not begin early has a wait. Works from the text alone."""
    body = text.source.split(f"def {text.name}(", 1)[1].split("\n", 1)[1]
    assert text.launch is not None
    if "EARLY" not in dict(text.launch.constants):
        if "gdc_wait" in body:
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
        reads = ("tl.load(" in line or "bz_fetch(" in line) and "tl.store(" not in line
        if touched - ahead or (touched and not reads):
            _refuse(text, f"touches memory before it waits: {line.strip()}")


def _refuse(text: KernelText, why: str) -> None:
    raise InternalError("BZ9073", f"kernel {text.name} {why}")
