"""What stands in some dicts now, and where tensors among that lie, in plain Python."""

from __future__ import annotations

import array
from typing import Any

from braze.native import torch_state


def addresses(dicts: tuple[dict[str, Any], ...], keys: tuple[str, ...]) -> bytes:
    """Of each dict the address of the object under its key, and that of its memory if it is a tensor; sixteen bytes each, 0 where there is none."""
    found = array.array("Q")
    for space, key in zip(dicts, keys, strict=True):
        value = space.get(key)
        lies = value.data_ptr() if isinstance(value, torch_state.torch().Tensor) else 0
        found.extend((0 if key not in space else id(value), lies))
    return found.tobytes()
