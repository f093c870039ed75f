"""Lists and deques from outside that nothing has looked into yet: all that stands for one is what the trace has added at its end.

``history.append(loss)`` makes a list longer at each call, so that its length must be no guard unless the program asks for it. What stands for such
a list must meet no code that would take it for the list: it may lie in variables, as an attribute, as an item of a dict, and on the stack.
Which instructions leave it alone there is told in ``python/looks.py``; here, which reads from outside are a mere handing on.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.facts.bytecode import opcodes
from braze.capture.facts.frame import CO_VARARGS, CO_VARKEYWORDS
from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING, lookup_in_mro
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace

#: classes of which this holds; others may say by code of their own what adding to them is
MAY_WAIT = frozenset({list, collections.deque})
#: places of a list that are told from its end: of such small integers there is one object each
MOST_FROM_THE_END = 5
#: methods that add at the end, and look at nothing that is there
ADDING = frozenset({"append", "extend"})
#: instructions that hand on what they find outside, and do not look into it
READING = opcodes("LOAD_GLOBAL LOAD_NAME LOAD_ATTR LOAD_METHOD LOAD_DEREF BINARY_SUBSCR CONTAINS_OP")


def may_wait(t: Trace, node: Node, cls: type) -> bool:
    """Whether what is met at a place is handed on as it is, and can be read later."""
    if cls not in MAY_WAIT:
        return False
    step, parent, frames = node.step, node.parent, t.frames.stack
    if not frames:
        return parent is None or is_carried(t.outside, parent if step is Step.ATTR else node)
    if step is Step.ITEM and parent is not None and not issubclass(type(parent.real), dict):
        return t.outside.handing is parent  # else C code may look into what holds it
    f = frames[-1]
    return t.outside.handing is f or f.decoded.ops[f.at][-1] in READING


def is_carried(outside: Outside, node: Node) -> bool:
    """Whether a place is an argument, or in a tuple of which the items come into variables: what a broken frame goes on with, or what a module is given."""
    if node.step is Step.LOCAL:
        return True
    parent = node.parent
    if node.step is not Step.ITEM or parent is None or parent.step is not Step.LOCAL:
        return False
    function, module = outside.function, outside.tree.root(Step.LOCAL, 0).real
    if hasattr(function, "__braze_resumed__"):
        return True
    of_module = function.__module__ == torch.nn.Module.__module__ and isinstance(module, torch.nn.Module)
    return of_module and parent.key == 1 and not is_seen_by_others(module)


def is_seen_by_others(module: torch.nn.Module) -> bool:
    """Whether anything but the variables of a ``forward`` gets what a module is given: hooks do, and a ``forward`` that takes any number."""
    forward = lookup_in_mro(type(module), "forward")[0]
    if type(forward) is not types.FunctionType or forward.__code__.co_flags & (CO_VARARGS | CO_VARKEYWORDS):
        return True
    own, everywhere = vars(module), vars(torch.nn.modules.module)
    hooks = [own[name] for name in own if name.endswith("_hooks")]
    hooks += [
        everywhere[name] for name in everywhere if name.startswith("_global") and name.endswith("_hooks")
    ]
    return "forward" in own or any(hooks)


def handed_on(t: Trace, read: Callable[..., Any], *args: Any) -> Any:
    """What a function reads from outside for the program, which gets it as it is: as by ``getattr``."""
    before, t.outside.handing = t.outside.handing, t.frames.stack[-1]
    try:
        return read(t, *args)
    finally:
        t.outside.handing = before


def read_whole(outside: Outside, value: Any) -> None:
    """Read a list at which something is to look; anything else is left alone."""
    shadow = outside.unread.get(id(value))
    if shadow is not None:
        shadow.fill(outside)


def element(outside: Outside, value: Any, index: int) -> Any:
    """An element of a list that waits, by its place from the begin or the end; MISSING of one that is to be read for it."""
    shadow = outside.unread.get(id(value))
    return MISSING if shadow is None or shadow.filled else shadow.item(outside, index)


def last_elements(outside: Outside, value: Any, key: slice) -> Any:
    """``value[-3:]`` of a list that waits, whatever its length; MISSING where it is to be read for that."""
    if id(value) not in outside.unread or key.stop is not None or key.step is not None:
        return MISSING
    if type(key.start) is not int or not -MOST_FROM_THE_END <= key.start < 0:
        return MISSING
    found = [element(outside, value, at) for at in range(key.start, 0)]
    return MISSING if any(each is MISSING for each in found) else found


def counts(outside: Outside, value: Any) -> bool:
    """Whether the number of elements of a list is told without a look at them: of one that waits, which has a place for that number."""
    shadow = outside.unread.get(id(value))
    return shadow is not None and not shadow.filled and type(value) is list


def number_of_elements(outside: Outside, value: Any) -> Any:
    """The number of elements that a list which waits had when the call began, which may be a symbol."""
    node = outside.unread[id(value)].node
    return outside.read(node, Step.LENGTH, None, list.__len__(node.real))


def written_at(outside: Outside, value: Any, key: torch.SymInt) -> Any:
    """What was written last to a list that waits, at this very place, which changes from call to call; MISSING where nothing was, or where one may be another by now."""
    shadow = outside.unread.get(id(value))
    if shadow is None or shadow.filled:
        return MISSING
    found = shadow.later.last(key)
    # behind what was added since, a place that is told from the end is another
    return MISSING if found is not MISSING and shadow.view and key.node.hint < 0 else found


def has_elements(outside: Outside, value: Any) -> bool:
    """Whether a list that waits is known to be not empty, which may leave a guard on its first element."""
    return id(value) in outside.unread and element(outside, value, -1 if value else 0) is not MISSING
