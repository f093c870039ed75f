"""While another tracer is at work a compiled function is its original: who tells entries of that, and what Dynamo sees of them."""

from __future__ import annotations

import builtins
from typing import Any

import torch

from braze import native
from braze.native import torch_state
from braze.support.log import warn_once

#: builtins that programs replace, to catch what is printed or opened; braze's own code does without them
REPLACED = frozenset(
    {"print", "open", "input", "breakpoint", "help", "exit", "quit", "copyright", "credits", "license", "_"}
)


def call_of_entry(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What ``Entry.__call__`` is to Dynamo, which follows it to the original where it can read no C code."""
    if torch.compiler.is_dynamo_compiling():
        return self.__wrapped__(*args, **kwargs)
    return self(*args, **kwargs)


def tell_of_builtins() -> bool:
    """Say that nothing is compiled until the builtins are back; not of those that ``torch.export`` replaces while it traces. Whether that was said."""
    if torch.compiler.is_exporting():
        return False
    changed = [name for name, value in usual_builtins.items() if vars(builtins).get(name) is not value]
    warn_once(
        ("BZ6016",),
        f"BZ6016: the program has deleted or replaced {', '.join(changed)} among the builtins, which braze calls itself. "
        "Until they are back nothing is compiled.",
        subject="fallbacks",
    )
    return True


#: what braze found when it was loaded
usual_builtins = {
    name: value for name, value in vars(builtins).items() if callable(value) and name not in REPLACED
}


def watch() -> None:
    """Have entries look for other tracers and for profilers at each call, and for the builtins where they would compile."""
    native.watch_builtins(vars(builtins), usual_builtins, tell_of_builtins)
    native.shown_call(call_of_entry)
    native.watch_ranges(torch_state.range_of_profiler(), torch_state.listening_address())
    native.watch_tracers(torch_state.traced_by_another, torch.nn.Module, torch_state.tracing_state_address())
