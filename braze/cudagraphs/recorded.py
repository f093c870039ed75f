"""A compiled graph's call that is recorded at its second use and replayed from then on, wherever that gives what the call would.

The first call runs as it is. Each later one looks for a recording whose static inputs lie where these lie, and of which nothing is
alive that a replay would write; there the inputs that remain are copied into place and the graph is replayed. Where there is none,
one is made: on another path, since static inputs lie elsewhere, for other sizes, or as a second slot, since the outputs of
the first are still held. Where two slots are held, a recording is made whose outputs are copied out. What cannot be recorded, or
not any more, runs as it is, and says why.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.cudagraphs.culprits import culprit
from braze.cudagraphs.device import DeviceGraphs, NotRecordable
from braze.cudagraphs.idle import Idle
from braze.cudagraphs.inputs import Inputs
from braze.cudagraphs.plan import Plan
from braze.cudagraphs.reasons import note
from braze.cudagraphs.recording import Call, InRehearsal, Leave, Recording, made
from braze.cudagraphs.sizes import Group, Sizes, describe
from braze.cudagraphs.storages import Seen
from braze.cudagraphs.trees import Tree, forest_of
from braze.graph.private.torch_compat import is_out_of_memory
from braze.runtime.call.boxed import boxed
from braze.support import trace
from braze.support.interrupts import is_of_handler
from braze.support.log import logger
from braze.support.record import record

#: recordings whose outputs may be alive at once; the next copies them out
SLOTS = 2
#: recordings of one graph for one choice of sizes
MOST = 16
#: how often a parameter may move, or an input come from another recording, before it is copied
MOVES = 3


@record
class Limits:
    """``sizes``: how many sizes of a graph are recorded, or which. ``memory``: bytes of all recordings of a device, or a share of its memory.
    ``leave``: how outputs leave, unless too many are held. ``measured``: only what launches limit is recorded."""

    sizes: int | tuple[int, ...] = 16
    memory: float = 0.5
    leave: Leave = Leave.OWN
    measured: bool = False


#: (an operator, why it fails while it is recorded) -> the same call without a recording of that; None: there is none
Instead = Callable[[str, str], Call | None]


@boxed
class Recorded:
    """``call`` with the recordings of it. Used from several threads; those of one device take turns.

    ``instead``: what to call from now on where an operator turned out to fail while it is recorded.
    """

    def __init__(
        self, call: Call, plan: Plan, device: DeviceGraphs, limits: Limits, instead: Instead | None = None
    ) -> None:
        self.call, self.plan, self.device = call, plan, device
        #: asked until something is recorded
        self.instead = instead
        #: another call has taken the place of what was to be recorded
        self.given_up = False
        self.sizes = Sizes(limits.sizes, _weakly(self))
        self.memory = limits.memory
        self.leave = limits.leave
        self.forest = forest_of(device)
        self.idle = Idle(plan.name, device) if limits.measured else None
        self.told = object()
        self._varies = bool(plan.sizes or plan.varying)
        self._quick = self._new_quick()
        _live.add(self)

    def _new_quick(self) -> native.Replays | None:
        """What the C core replays of a graph whose sizes do not vary: there one call does it all."""
        if self._varies or not native.replays_natively():
            return None
        device = self.device
        return native.Replays(device.lock.acquire, device.lock.release, device.busy, device.stream)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        outputs = self._quick(inputs) if self._quick is not None else None
        if outputs is None:
            return self._called(inputs)
        if self.plan.consumes:
            inputs.clear()  # type: ignore[attr-defined]
        return outputs

    def _called(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """A call that is not replayed by the C core at once."""
        if self.given_up:
            return self.call(inputs)
        if self.device.busy():
            note(
                "BZ6211",
                self.plan.name,
                "runs inside a recording of somebody else's, and becomes a part of it",
            )
            return self.call(inputs)
        if self.idle is not None and not self.idle.limits:
            return self.idle.call(self.call, inputs) if self.idle.limits is None else self.call(inputs)
        with self.device.lock:
            group = self._group(inputs)
            outputs = self._from(group, inputs) if group is not None else None
        if outputs is None:
            return self.call(inputs)
        if self.plan.consumes:
            inputs.clear()  # type: ignore[attr-defined]
        return outputs

    def _group(self, inputs: Sequence[Any]) -> Group | None:
        """The recordings for the sizes and the stream of this call; None where there are to be none."""
        sizes = tuple([inputs[i] if dim < 0 else inputs[i].shape[dim] for i, dim in self.plan.sizes])
        if not self.sizes.listed(sizes):
            note(
                "BZ6206",
                self.plan.name,
                f"is not recorded{describe(sizes)}, which cudagraph_sizes does not list",
            )
            return None
        layouts = tuple([(inputs[i].shape, inputs[i].stride()) for i in self.plan.varying])
        group, gone = self.sizes.find((self.device.stream(), sizes, layouts))
        if gone is not None:
            for tree in {id(r.tree): r.tree for r in gone.recordings}.values():
                release(gone, tree)
            note(
                "BZ6206", self.plan.name, f"is recorded{describe(sizes)} in place of sizes that are used less"
            )
        if group is None:
            note("BZ6206", self.plan.name, f"{self.sizes.why_not()}{describe(sizes)}", tell=self.told)
        return group

    def _from(self, group: Group, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The outputs from a recording; None where the call must run as it is."""
        for recording in group.recordings:
            outputs = recording.quick(inputs) if recording.quick is not None else None
            if outputs is not None:
                return outputs
            if recording.inputs.fit(inputs) and recording.free():
                self.forest.touch(recording.tree)
                return recording.replay(inputs)
        if group.closed:
            return None
        if group.calls == 1:
            group.seen = {i: Seen(inputs[i]) for i in self.plan.tensors}
            return None
        made_now = self._record(group, inputs)
        return made_now.replay(inputs) if made_now is not None else None

    def _record(self, group: Group, inputs: Sequence[Any]) -> Recording | None:
        """A recording for this call, or None with the reason told."""
        fitting = [r for r in group.recordings if r.inputs.fit(inputs)]
        if group.recordings and not fitting:
            self._moved(group, inputs)
        if len(group.recordings) >= MOST:
            self._close(group, "BZ6206", f"was recorded {MOST} times; no more recordings of it are made")
        if group.closed:
            return None
        leave = Leave.COPIED if len(fitting) >= SLOTS else self.leave
        near, static, copied = self._kinds(group, inputs)
        tree = self.forest.tree_for(group, [] if leave is Leave.COPIED else near, self.device)
        placed, before = None, self.forest.held()
        try:
            placed = Inputs(inputs, static, copied)
            movable = self._movable(copied, leave)
            mine = [r.inputs.static for r in fitting if r.thread == threading.get_ident()]
            rehearsed = placed.static in mine
            graph, outputs = made(self.call, self.plan, self.device, tree, placed, inputs, movable, rehearsed)
        except Exception as error:
            if is_of_handler(error):  # a time limit of the program's
                raise
            if not self._given_up(error, placed):
                self._failed(group, error)
            return None
        self.instead = None
        recording = Recording(
            tree, self.forest.enter(tree, group, outputs.held), placed, graph, outputs, leave, self.plan.name
        )
        group.recordings.append(recording)
        # what reads the most where it lies is tried first
        group.recordings.sort(key=lambda r: -len(r.inputs.static))
        self._tell(group, fitting, recording)
        self._weigh(self.forest.held() - before)
        recording.hasten(self.device, self.device.stream())
        self.serve()
        return recording if self._within_budget(group, recording) else None

    def serve(self) -> None:
        """Hand the recordings that there are now to the C core."""
        if self._quick is not None:
            every = [r.quick for group in self.sizes.groups.values() for r in group.recordings]
            self._quick.fill(tuple([quick for quick in every if quick is not None]))

    def _kinds(self, group: Group, inputs: Sequence[Any]) -> tuple[list[Tree], list[int], list[int]]:
        """The trees whose outputs the inputs are, the inputs read where they lie, and those copied."""
        near: list[Tree] = []
        static: list[int] = []
        copied: list[int] = []
        for i in self.plan.tensors:
            x = inputs[i]
            tree = self.forest.tree_of(x)
            if tree is not None and tree not in near and i not in group.unsteady:
                near.append(tree)
            steady = tree is not None or i in self.plan.constants or isinstance(x, torch.nn.Parameter)
            steady = steady or (i in group.seen and group.seen[i].stays(x))
            if i in self.plan.fixed or (steady and i not in group.unsteady):
                static.append(i)
            else:
                copied.append(i)
        return near, static, copied

    def _movable(self, copied: list[int], leave: Leave) -> list[int]:
        """Inputs of which kernels may be told where they lie: borrowed memory may be written while it is an input."""
        if self.plan.draws or leave in (Leave.BORROWED, Leave.WATCHED):
            return []
        return [i for i in copied if i in self.plan.kernels]

    def _moved(self, group: Group, inputs: Sequence[Any]) -> None:
        """Count what lies elsewhere than in each recording: what moves too often is copied from now on."""
        for i in min((r.inputs.moved(inputs) for r in group.recordings), key=len):
            group.moved[i] = group.moved.get(i, 0) + 1
            x = inputs[i]
            kept = i in self.plan.constants or isinstance(x, torch.nn.Parameter)
            kept = kept or self.forest.tree_of(x) is not None or i in self.plan.fixed
            if kept and group.moved[i] <= MOVES:
                continue
            group.unsteady.add(i)
            if i in self.plan.fixed:
                self._close(group, "BZ6205", f"writes input {i}, which lies elsewhere at each call")

    def _given_up(self, error: Exception, placed: Inputs | None) -> bool:
        """Whether an operator is to blame for a recording that came to nothing, without which there is another call."""
        if (
            self.instead is None
            or placed is None
            or isinstance(error, InRehearsal)
            or is_out_of_memory(error)
        ):
            return False
        operator = culprit(self.call, self.device, placed.values)
        found = self.instead(operator, _first_line(error)) if operator is not None else None
        if found is None:
            return False
        self.call, self.given_up, self.instead = found, True, None
        return True

    def _failed(self, group: Group, error: Exception) -> None:
        """A recording that came to nothing: the graph runs as it is from now on."""
        if is_out_of_memory(error):
            self._close(group, "BZ6207", f"ran out of memory while it was recorded: {_first_line(error)}")
        elif isinstance(error, InRehearsal):
            pass  # the call that runs as it is raises the program's error
        elif isinstance(error, NotRecordable):
            self._close(group, "BZ6204", f"cannot be recorded: {error}")
        else:
            self._close(
                group, "BZ6208", f"failed while it was recorded: {type(error).__name__}: {_first_line(error)}"
            )

    def _close(self, group: Group, code: str, why: str) -> None:
        """No more recordings of a group."""
        if not group.closed:
            group.closed = code
            note(code, self.plan.name, why, tell=self.told)

    def _tell(self, group: Group, fitting: list[Recording], recording: Recording) -> None:
        """Count a recording, and why there is one more of its sizes."""
        trace.count("cudagraph_recordings")
        trace.count("cudagraph_inputs_told", len(recording.inputs.told))
        if recording.leave is Leave.COPIED:
            why = f"is recorded with its outputs copied out: those of {len(fitting)} recordings are held"
        elif fitting:
            why = "is recorded again, into a second slot: outputs of the first are held"
        elif len(group.recordings) > 1:
            why = "is recorded again: inputs that were read in place lie elsewhere"
        else:
            return
        note("BZ6201", self.plan.name, why)

    def _weigh(self, taken: int) -> None:
        """Count the memory that a recording took, and log it."""
        trace.count("cudagraph_bytes", taken)
        logger("cudagraphs").info(
            "%s: recorded; pools grew by %d bytes, all recordings hold %d",
            self.plan.name,
            taken,
            self.forest.held(),
        )

    def _within_budget(self, group: Group, recording: Recording) -> bool:
        """Let go of the trees used longest ago until all recordings fit into the budget; whether this one does."""
        limit = self.memory if self.memory > 1 else self.memory * self.device.capacity()
        self.forest.touch(recording.tree)
        while self.forest.held() > limit:
            oldest = self.forest.trees()[0]
            own = oldest is recording.tree
            if own:
                self._close(
                    group,
                    "BZ6209",
                    f"takes more memory to record than cudagraph_memory allows ({limit:.0f} bytes)",
                )
            else:
                note(
                    "BZ6209",
                    self.plan.name,
                    "is recorded in place of recordings used longest ago (cudagraph_memory)",
                )
            for each in oldest.groups():
                release(each, oldest)
                each.evicted += 1
                if each.evicted > MOVES:  # recordings that drive each other out cost more than they save
                    each.closed = "BZ6209"
            self.forest.remove(oldest)
            if own:
                return False
        return True


def release(group: Group, tree: Tree) -> None:
    """Let go of a group's recordings in a tree."""
    gone = [r for r in group.recordings if r.tree is tree]
    group.recordings = [r for r in group.recordings if r.tree is not tree]
    for recording in gone:
        tree.drop(recording.number)
    group.changed()


def _weakly(recorded: Recorded) -> Callable[[], object]:
    """Its ``serve``, which keeps it from nothing."""
    known = weakref.ref(recorded)

    def serve() -> None:
        found = known()
        if found is not None:
            found.serve()

    return serve


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


_live: weakref.WeakSet[Recorded] = weakref.WeakSet()
