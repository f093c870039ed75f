"""Where the functions of libtorch are that the C core calls for a matrix product into given memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from braze.native import torch_state

#: arguments of each product beside the memory that it writes
_ARGUMENTS = {"mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3}
#: libtorch's number of a type of device -> its name, and the library that has its functions
PLACES = {0: ("cpu", "torch_cpu"), 1: ("cuda", "torch_cuda")}


#: sizes, strides, and the offset from a tensor's first element
ViewLayout = tuple[tuple[int, ...], tuple[int, ...], int]


def out_product(
    name: str, general: Callable[..., Any], layouts: Sequence[ViewLayout | None] | None = None
) -> Callable[..., Any]:
    """``general`` (``torch.mm``, say), but that a call ``(a, b, out=c)`` of plain tensors goes past the dispatcher.

    That is most of what such a call takes beside the launch. It must not be differentiated. ``layouts``: in which it sees its arguments.
    """
    core = sys.modules.get("braze.native._native")
    if layouts is not None:
        general = _seen_in(general, [None if row is None else _as_strided(row) for row in layouts])
    if core is None or name not in _ARGUMENTS:
        return general
    find, laid = (lambda kind: _find(name, kind)), None if layouts is None else tuple(layouts)
    return core.OutProduct(_ARGUMENTS[name], find, general, laid)  # type: ignore[no-any-return]


def view(layout: ViewLayout) -> Callable[[Any], Any]:
    """A tensor -> the same memory in another layout, for an operator that writes to none of it."""
    core = sys.modules.get("braze.native._native")
    general = _as_strided(layout)
    return general if core is None else core.View(layout, _plain, general)  # type: ignore[no-any-return]


def _plain(kind: int) -> tuple[int, int]:
    """Any address, and the dispatch keys of plain tensors on a type of device."""
    return 1, torch_state.plain_keys(PLACES[kind][0])


def _as_strided(layout: ViewLayout) -> Callable[[Any], Any]:
    sizes, strides, offset = layout

    def made(tensor: Any) -> Any:
        """Of what has gradients outside, as a parameter has, a view without."""
        whole = tensor.detach() if tensor.requires_grad else tensor
        return torch_state.torch().as_strided(whole, sizes, strides, whole.storage_offset() + offset)

    return made


def _seen_in(general: Callable[..., Any], views: Sequence[Callable[[Any], Any] | None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        pairs = zip(args, views, strict=True)
        return general(*(a if make is None else make(a) for a, make in pairs), **kwargs)

    return call


def _find(name: str, kind: int) -> tuple[int, int] | None:
    """The address of a product's function for a type of device, and the dispatch keys of plain tensors there."""
    device, library = PLACES[kind]
    address = torch_state.address_in(torch_state.library(library), f"aoti_torch_{device}_{name}_out")
    return (address, torch_state.plain_keys(device)) if address else None
