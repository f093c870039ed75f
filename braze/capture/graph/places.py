"""Places in a tensor that are named by numbers which change: that each lies within is guarded, not which it is."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.values import MISSING
from braze.capture.graph import constant_evaluation, literals
from braze.capture.state.trace import GraphState

_PLAIN = frozenset({int, slice, type(None), type(...), torch.SymInt, tuple})
#: keys of masks, which take as many dimensions as they have
_MASKS = frozenset({torch.bool, torch.uint8})


def selected(graph: GraphState, tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """What is indexed by the rest of a key once its symbols have selected a part, as PyTorch does before all else; the rest is ``...`` where
    the part is all that is asked for.

    The key as it is, where one names no place, or is of a kind whose dimensions nobody knows.
    """
    key = _with_tensors(graph, tensor, key)
    parts = key if type(key) is tuple else (key,)
    if torch.SymInt not in map(type, parts):
        return tensor, key
    taken = [_dimensions(part) for part in parts]
    known = sum(n for n in taken if n is not None and n >= 0)
    others = [part for part, n in zip(parts, taken, strict=True) if n is None]
    if known > tensor.dim() or taken.count(_ALL_OTHERS) > 1 or others:
        return tensor, key
    places, rest, dim = [], [], 0
    for part, n in zip(parts, taken, strict=True):
        if type(part) is torch.SymInt:
            size = tensor.shape[dim]
            if part < -size or part >= size:
                return tensor, key
            places.append((dim, part if part >= 0 else part + size))
        else:
            rest.append(part)
        dim += tensor.dim() - known if n == _ALL_OTHERS else n or 0
    for dim, part in reversed(places):
        tensor = graph.recorder.call(torch.select, (tensor, dim, part), {})
    whole = all(part is ... or (type(part) is slice and part == slice(None)) for part in rest)
    return tensor, ... if whole else tuple(rest)


_ALL_OTHERS = -1


def _dimensions(part: Any) -> int | None:
    """How many dimensions of a tensor a part of its key takes; None where only PyTorch knows."""
    if part is ...:
        return _ALL_OTHERS
    if part is None or type(part) is bool:
        return 0
    if isinstance(part, torch.Tensor):
        return part.dim() if part.dtype in _MASKS else 1
    return 1 if type(part) in (int, torch.SymInt, slice) or _is_list_of_places(part) else None


def _is_list_of_places(part: Any) -> bool:
    return type(part) is list and {*map(type, part)} <= {int, torch.SymInt}


def _with_tensors(graph: GraphState, tensor: torch.Tensor, key: Any) -> Any:
    """A key whose lists of places that change are tensors, as PyTorch makes them, and whose tensors of one such place are the place."""
    if type(key) is tuple:
        return tuple([part if type(part) in _PLAIN else _with_tensors(graph, tensor, part) for part in key])
    if isinstance(key, torch.Tensor) and key.dim() == 0:
        symbol = constant_evaluation.symbol_in(graph.recorder, key)
        return key if symbol is MISSING else symbol
    if type(key) is list and torch.SymInt in map(type, key) and _is_list_of_places(key):
        made = literals.made(graph, key, torch.int64, tensor.device)
        return key if made is MISSING else made
    return key
