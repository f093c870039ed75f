"""Steps that PyTorch takes on the device alone (``capturable=True``), recorded and replayed as a whole.

What a step reads and writes (parameters, gradients, states) lies where it lay, or the step is recorded again; gradients that a recorded
backward makes do. Settings that are plain numbers are part of a recording: for others there is another one. A learning rate that changes at each step is
best a tensor on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.cudagraphs.plan import Plan
from braze.cudagraphs.recorded import Limits, Recorded
from braze.cudagraphs.registry import device_of, records

Group = dict[str, Any]


class RecordedStep:
    """The steps of one param group. ``state``: the optimizer's."""

    def __init__(self, name: str, group: Group, state: Any, eager: Callable[[list[Group]], None]) -> None:
        self.name, self.group, self.state, self.eager = name, group, state, eager
        self._made: Recorded | None = None
        self._shape: tuple[int, str] = (0, "")

    def run(self, eager: Callable[[list[Group]], None]) -> bool:
        """Take the step; False, with nothing done, where it is no step that could be recorded."""
        self.eager = eager
        settings = self._settings()
        tensors = self._tensors()
        if settings is None or tensors is None:
            return False
        device = str(tensors[0].device)
        if self._made is None or self._shape != (len(tensors), device):
            self._shape = len(tensors), device
            self._made = Recorded(
                self._call, _plan(self.name, len(tensors), device), device_of(device), Limits()
            )
        self._made([*tensors, settings])
        # a replay writes without autograd's knowledge
        torch.autograd.graph.increment_version([x for x in tensors if not x.is_inference()])
        return True

    def _call(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        self.eager([self.group])
        return ()

    def _tensors(self) -> list[torch.Tensor] | None:
        """All that a step reads and writes; None where it makes some of it first, or some lies elsewhere."""
        params = [p for p in self.group["params"] if p.grad is not None]
        if not params or any(not self.state.get(p) for p in params):
            return None
        found = [*params, *(p.grad for p in params)]
        found += [x for p in params for x in self.state[p].values() if isinstance(x, torch.Tensor)]
        found += [x for x in self.group.values() if isinstance(x, torch.Tensor)]
        device = params[0].device
        plain = all(x.device == device and x.layout == torch.strided for x in found)
        return found if plain and records(device.type) else None

    def _settings(self) -> Any:
        """What a recording holds as it is: the group's numbers, and which parameters have a gradient; None: it can hold none."""
        rows = []
        for key, value in self.group.items():
            if key == "params":
                value = tuple(p.grad is not None for p in value)
            elif isinstance(value, torch.Tensor):
                value = "a tensor"
            rows.append((key, value))
        plain = all(isinstance(v, (bool, int, float, str, type(None), tuple)) for _, v in rows)
        numbers = (x for _, v in rows if isinstance(v, tuple) for x in v)
        return tuple(rows) if plain and all(isinstance(x, (bool, int, float)) for x in numbers) else None


def _plan(name: str, count: int, device: str) -> Plan:
    places = tuple(range(count))
    return Plan(name, device, places, sizes=((count, -1),), fixed=frozenset(places), written=True)
