"""``blocks[i]`` of a ``torch.nn.Sequential`` where ``i`` changes from call to call: by the name of the place, as a ``ModuleList`` takes it."""

from __future__ import annotations

import operator
from typing import Any

import torch

from braze.capture.facts.values import lookup_in_mro
from braze.capture.graph.unbacked import is_unbacked
from braze.capture.outside import texts
from braze.capture.outside.class_values import trust_class_value
from braze.capture.outside.shadows import guard_keys, keys_of
from braze.capture.python import calls
from braze.capture.python.operations import binary, compare, get_item, unfilled
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace

FEATURE = Feature()

ITEM: Any = torch.nn.Sequential.__getitem__
#: what it calls, which others may have put code in the place of
CALLED = {name: vars(torch.nn.Sequential)[name] for name in ("__len__", "_get_item_by_idx")}


@FEATURE.call(ITEM)
def child(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The module at a place, told from the end or not: PyTorch's own walks over all before it, and looks at the number."""
    if kwargs or len(args) != 2 or type(args[1]) is not torch.SymInt or is_unbacked(args[1]):
        return calls.interpret(t, ITEM, args, kwargs, tail)
    obj, index = args
    modules = t.attribute(obj, "_modules")
    count = count_of_numbered(t, obj, modules)
    if not count or not is_inside(t, index, count):
        return calls.interpret(t, ITEM, args, kwargs, tail)
    if t.truth(compare(t, operator.lt, index, 0)):
        index = binary(t, operator.add, index, count)
    return get_item(t, modules, texts.later(t.done, str, index))


def count_of_numbered(t: Trace, obj: Any, modules: Any) -> int:
    """How many modules there are, named by their places, as they were when the call began; 0 where that is not so, or a class says otherwise."""
    shadow = unfilled(t.outside, modules)
    if shadow is None or shadow.changed():
        return 0
    keys = keys_of(shadow.real)
    if keys != [str(place) for place in range(len(keys))]:
        return 0
    for name, function in CALLED.items():
        found, owner = lookup_in_mro(type(obj), name)
        if found is not function:
            return 0
        trust_class_value(t, owner, name, function)
    guard_keys(t.outside, shadow, keys)
    return len(keys)


def is_inside(t: Trace, index: torch.SymInt, count: int) -> bool:
    """Whether there is such a place, which is guarded."""
    at_least = t.truth(compare(t, operator.ge, index, -count))
    return at_least and t.truth(compare(t, operator.lt, index, count))
