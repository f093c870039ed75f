"""While another tracer is at work a compiled function is its original: who tells entries of that, and what Dynamo sees of them."""

from __future__ import annotations

from typing import Any

import torch

from braze import native
from braze.native import torch_state


def call_of_entry(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What ``Entry.__call__`` is to Dynamo, which follows it to the original where it can read no C code."""
    if torch.compiler.is_dynamo_compiling():
        return self.__wrapped__(*args, **kwargs)
    return self(*args, **kwargs)


def watch() -> None:
    """Have entries look for other tracers at each call."""
    native.shown_call(call_of_entry)
    native.watch_tracers(torch_state.traced_by_another, torch.nn.Module, torch_state.tracing_state_address())
