"""What a program asks of its GPUs, and blocks of a device: which one is current is a setting, which a guard sees; what one is like never changes."""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.capture.facts import policy
from braze.capture.facts.breaks import graph_break
from braze.capture.python import calls
from braze.capture.python.unwinding import resumable_step
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()

TELLS: Any = torch.cuda.get_device_properties
COUNTS: Any = torch.cuda.device_count


@FEATURE.each(TELLS, COUNTS)
def asked(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Where a GPU is in use, PyTorch asks the driver for their number once, and has made the function in C that tells of one: from then on it is known."""
    if torch.cuda.is_initialized():
        COUNTS()
    in_c = vars(torch.cuda).get("_get_device_properties")
    if type(in_c) is types.BuiltinFunctionType:
        policy.FUNCTIONS[in_c] = policy.Purity.BLIND
    return calls.interpret(t, function, args, kwargs, tail)


# -- ``with torch.device(...)``: tensors that the trace makes in the block are made there


def enter(t: Trace, device: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    """The block is a mode of the trace; what breaks in it runs whole, as it is."""
    t.graph.devices.append(resumable_step(t.frames))
    return torch.device.__enter__(device)


def leave(t: Trace, device: Any, args: Any, kwargs: Any, tail: bool) -> Any:
    if not t.graph.devices:
        graph_break("BZ1019", "the block of a device is left that was entered outside")
    t.graph.devices.pop()
    return torch.device.__exit__(device, *args)


FEATURE.methods[torch.device, "__enter__"] = enter
FEATURE.methods[torch.device, "__exit__"] = leave


@FEATURE.call(torch.set_default_device)
def set_default(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """It enters and leaves modes around all others, which a trace has put aside."""
    graph_break("BZ1010", "the default device is set")
