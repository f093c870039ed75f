"""Operations of autograd's whose forward and backward are made by the C core where it can see all that it must."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from braze.native import calibrate, torch_state

#: dimensions that ``operation.h`` has room for
DIMS = 16


class Kept(NamedTuple):
    """What the backward reads: an input or a result, maybe of another operation, or an input's memory as it is now; or a result that the caller gets."""

    input: bool
    number: int
    foreign: bool
    early: bool
    given: bool


class Read(NamedTuple):
    """One of the saved tensors, or of the gradients that come in, as the backward takes it. ``large``: the bytes of a gradient of which it matters when it is let go of, or 0."""

    number: int
    device: str
    dtype: Any
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    large: int = 0


class Way(NamedTuple):
    """What an operation calls. ``general(inputs)``: all calls that are not plain; ``forward(inputs)``: the graph.

    ``save(ctx, inputs, results)`` keeps what C cannot; None: there is no such thing. ``find()`` gives the backward for plain gradients, or None;
    ``late(ctx, tangents, saved)`` is for all others; ``saved``: the saved tensors where a hook has laid them out anew, or why they cannot be had.
    ``held()``: how many references there are to a gradient that the engine alone holds, as C counts them, uses of C++, and uses of its memory; None: not known.
    """

    general: Callable[..., Any]
    forward: Callable[..., Any]
    save: Callable[..., Any] | None
    find: Callable[[], Callable[..., Any] | None]
    late: Callable[..., Any]
    held: Callable[[], tuple[int, int, int] | None]
    #: of the backward, for a profiler
    name: str


def operation(
    apply: Callable[..., Any],
    transforms: Callable[[], bool],
    way: Way,
    results: int,
    kept: Sequence[Kept],
    arguments: Sequence[tuple[int, str]],
    saved: Sequence[Read],
    tangents: Sequence[Read],
) -> Any:
    """The call of a graph, with ``forward`` and ``step`` for the autograd function of which ``apply`` is; None where C cannot.

    ``arguments``: (input, type of device) of those that autograd sees; ``saved`` and ``tangents``: those that the backward is given.
    """
    core = sys.modules.get("braze.native._native")
    known = calibrate.facts() if core is not None else None
    if core is None or known is None or not (known.keys and known.requires_grad):
        return None
    if any(len(each.strides) > DIMS for each in (*saved, *tangents)):
        return None
    seen = tuple((i, torch_state.plain_keys(device)) for i, device in arguments)
    read = [
        tuple((x.number, torch_state.plain_keys(x.device), known.dtype_number(x.dtype), *x[3:]) for x in rows)
        for rows in (saved, tangents)
    ]
    return core.Operation(apply, transforms, *way, results, tuple(kept), seen, *read)
