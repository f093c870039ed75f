"""One recording of one call: its inputs, the device's graph, its outputs, and its place in a tree."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import native
from braze.cudagraphs.device import Asked, DeviceGraphs, Graph, Told, record
from braze.cudagraphs.inputs import Inputs
from braze.cudagraphs.outputs import Held, Outputs
from braze.cudagraphs.plan import Plan
from braze.cudagraphs.storages import spoil
from braze.cudagraphs.trees import Tree
from braze.graph.private.torch_compat import is_out_of_memory

Call = Callable[[Sequence[Any]], Sequence[Any]]


class Leave(enum.Enum):
    """How outputs leave a recording."""

    OWN = "own"  # over the recording's memory; while one is alive there is no replay
    COPIED = "copied"  # in memory of their own
    BORROWED = "borrowed"  # over the recording's memory, until the next replay
    WATCHED = "watched"  # borrowed, but in memory of their own that is spoiled at the next replay


class Recording:
    """``inputs``, ``graph`` and ``outputs`` of a call recorded into a tree as its ``number``."""

    def __init__(
        self, tree: Tree, number: int, inputs: Inputs, graph: Graph, outputs: Outputs, leave: Leave, name: str
    ) -> None:
        self.tree, self.number, self.name = tree, number, name
        self.inputs, self.graph, self.outputs = inputs, graph, outputs
        self.leave = leave
        #: the thread that made it
        self.thread = threading.get_ident()
        self._lent: list[Held] = []
        #: the same as one call of the C core; None where Python does it
        self.quick: native.Replay | None = None

    def free(self) -> bool:
        """Whether nothing that a replay writes is alive, but for what is borrowed."""
        return self.tree.free_from(self._first)

    def hasten(self, device: DeviceGraphs, stream: int) -> None:
        """Let the C core do it, for calls on this stream."""
        if self.leave is Leave.WATCHED or not native.replays_natively():
            return
        makers = self.outputs.copying() if self.leave is Leave.COPIED else self.outputs.makers()
        if makers is None:
            return
        self.quick = native.Replay(
            self.tree.holders,
            self._first,
            stream,
            device.index,
            *self.inputs.rows(),
            self.inputs.place,
            self.inputs.move,
            self.graph.replay,
            makers,
        )

    @property
    def _first(self) -> int:
        """The number of the first recording of whose outputs none may be held."""
        return self.number + (self.leave is Leave.BORROWED)

    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for inputs that fit."""
        kept = self.inputs.place(inputs)
        native.in_range("braze: replay", self.graph.replay)
        del kept
        if self.leave in (Leave.OWN, Leave.BORROWED):
            return self.outputs.tensors(inputs)
        outputs, memory = self.outputs.copies(inputs)
        if self.leave is Leave.WATCHED:
            self._call_in()
            self._lent = memory
        return outputs

    def _call_in(self) -> None:
        """What was lent before is valid no more."""
        for held in self._lent:
            if held.alive():
                spoil(
                    held.storage,
                    f"BZ6210: an output of {self.name} was kept and read after the next call of it, which may overwrite it: "
                    'outputs="borrow" lends them until then. Clone it, or leave out outputs="borrow".',
                )


class InRehearsal(Exception):
    """The call fails by itself."""


def made(
    call: Call,
    plan: Plan,
    device: DeviceGraphs,
    tree: Tree,
    inputs: Inputs,
    given: Sequence[Any],
    movable: Sequence[int] = (),
    rehearsed: bool = False,
) -> tuple[Graph, Outputs]:
    """Rehearse a call and record it. The outputs have no values yet, and nobody but they hold their memory.

    ``movable``: those of the copied inputs of which kernels may be told instead. ``rehearsed``: there is a recording of the same by this thread. Where something lives on that was made in memory which the
    pool shares (an output that sees an intermediate value's memory, a tensor that an operator of the program's keeps), the call is
    recorded once more, without such memory.
    """
    with torch.inference_mode(False), torch.no_grad():
        inputs.place(given)
        if not (plan.written or rehearsed):  # else what it writes would be written twice
            _rehearse(call, plan, device, list(inputs.values))
        watched = inputs.memory(movable)

        def recorded(shared: bool) -> tuple[Told, Outputs]:
            asked = Asked(plan.draws, tuple(watched.values()), shared, plan.products, plan.values)
            return record(device, tree.pool, lambda: Outputs(call(list(inputs.values)), inputs.values), asked)

        graph, outputs = recorded(True)
        if graph.stays:
            del graph, outputs
            graph, outputs = recorded(False)
    inputs.tell(graph, tuple(watched), device.costs)
    inputs.forget()
    outputs.settle(graph.apart)
    return graph, outputs


def _rehearse(call: Call, plan: Plan, device: DeviceGraphs, values: list[Any]) -> None:
    """Run the call once, so that what libraries and Triton make at a thread's first call is there; in memory that its first call used."""
    with device.kept_numbers() if plan.draws else contextlib.nullcontext():
        try:
            call(values)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise InRehearsal from error
