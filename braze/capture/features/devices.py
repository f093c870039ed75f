"""What a program asks of its GPUs: which one is current is a setting, which a guard sees; what one is like never changes."""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.capture.facts import policy
from braze.capture.python import calls
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
