"""Lists of numbers from outside that are others at each call, and become tensors: ``torch.tensor(tokens)``.

Such a list is not read. A tensor made of it goes into the graph, which is found at a place below the list (``Step.TENSOR_OF_NUMBERS``): each call makes
it before the graph runs. Its guard says the dtype that PyTorch infers, and the sizes. Where the program reads a number out of what is computed of such
lists alone, the frame is traced again, and the lists are read as any other.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from braze import native
from braze.capture.facts.records import Check, Source, Step
from braze.capture.facts.values import MISSING, NULL
from braze.capture.guards.dynamic import LENGTH
from braze.capture.outside.given_texts import ValueMatters
from braze.capture.outside.shadows import SequenceShadow
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import GraphState
from braze.graph.private import torch_compat
from braze.native import torch_state

#: functions that make a tensor of a list, which are told by identity: what is called may be any object
MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)
OF_A_TENSOR = torch.Tensor.new_tensor
#: types of the bounds of a slice
BOUNDS = (int, type(None))
Bounds = tuple[int | None, int | None]
#: dtypes to which doubles are cast as PyTorch casts the numbers themselves
_CAST = {torch.float16: "float64", torch.bfloat16: "float64", torch.bool: "float64"}


def may_stand(outside: Outside, graph: GraphState, value: Any) -> bool:
    """Whether a list waits to be read, is of numbers alone, and was another in an earlier call."""
    shadow = outside.unread.get(id(value))
    if shadow is None or shadow.filled or shadow.later.items or type(value) is not list:
        return False
    node = shadow.node
    if type(node.real) is not list or not changes(outside, node.source):
        return False
    # it is made before the frame begins
    if graph.knew_inference or torch_state.default_device() is not None:
        return False
    if torch.get_default_dtype() is not outside.settings.start["dtype"]:
        return False
    return torch_state.holds_numbers_alone(node.real) and not may_be_written(outside, node.real)


def may_be_written(outside: Outside, real: list[Any]) -> bool:
    """Whether a list in this one may be one that the program has written, which it has got from another place, in this call or a later one."""
    if all(type(item) in torch_state.NUMBERS for item in real):
        return False
    return any(type(s.node.real) is list and s.node.real is not real and s.changed() for s in outside.shadows)


def whole(source: Source) -> Source:
    """The place of a list of which this is, or is a part."""
    while source.step is Step.PART and source.parent is not None:
        source = source.parent
    return source


def part_bounds(outside: Outside, graph: GraphState, value: Any, key: Any) -> tuple[Bounds, list[Any]] | None:
    """By which bounds ``value[key]`` is taken of a list that waits, as it was when the call began, and what was added that is in the part; None where it
    is to be read for that."""
    if type(key) is not slice or key.step is not None or id(value) not in outside.unread:
        return None
    start, stop = key.start, key.stop
    if not (type(start) in BOUNDS and type(stop) in BOUNDS and may_stand(outside, graph, value)):
        return None
    added = list(value)
    if added:  # bounds that are told from the end are told from before that
        behind = -len(added)
        if start is not None and (behind <= start < 0 or (start >= 0 and stop is None)):
            return None
        if stop is not None and stop > behind:
            return None
        start = start - behind if start is not None and start < 0 else start
        stop, added = (stop, added) if stop is None else (stop - behind or None, [])
    return (start, stop), added


class Part(SequenceShadow):
    """Stands for a part of a list of which a tensor is made at once. Where something else sees it the frame is traced again, and the list is read."""

    __slots__ = ()

    def fill(self, outside: Outside) -> None:
        raise ValueMatters(frozenset((whole(self.node.source),)))

    open = fill

    def item(self, outside: Outside, index: int) -> Any:
        return MISSING


def part(outside: Outside, value: list[Any], bounds: Bounds, found: list[Any]) -> list[Any]:
    """What stands for a part of a list, with what was added to that."""
    above: Node = outside.unread[id(value)].node
    node = above.child(Step.PART, bounds)
    outside.unread[id(found)] = made = Part(node, list, found, [], filled=False)
    if node.real is MISSING:  # else this is the part once more, a list of its own
        node.guards.append((Check.TYPE, list))
        outside.tree.bind(node, above.real[slice(*bounds)], found)
        node.container = made
    return found


def changes(outside: Outside, source: Source, *kinds: int) -> bool:
    """Whether a list, or anything in it, was found to be another: ``kinds`` of change, or any."""
    source = whole(source)
    if source in outside.plain:
        return False
    found = (each for each in outside.symbolic or () if type(each) is tuple)
    return any((not kinds or kind in kinds) and is_within(at, source) for at, kind in found)


def is_within(at: Source | None, source: Source) -> bool:
    """Whether a place is that of a list, or in it."""
    while at is not None and at != source:
        at = at.parent if at.step is Step.ITEM else None
    return at is not None


def is_made_a_tensor(
    outside: Outside, graph: GraphState, operands: list[Any], names: int, value: Any
) -> bool:
    """Whether a call with so many words makes a tensor of such a list, or of a list of the program's that holds nothing else."""
    function: Any
    function, *args = [v for v in operands if v is not NULL]
    if type(function) is types.MethodType:
        function, args = function.__func__, [function.__self__, *args]
    if function is OF_A_TENSOR:
        del args[:1]
    elif not any(function is maker for maker in MAKERS):
        return False
    if len(args) - names != 1 or args[0] is not value:
        return False
    return may_stand(outside, graph, value if id(value) in outside.unread else value[0])


def place_of(outside: Outside, shadow: Any, dtype: torch.dtype | None) -> Node | None:
    """The place of the tensor that is made of a list, which is to be cast to the dtype if it is another; None where none is made."""
    name = "" if dtype is None else _CAST.get(dtype, str(dtype).removeprefix("torch."))
    node: Node = shadow.node.child(Step.TENSOR_OF_NUMBERS, name)
    if node.real is MISSING:
        with torch_compat.disable_functions(), torch_compat.outside_modes():
            real = native.tensor_of_numbers(shadow.node.real, name)
        if real is None:
            return None
        outside.see(node, real)
    return node


def changed_length(outside: Outside, node: Node) -> bool:
    """Whether a tensor is made of a list that was longer or shorter in an earlier call."""
    return node.step is Step.TENSOR_OF_NUMBERS and changes(outside, node.parent.source, LENGTH)  # type: ignore[union-attr]
