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


@FEATURE.call(TELLS)
def properties(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """PyTorch makes the function in C that tells of a GPU when it first uses one: from then on it is known."""
    in_c = vars(torch.cuda).get("_get_device_properties")
    if type(in_c) is types.BuiltinFunctionType:
        policy.FUNCTIONS[in_c] = policy.Purity.BLIND
    return calls.interpret(t, TELLS, args, kwargs, tail)
