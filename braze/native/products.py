"""Where the functions of libtorch are that the C core calls for a matrix product into given memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from braze.native import torch_state

#: arguments of each product beside the memory that it writes
_ARGUMENTS = {"mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3}
#: libtorch's number of a type of device -> its name, and the library that has its functions
_PLACES = {0: ("cpu", "torch_cpu"), 1: ("cuda", "torch_cuda")}


def out_product(name: str, general: Callable[..., Any]) -> Callable[..., Any]:
    """``general`` (``torch.mm``, say), but that a call ``(a, b, out=c)`` of plain tensors goes past the dispatcher.

    That is most of what such a call takes beside the launch. It must not be differentiated.
    """
    core = sys.modules.get("braze.native._native")
    if core is None or name not in _ARGUMENTS:
        return general
    return core.OutProduct(_ARGUMENTS[name], lambda kind: _find(name, kind), general)  # type: ignore[no-any-return]


def _find(name: str, kind: int) -> tuple[int, int] | None:
    """The address of a product's function for a type of device, and the dispatch keys of plain tensors there."""
    torch = torch_state.torch()
    device, library = _PLACES[kind]
    address = torch_state.address_in(torch_state.library(library), f"aoti_torch_{device}_{name}_out")
    with torch.inference_mode(False):
        plain = torch_state.keys(torch.empty(0, device=device))
    return (address, plain) if address else None
