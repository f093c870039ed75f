"""Whether C code may come back to Python: through its arguments, or through what the object of a method holds."""

from __future__ import annotations

import collections
import itertools
import types
from typing import Any

import torch

from braze.capture.facts.values import BY_INDEX, UNTIL, words

#: code of our own that C code starts, not to be interpreted
OURS: set[types.CodeType] = {torch.Tensor.__hash__.__code__}
#: types whose instances run no Python code, and hold nothing that does
SIMPLE = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        type(None),
        range,
        torch.dtype,
        torch.device,
        torch.Size,
        type,
        types.ModuleType,
    }
)


def may_call_back(args: Any, kwargs: dict[str, Any] | None, depth: int = 4) -> bool:
    """Whether C code given these could run Python code or compute with tensors; so may what lies deeper than is looked."""
    for value in args:
        kind = type(value)
        if kind in SIMPLE:
            continue
        if kind is slice:
            value, kind = (value.start, value.stop, value.step), tuple
        if depth and kind in (list, tuple):
            if may_call_back(value, None, depth - 1):
                return True
            continue
        return True
    return kwargs is not None and may_call_back(kwargs.values(), None, depth)


#: methods of containers that compare or write what is inside
LOOKING = frozenset(
    words(
        "count index remove sort __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ __str__ __hash__"
    )
)
#: whose ``__next__`` calls functions and iterators that they hold
ASKING = frozenset(
    {
        map,
        filter,
        zip,
        enumerate,
        BY_INDEX,
        UNTIL,
        *(v for v in vars(itertools).values() if isinstance(v, type)),
    }
)


def looks_inside(owner: Any, name: str) -> bool:
    """Whether a method in C may run Python code of what its object holds, whatever its arguments are."""
    if type(owner) in ASKING or (type(owner) is slice and may_call_back((owner,), None)):
        return True
    if name not in LOOKING:
        return False
    base = next(
        (b for b in (dict, list, tuple, set, frozenset, collections.deque) if isinstance(owner, b)), None
    )
    if base is None:
        return False
    values = (*dict.keys(owner), *dict.values(owner)) if base is dict else base.__iter__(owner)
    return any(type(v) not in SIMPLE for v in values)
