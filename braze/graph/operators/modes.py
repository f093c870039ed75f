"""The modes that an ATen graph runs in: no gradients, and no autocast, whose casts stand in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze import native
from braze.graph.private import torch_compat
from braze.graph.private.torch_compat import set_grad_mode
from braze.runtime.call.boxed import Boxed, boxed


def with_modes(call: Boxed) -> Boxed:
    """``call`` in these modes: where ATen writes into planned buffers, and where others run a graph of ours."""

    @boxed
    def with_modes_off(inputs: Sequence[Any]) -> Sequence[Any]:
        if torch_compat.any_autocast():
            with torch_compat.disable_autocast(), torch.no_grad():
                return call(inputs)
        if not torch.is_grad_enabled():
            return call(inputs)
        try:  # before the call: what a handler of a signal raises after it is met by the ``finally``
            set_grad_mode(False)  # a third of what torch.no_grad() takes
            return call(inputs)
        finally:
            set_grad_mode(True)

    return native.grad_off(call, with_modes_off)
