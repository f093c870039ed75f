"""``getattr(self, f"layer_{i}")`` of a name that changes from call to call: each call reads the attribute that it names, as items are (``outside/chosen.py``).

That is what the object's own dict holds, or a module's tables of parameters, buffers and modules, under a name that its class has not: that this
is so of the name of a call is guarded. Of any other attribute the name is guarded.
"""

from __future__ import annotations

from typing import Any

from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING, Lookups, UnknownText, lookup_in_mro
from braze.capture.outside import chosen
from braze.capture.outside.class_values import trust_class_value
from braze.capture.outside.shadows import has_usual_dict
from braze.capture.python.attributes import (
    MODULE_GETATTR,
    STATE,
    instance_attr,
    instance_value,
    note_absent,
    reader_of,
)
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace

#: there is no such attribute, which is guarded
ABSENT = object()


def named(t: Trace, obj: Any, name: Any) -> Any:
    """``getattr(obj, name)``, ABSENT where it has none; MISSING where the name is to be looked at."""
    node = t.outside.tree.node_of(obj) if type(name) is UnknownText else None
    if node is None or not is_looked_up_as_usual(node):
        return MISSING
    place = chosen.place_of(t, name)
    cls = type(obj)
    if place is None or lookup_in_mro(cls, place.real)[0] is not MISSING:
        return MISSING
    t.outside.tree.tell(node.child(Step.CLASS_HAS_AT, place.source), False, t.frames.here())
    own = node.child(Step.ATTR, "__dict__")
    t.outside.tree.meet(own, object.__getattribute__(node.real, "__dict__"))
    if chosen.holds_at(t, own, place):
        return chosen.item_at(t, own, place)
    hook, owner = lookup_in_mro(cls, "__getattr__")
    if hook is MISSING:
        note_absent(t, cls, "__getattr__")
        return ABSENT
    if hook is not MODULE_GETATTR:
        return MISSING
    trust_class_value(t, owner, "__getattr__", hook)
    return of_module(t, obj, name)


def is_looked_up_as_usual(node: Node) -> bool:
    """Whether no code of the program's says what an object's attributes are, and this call has written none of it nor of any class."""
    if Lookups.written or node.container is not None or reader_of(type(node.real)) is not instance_attr:
        return False
    if lookup_in_mro(type(node.real), "__getattribute__")[1] is not object:
        return False
    try:
        own = object.__getattribute__(node.real, "__dict__")
    except AttributeError:
        return False
    usual = type(own) is dict and has_usual_dict(type(node.real))
    return usual and (node.dict is None or not node.dict.changed())


def of_module(t: Trace, obj: Any, name: Any) -> Any:
    """What a module's own ``__getattr__`` finds."""
    for kind in STATE:
        holder = instance_value(t.outside, obj, kind)
        if holder is MISSING:
            continue
        told = chosen.holds(t, holder, name)
        if told is not False:
            return chosen.item(t, holder, name) if told is True else MISSING
    return ABSENT
