"""Calls of graphs that write inputs where they lie, made by the C core where it can see all that it must."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from braze.native import calibrate, torch_state

#: inputs and results with more than these are looked at in Python (``written.c``)
MOST = 32


def written_call(
    call: Callable[..., Any],
    count: Callable[..., Any],
    failed: Callable[..., Any],
    general: Callable[..., Any],
    looked: Sequence[tuple[int, int, bool]],
    again: Sequence[int],
    results: Sequence[int],
) -> Callable[..., Any]:
    """``general(inputs)``, but that a plain call goes to ``call(inputs)`` from C; ``general`` itself where C cannot.

    ``looked``: (input, bytes of an element, whether it is written) of the tensors among the inputs, all on the CPU. Of plain calls no
    written one shares memory with another, and ``count(written)`` has autograd count the writes; ``failed(error, written)`` is told of an
    error of the call. ``again``: inputs that ``call`` is given once more; ``results``: the items of its tuple that are returned.
    """
    core = sys.modules.get("braze.native._native")
    counted = _keys_of_counted() if core is not None else 0
    if core is None or not counted or max(map(len, (looked, again, results))) > MOST:
        return general
    rows = tuple(map(tuple, looked))
    return core.WrittenCall(call, count, failed, general, counted, rows, tuple(again), tuple(results))  # type: ignore[no-any-return]


@functools.cache
def _keys_of_counted() -> int:
    """Dispatch keys that tensors of the CPU have, and inference tensors, whose writes nobody counts, do not; 0 where C cannot read them."""
    known = calibrate.facts()
    if known is None or not known.keys:
        return 0
    torch = torch_state.torch()
    with torch_state.no_modes():
        with torch.inference_mode():
            without = torch_state.keys(torch.empty(0))
        with torch.inference_mode(False):
            return torch_state.keys(torch.empty(0)) & ~without
