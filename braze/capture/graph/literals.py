"""Tensors made of numbers that change from call to call: ``torch.tensor(n)``, ``torch.tensor([n, 0.5])``, a list of places as an index.

PyTorch would make a constant of the numbers as they are in this call. In the graph each that changes fills a tensor of no dimensions, of 64 bits,
and those are stacked and cast, which gives every number that PyTorch's own constructor gives.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.values import MISSING
from braze.capture.graph import unbacked
from braze.capture.outside import lists_of_numbers
from braze.capture.state.outside import Outside
from braze.capture.state.trace import GraphState
from braze.graph.private.torch_symbols import SYMBOLIC

#: numbers in one tensor, at most: each that changes is a node
MOST = 64
#: with these words a tensor of a list from outside is made
_WORDS = frozenset({"dtype", "device", "requires_grad"})
#: types to which 64 bits are cast as PyTorch casts the numbers themselves
_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


def made(graph: GraphState, data: Any, dtype: torch.dtype | None, device: Any = None) -> Any:
    """A new tensor of numbers, or lists of them, of which some are symbols; MISSING where none is, or it takes PyTorch's own code."""
    leaves: list[Any] = []
    shape = _shape(data, leaves)
    kinds = set(map(type, leaves))
    if shape is None or len(leaves) > MOST or kinds.isdisjoint(SYMBOLIC) or not kinds <= _KINDS:
        return MISSING
    if any(map(unbacked.is_unbacked, leaves)) or any(type(v) is int and abs(v) >= 1 << 62 for v in leaves):
        return MISSING
    whole = kinds.isdisjoint((float, torch.SymFloat))
    if dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    if dtype not in _FLOATS and not (whole and dtype in _INTEGERS and all(_fits(v, dtype) for v in leaves)):
        return MISSING
    wide = torch.float64 if dtype in _FLOATS else torch.int64
    where = {} if device is None else {"device": device}
    call = graph.recorder.call
    parts = [call(torch.full, ((), _as(v, wide)), {"dtype": wide, **where}) for v in leaves]
    tensor = parts[0] if not shape else call(torch.stack, (parts,), {})
    if len(shape) > 1:
        tensor = call(torch.Tensor.view, (tensor, shape), {})
    return tensor if dtype is wide else call(torch.Tensor.to, (tensor, dtype), {})


def of_outside(outside: Outside, graph: GraphState, data: Any, words: dict[str, Any]) -> Any:
    """A new tensor of a list from outside that waits (``lists_of_numbers``), or of one in a list of the program's; MISSING for anything else, and
    where the list is to be read for it, as it is then."""
    nested = type(data) is list and len(data) == 1 and id(data) not in outside.unread
    held = data[0] if nested else data
    shadow = outside.unread.get(id(held))
    if shadow is None:
        return MISSING
    found = _with_added(outside, graph, held, shadow, words) if words.keys() <= _WORDS else MISSING
    if found is MISSING:
        shadow.fill(outside)
        return MISSING
    if nested:
        found = graph.recorder.call(torch.Tensor.unsqueeze, (found, 0), {})
    return (
        graph.recorder.call(torch.Tensor.requires_grad_, (found,), {})
        if words.get("requires_grad")
        else found
    )


def _with_added(
    outside: Outside, graph: GraphState, held: list[Any], shadow: Any, words: dict[str, Any]
) -> Any:
    """A tensor of the list as it was, and of what was added since."""
    dtype, device = words.get("dtype"), words.get("device")
    if not lists_of_numbers.may_stand(outside, graph, held) or type(dtype) not in (torch.dtype, type(None)):
        return MISSING
    added = set(map(type, held))
    if added and not (set(map(type, shadow.node.real)) | added <= (_WHOLE if dtype is None else _KINDS)):
        return MISSING  # PyTorch may infer another type, or there are lists in the list
    node = lists_of_numbers.place_of(outside, shadow, dtype)
    if node is None:
        return MISSING
    dtype = node.real.dtype if dtype is None else dtype
    where = {} if device is None else {"device": device}
    call = graph.recorder.call
    tensor = call(torch.Tensor.to, (node.value,), {"dtype": dtype, **where, "copy": True})
    if not held or not shadow.node.real:
        return MISSING if held else tensor
    end = made(graph, held, dtype, device)
    if end is MISSING and added <= _WHOLE - {torch.SymInt}:
        end = call(torch.tensor, (list(held),), {"dtype": dtype, **where})
    return MISSING if end is MISSING else call(torch.cat, ([tensor, end],), {})


#: of which PyTorch infers the integers of 64 bits
_WHOLE = frozenset({int, torch.SymInt})
_KINDS = frozenset({int, float, torch.SymInt, torch.SymFloat})


def _as(value: Any, wide: torch.dtype) -> Any:
    """A number as one of these 64 bits."""
    return torch.sym_float(value) if wide is torch.float64 else value


def _fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether a type has a place for an integer, which is guarded: PyTorch refuses any other."""
    places = torch.iinfo(dtype)
    return bool(value >= places.min) and bool(value <= places.max)


def _shape(data: Any, leaves: list[Any]) -> tuple[int, ...] | None:
    """The shape of nested lists, whose numbers are added to ``leaves``; None where it is not one."""
    if type(data) not in (list, tuple, torch.Size):
        leaves.append(data)
        return ()
    inner = {_shape(item, leaves) for item in data}
    if len(inner) != 1 or len(leaves) > MOST:
        return None
    (found,) = inner
    return None if found is None else (len(data), *found)
