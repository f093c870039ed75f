"""Inputs that a call writes where they lie, while something may still fail: small ones are kept as they were, and put back then."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.support.unwritten import note_written, take_back_note

#: bytes of an input that are copied in less time than a call of PyTorch's takes
FEW = 1 << 16

Kept = list[tuple[torch.Tensor, torch.Tensor]]


def keep(inputs: Sequence[torch.Tensor]) -> Kept | None:
    """The inputs beside copies of what they hold; None where one is large, which stays as it is written."""
    for x in inputs:  # in half the time that `any` takes
        if x.nbytes > FEW:
            return None
    return [(x, x.clone()) for x in inputs]


def put_back(error: Exception, kept: Kept | None, status: int) -> None:
    """The call has failed: inputs hold again what they held, or the error says that they have been written.

    ``status``: 1 if a kernel met what it refuses before any was written.
    """
    if status == 1:
        return
    if kept is None:
        note_written(error)
        return
    take_back_note(error)
    for x, before in kept:
        x.data.copy_(before)
