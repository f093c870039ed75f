"""One recording of one call: its inputs, the device's graph, its outputs, and its place in a tree."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.cudagraphs.device import DeviceGraphs, Graph, record
from braze.cudagraphs.inputs import Inputs
from braze.cudagraphs.outputs import Outputs
from braze.cudagraphs.plan import Plan
from braze.cudagraphs.trees import Tree
from braze.graph.torch_compat import is_out_of_memory

Call = Callable[[Sequence[Any]], Sequence[Any]]


class Recording:
    """``inputs``, ``graph`` and ``outputs`` of a call recorded into a tree as its ``number``.

    ``copies``: its outputs leave in memory of their own, so that none of them is ever alive when it is replayed.
    """

    def __init__(
        self, tree: Tree, number: int, inputs: Inputs, graph: Graph, outputs: Outputs, copies: bool
    ) -> None:
        self.tree, self.number = tree, number
        self.inputs, self.graph, self.outputs = inputs, graph, outputs
        self.copies = copies
        self.replays = 0

    def free(self) -> bool:
        """Whether nothing that a replay writes is alive."""
        return self.tree.free_from(self.number)

    def replay(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for inputs that fit."""
        self.inputs.place(inputs)
        self.graph.replay()
        self.replays += 1
        return self.outputs.copies(inputs) if self.copies else self.outputs.tensors(inputs)


class InRehearsal(Exception):
    """The call fails by itself."""


def made(
    call: Call, plan: Plan, device: DeviceGraphs, tree: Tree, inputs: Inputs, given: Sequence[Any]
) -> tuple[Graph, Outputs]:
    """Rehearse a call and record it. The outputs have no values yet, and nobody but they hold their memory."""
    with torch.inference_mode(False), torch.no_grad():
        inputs.place(given)
        if not plan.written:  # else what it writes would be written twice
            _rehearse(call, plan, device, list(inputs.values))
        graph, outputs = record(device, tree.pool, lambda: Outputs(call(list(inputs.values)), inputs.values))
    inputs.forget()
    outputs.settle()
    return graph, outputs


def _rehearse(call: Call, plan: Plan, device: DeviceGraphs, values: list[Any]) -> None:
    """Run the call once where it will be recorded, so that what libraries and Triton make at a first call is there."""
    with device.kept_numbers() if plan.draws else contextlib.nullcontext():
        try:
            call(values)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise InRehearsal from error
