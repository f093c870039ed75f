"""Where the functions of libtorch are that the C core calls for ATen's operators that make their results.

PyTorch exports these for graphs that are compiled ahead of time, and gives one whose arguments change another name: so a library that has
the name takes the arguments that the core knows.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from braze.native import torch_state
from braze.native.products import PLACES

#: operators -> the types of devices on which they are called so
_CALLED = {
    "convolution": ("cpu", "cuda"),
    "convolution_backward": ("cpu", "cuda"),
    "_scaled_dot_product_flash_attention": ("cuda",),
    "_scaled_dot_product_flash_attention_backward": ("cuda",),
    "_scaled_dot_product_efficient_attention": ("cuda",),
    "_scaled_dot_product_efficient_attention_backward": ("cuda",),
    "_scaled_dot_product_flash_attention_for_cpu": ("cpu",),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("cpu",),
}
#: the overloads, as host modules name them
OPERATORS = tuple(f"aten.{name}.default" for name in _CALLED)


def shim(schema: Any, general: Callable[..., Any]) -> Callable[..., Any]:
    """``general``, an operator of this schema, but that a call on plain tensors goes past the dispatcher. It must not be differentiated."""
    core = sys.modules.get("braze.native._native")
    name = schema.name.partition("::")[2]
    if core is None or name not in _CALLED:
        return general
    names = tuple(a.name for a in schema.arguments)
    defaults = tuple(a.default_value if a.has_default_value() else ... for a in schema.arguments)
    try:
        return core.Shim(name, names, defaults, lambda kind: _find(name, kind), general)  # type: ignore[no-any-return]
    except ValueError:  # an argument more than the core knows: another version of PyTorch
        return general


def _find(name: str, kind: int) -> tuple[int, int]:
    """The address of an operator's function for a type of device, or 0, and the dispatch keys of plain tensors there."""
    device, library = PLACES[kind]
    function = f"aoti_torch_{device}_{name}"
    called = device in _CALLED[name] and _leaves_autograd_out()
    address = torch_state.address_in(torch_state.library(library), function) if called else 0
    return address, torch_state.plain_keys(device)


@functools.cache
def _leaves_autograd_out() -> bool:
    """Let the core call these functions as the dispatcher does what is below autograd, if it is seen to."""
    core, path = sys.modules["braze.native._native"], torch_state.library("c10")
    guard = "_ZN3c104impl23ExcludeDispatchKeyGuard"
    begin, end = (torch_state.address_in(path, guard + part) for part in ("C1ENS_14DispatchKeySetE", "D1Ev"))
    core._configure_shims(begin, end, torch_state.autograd_keys())
    left_out = torch_state.autograd_left_out
    before = left_out()
    if begin and end and core._below_autograd(left_out) == (True, True) and left_out() == before:
        return True
    core._configure_shims(0, 0, 0)
    return False
