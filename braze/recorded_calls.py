"""The call of a graph that is recorded, whole or in parts, and cut anew where an operator turns out to fail while it is recorded.

What cannot be recorded is known of most operators before (``recording_plans.py``), of others when it is tried. Then the graph's schedule
is divided again, at that operator too, and the parts' calls take the place of what was tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from braze.context import CompileContext
from braze.cudagraphs.device import DeviceGraphs
from braze.cudagraphs.padding import Padded
from braze.cudagraphs.plan import Batch, Plan
from braze.cudagraphs.reasons import note
from braze.cudagraphs.recorded import Instead, Limits, Recorded
from braze.cudagraphs.recording import Leave
from braze.cudagraphs.registry import device_of, records
from braze.recording_plans import Division
from braze.runtime.call.boxed import Boxed, boxed
from braze.support.errors import BrazeError
from braze.support.log import logger


def for_recording(ctx: CompileContext) -> CompileContext:
    """The context of a graph whose calls are recorded: it keeps nothing of its own from call to call that a replay would not see."""
    if not (ctx.options.cudagraphs or ctx.recordable):
        return ctx
    options = dataclasses.replace(ctx.options, gemm_template=False, arena=False)
    if not ctx.options.cudagraphs:
        return dataclasses.replace(ctx, options=options) if records(ctx.target.kind) else ctx
    if not records(ctx.target.kind):
        note(
            "BZ6202", ctx.name, f"is not recorded: it runs on a device ({ctx.target.kind}) that has no graphs"
        )
        options = dataclasses.replace(ctx.options, cudagraphs=False)
    return dataclasses.replace(ctx, options=options)


@boxed
class Current:
    """The call of a graph as it is cut now."""

    def __init__(self, call: Boxed) -> None:
        self.call = call

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return self.call(inputs)


#: (operators that fail, with the reasons; who is told of one more) -> the graph's call, and how it is divided
Make = Callable[[Mapping[str, str], "Cutter"], tuple[Boxed, Division]]


class Cutter:
    """Cuts a graph anew; held by the calls that were not recorded yet. ``operators``: those that the graph calls, as "namespace.name"."""

    def __init__(self, make: Make, operators: frozenset[str]) -> None:
        self._make, self._operators = make, operators
        self._failing: dict[str, str] = {}
        call, self.division = make(self._failing, self)
        self.current = Current(call)

    def first(self) -> Boxed:
        """The call before anything failed: one that is recorded whole has a place for what comes instead."""
        return self.current if self.division.parts else self.current.call

    def cut(self, operator: str, why: str) -> bool:
        """Cut the graph at an operator, too; False where that changes nothing."""
        if operator in self._failing or operator not in self._operators:
            return False
        self._failing[operator] = why
        try:
            self.current.call, self.division = self._make(self._failing, self)
        except BrazeError as error:
            logger("cudagraphs").info("cannot be cut at %s: %s", operator, error)
            return False
        return True

    def instead(self, call: Boxed, *, whole: bool) -> Instead:
        """What runs in place of a call that cannot be recorded: the graph as it is cut then; for a part the call itself, once more."""

        def runs(operator: str, why: str) -> Boxed | None:
            if not self.cut(operator, why):
                return None
            return self.current if whole else call

        return runs


class Recorder:
    """Makes of the calls of a division's plans such that are recorded at their second use. ``borrowable``: outputs are the user's alone."""

    def __init__(self, division: Division, ctx: CompileContext, cutter: Cutter, *, borrowable: bool) -> None:
        self.division, self.options, self.other = division, ctx.options, ctx.recorder
        self.plans = dict(division.parts)
        self.cutter = cutter
        self.leave = Leave.OWN
        if self.options.outputs == "borrow" and borrowable:
            self.leave = Leave.WATCHED if self.options.verify else Leave.BORROWED

    def whole(self, call: Boxed) -> Boxed:
        """The call of the graph."""
        return self._recorded(call, self.division.whole, whole=True)

    def part(self, number: int, call: Boxed) -> Boxed:
        """The call of a part."""
        return self._recorded(call, self.plans.get(number), whole=False)

    def _recorded(self, call: Boxed, plan: Plan | None, *, whole: bool) -> Boxed:
        if plan is None:
            return call
        if self.other is not None:
            return self.other(call, plan)
        limits = Limits(
            self.options.cudagraph_sizes,
            self.options.cudagraph_memory,
            self.leave,
            self.options.cudagraph_measure,
        )
        instead = self.cutter.instead(call, whole=whole)
        return Recorded(call, plan, device_of(plan.device), limits, instead)


def padded(call: Boxed, batch: Batch | str | None, device: str, ctx: CompileContext) -> Boxed:
    """``call`` with the rows of its batch filled up to the sizes that are recorded, where the program lets it."""
    if isinstance(batch, Batch):
        return Padded(call, ctx.name, batch, ctx.options.cudagraph_sizes, device_of(device))  # type: ignore[arg-type]
    if batch is not None:
        note("BZ6215", ctx.name, f"is not filled up to recorded sizes: {batch}", tell=object())
    return call


def recorder(device: str) -> DeviceGraphs | None:
    """The recorder of a device that has one."""
    return device_of(device) if records(device.partition(":")[0]) else None
