"""Shadows: what the interpreter sees in place of an outside container, and what it wrote there.

A shadow has the container's own type, so C code works on it unchanged. Tuples and sets are copied at once.
Dicts, and the instance dicts of objects, fill lazily: a fixed key reads one item, anything else reads all. The
first state is kept, so that a difference at the end becomes an effect.
"""

from __future__ import annotations

import collections
import sys
import types
import weakref
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.records import Check, IdentityKey, Source, Step
from braze.capture.facts.replay import builtin_base, delete_item, native_new, set_item
from braze.capture.facts.values import (
    CONSTANTS,
    MISSING,
    Carried,
    Identity,
    is_bound_builtin,
    is_constant,
    is_identity_type,
    lookup_in_mro,
    missing,
)
from braze.capture.guards.dynamic import has_symbols
from braze.capture.outside import texts
from braze.capture.outside.class_values import runs_code_as_key
from braze.capture.outside.later import Later
from braze.capture.outside.unread import MAY_WAIT, MOST_FROM_THE_END, may_wait, read_whole
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace

#: what CPython, and classes written in C, give the ``__dict__`` by
_DICT_FIELDS = frozenset({types.GetSetDescriptorType, types.MemberDescriptorType})


class DictShadow:
    """A dict outside, or the instance dict of an object; ``view`` is what the interpreter sees and writes."""

    __slots__ = (
        "cls",
        "coded",
        "deleted",
        "filled",
        "later",
        "node",
        "original",
        "real",
        "step",
        "touched",
        "view",
    )

    def __init__(self, node: Node, step: Step, real: dict[Any, Any], view: dict[Any, Any]) -> None:
        self.node = node
        self.step = step
        self.real = real
        self.view = view
        self.original: dict[Any, Any] = {}
        self.deleted: set[Any] = set()
        self.filled = False
        #: whether anything but :meth:`get` may have written to the view, before it is filled
        self.touched = False
        self.cls = type(real)
        #: what was written last, and nothing has looked for
        self.later = Later()
        #: whether a look-up may run code of a key that is there; None while nobody has asked
        self.coded: bool | None = None

    def refuse_code(self, key: Any) -> None:
        """Break the graph before a look-up that may run code of the program's: it would run at each try of the trace, and in guards."""
        if self.is_coded() or runs_code_as_key(key):
            graph_break(
                "BZ1014",
                "a key is looked up in a dict from outside, which runs its class's __hash__ or __eq__",
            )

    def is_coded(self) -> bool:
        """Whether a look-up may run code of a key that is there."""
        if self.coded is None:
            self.coded = self.step is Step.ITEM and any(map(runs_code_as_key, dict.keys(self.real)))
        return self.coded

    def get(self, outside: Outside, key: Any) -> Any:
        """The value under a key, read from outside at the first time; MISSING where there is none."""
        if type(key) is Identity:
            graph_break("BZ1004", "id() of an object is a key of a dict from outside")
        self.settle()
        found = dict.get(self.view, key, MISSING)
        if found is not MISSING or self.filled:
            return found
        if key in self.deleted:
            return MISSING
        if type(key) is not str:
            refuse_another_in_a_later_call(outside, key)
        real = dict.get(self.real, key, MISSING)
        if real is MISSING:
            self._note_missing(key)
            return MISSING
        value = self._read(outside, key, real)
        if type(self.view) is dict:  # most often
            self.view[key] = value
        else:
            set_item(self.view, key, value)
        self.original[key] = value
        return value

    def peek(self, outside: Outside, key: Any) -> Any:
        """What is under a key as far as the trace has come, which nobody has asked for: nothing is guarded."""
        if (waits := self.later.last(key)) is not MISSING:
            return waits
        found = dict.get(self.view, key, MISSING)
        if found is not MISSING or self.filled or type(key) is Identity or key in self.deleted:
            return found
        real = dict.get(self.real, key, MISSING)
        node = outside.tree.known.get(id(real))
        return real if node is None or node.real is not real else node.value

    def put(self, done: Ledger, key: Any, value: Any) -> None:
        """Write; the first state is read before, so that the difference is seen."""
        self.settle()
        self._put(done, key, value)

    def put_later(self, key: Any, value: Any) -> bool:
        """Write with no guard on the key, nor on whether it is there, while nothing looks at the dict; whether that can be."""
        if type(self) is not DictShadow or self.step is not Step.ITEM or self.is_coded():
            return False
        return self.later.put(key, value)

    def settle(self) -> None:
        """Somebody looks at the dict: what has waited is written, under the keys of this call where they change, which are guarded."""
        for key, value in self.later.take() if self.later.items else ():
            self._put(None, texts.now(key), value)

    def _put(self, done: Ledger | None, key: Any, value: Any) -> None:
        self.touched = True
        if done is not None and self.step is Step.DICT:
            done.dirty[id(self)] = self
        if not self.filled and key not in self.original and key not in self.deleted:
            if dict.__contains__(self.real, key):
                # replaced unread: any old value will do, but the place in the order must be known
                self.original[key] = MISSING
            else:
                self._note_missing(key)
        set_item(self.view, key, value)

    def drop(self, outside: Outside, key: Any) -> bool:
        """Delete; whether the key was there."""
        if self.get(outside, key) is MISSING:
            return False
        if self.original.get(key) is MISSING and key in self.original and key not in self.deleted:
            self._note_there(outside, key)
        delete_item(self.view, key)
        self.deleted.add(key)
        return True

    def fill(self, outside: Outside) -> None:
        """Read everything, in the order of the real dict; later C code may look at the view."""
        if self.filled:
            return
        self.settle()
        keys = keys_of(self.real)
        guard_keys(outside, self, keys)
        written = dict(dict.items(self.view))
        for key in keys:
            if key not in self.deleted:
                self.get(outside, key)
        full = dict(dict.items(self.view))
        self.filled = True
        ordered = {k: full[k] for k in keys if k in full and k not in self.deleted}
        ordered.update({k: v for k, v in written.items() if k not in ordered})
        builtin_base(self.view).clear(self.view)
        for key, value in ordered.items():
            read_whole(outside, value)
            set_item(self.view, key, value)

    def changed_keys(self) -> tuple[list[tuple[Any, Any]], list[Any]]:
        """(items written, keys deleted) since the first state."""
        read = not (self.filled or self.touched or self.deleted)
        # a comprehension that goes on after a break adds to it
        if read and dict.__len__(self.view) == len(self.original):
            return [], []
        now = dict(dict.items(self.view))
        # what was deleted and set again has a new place in the order: it goes first, and comes back
        gone = [k for k in self.original if k not in now or k in self.deleted]
        again = set(gone)
        written = [(k, v) for k, v in now.items() if k in again or self.original.get(k, MISSING) is not v]
        return written, gone

    def changed(self) -> bool:
        """Whether items were written or deleted."""
        return bool(self.later.items) or any(self.changed_keys())

    def _read(self, outside: Outside, key: Any, real: Any) -> Any:
        """What stands for what is there. What an object's dict has by a key that is no name is an item of that."""
        if self.step is Step.ITEM or type(key) is str:
            return outside.read(self.node, self.step, key, real)
        return outside.read(self.place(outside), Step.ITEM, key, real)

    def place(self, outside: Outside) -> Node:
        """The place of the dict itself."""
        if self.step is Step.ITEM:
            return self.node
        place: Node = self.node.child(Step.ATTR, "__dict__")
        outside.tree.meet(place, self.real)
        return place

    def _note_there(self, outside: Outside, key: Any) -> None:
        """What was replaced unread is deleted: the next call has something to delete only if it is there again."""
        self.place(outside).guard(Check.HAS_KEY, (key, True))

    def _note_missing(self, key: Any) -> None:
        if self.step is Step.DICT:
            if self.node.absent is None:
                self.node.absent = {}
            self.node.absent[key] = True
        else:
            self.node.guard(Check.HAS_KEY, (key, False))


def is_known_by_identity(key: Any) -> bool:
    """Whether guards say which object this is. A method in C that is bound to a container is read anew, of what stands for that."""
    return is_identity_type(type(key)) and not is_bound_builtin(key)


def refuse_another_in_a_later_call(outside: Outside, key: Any) -> None:
    """Break before a key is looked up outside that no guard tells from the object in its place at a later call, or for which another stands here."""
    if is_constant(key) or is_known_by_identity(key):
        return
    if issubclass(type(key), tuple | frozenset):
        base: Any = tuple if issubclass(type(key), tuple) else frozenset
        for part in base.__iter__(key):
            refuse_another_in_a_later_call(outside, part)
        return
    if type(key) is weakref.ref and outside.tree.node_of(key) is None:  # as a key it is what it refers to
        refuse_another_in_a_later_call(outside, key())
        return
    node = outside.tree.node_of(key)
    if node is None and type(key) is types.MethodType:
        node = outside.tree.node_of(key.__self__)
    if (node is not None and node.step is not Step.CONSTANT) or is_bound_builtin(key):
        graph_break("BZ1014", f"a {type(key).__name__} from outside is looked up in a dict from outside")


class SequenceShadow:
    """A list, set or deque outside, copied at once or, until something looks into it, what was added at its end. ``original``: its first elements, in order."""

    __slots__ = ("cls", "filled", "later", "node", "original", "view")

    def __init__(self, node: Node, cls: type, view: Any, original: list[Any], filled: bool = True) -> None:
        #: what was written last at places of the first elements that change from call to call, and nothing has looked for
        self.later = Later()
        self.node = node
        self.cls = cls
        self.view = view
        self.original = original
        self.filled = filled

    def fill(self, outside: Outside) -> None:
        """Read a list that has waited for it, and those in it."""
        if outside.unread.pop(id(self.view), None) is None:
            return
        if not self.filled:
            self._read(outside)
        for value in iterate(self.view):
            read_whole(outside, value)

    def open(self, outside: Outside) -> None:
        """Read which elements a list has, of which one is taken: lists among them wait on."""
        if self.filled:
            return
        before, outside.handing = outside.handing, self.node
        self._read(outside)
        outside.handing = before
        if not any(id(value) in outside.unread for value in self.original):
            del outside.unread[id(self.view)]

    def item(self, outside: Outside, index: int) -> Any:
        """One element of a list that waits, whatever its length; MISSING where the list is to be read for it."""
        if self.later.items:
            return MISSING
        real, at = self.node.real, index if index >= 0 else index + len(self.view)
        if at >= 0 > index:
            return self.view[index - len(self.view) if at < 0 else at]
        if type(real) is not list or not -MOST_FROM_THE_END <= at < len(real) or at + len(real) < 0:
            return MISSING
        if type(real[at]) in MAY_WAIT:  # which waits on where its place is known
            return MISSING
        if at >= 0:
            return outside.read(self.node, Step.ITEM, at, real[at])
        return outside.read(self.node, Step.ITEM_AT, Source(Step.CONSTANT, IdentityKey(at)), real[at])

    def _read(self, outside: Outside) -> None:
        self.filled = True
        node, base = self.node, builtin_base(self.view)
        added = list(base.__iter__(self.view))
        node.guard(Check.LENGTH, base.__len__(node.real))
        self.original = [outside.read(node, Step.ITEM, i, v) for i, v in enumerate(base.__iter__(node.real))]
        now = list(self.original)
        for key, value in self.later.take():
            now[int(key)] = value
        base.clear(self.view)
        base.extend(self.view, (*now, *added))

    def changed(self) -> bool:
        """Whether elements were added, removed or replaced."""
        if self.later.items:
            return True
        now = list(iterate(self.view))
        if issubclass(type(self.view), set):
            return set(map(id, now)) != set(map(id, self.original))
        return len(now) != len(self.original) or any(
            a is not b for a, b in zip(now, self.original, strict=True)
        )


def iterate(view: Any) -> Any:
    """An iterator over a container, past any override in a subclass."""
    return builtin_base(view).__iter__(view)


def keys_of(real: Any) -> list[Any]:
    """A dict's keys in its order, which an OrderedDict keeps apart from the order of insertion."""
    return list(builtin_base(real).keys(real))


def guard_keys(outside: Outside, shadow: DictShadow, keys: list[Any]) -> None:
    """Guard which keys a dict has, in order."""
    node = shadow.node
    if shadow.step is Step.DICT:
        node = node.child(Step.ATTR, "__dict__")
        outside.tree.meet(node, shadow.real)
    if all(is_constant(k) for k in keys):
        node.guard(Check.KEYS, tuple(keys))
        return
    node.guard(Check.LENGTH, len(keys))
    for index, key in enumerate(keys):
        place = node.child(Step.KEY, index)
        outside.tree.meet(place, key)
        if is_constant(key):
            place.guard(Check.EQUAL, key)
        elif is_known_by_identity(key):
            place.guard(Check.IS, key)
        else:
            graph_break("BZ1014", f"a dict from outside with a key of type {type(key).__name__}")


def stand_in(cls: Any, *given: Any) -> Any:
    """A container of a class of the program's that stands for one from outside; its end is not to be taken for that one's."""
    if lookup_in_mro(cls, "__del__")[0] is not MISSING:
        graph_break(
            "BZ1010", f"a {cls.__name__} from outside is read, which runs code when it dies (__del__)"
        )
    return native_new(cls)(cls, *given)


def shadow_dict(t: Trace, node: Node, real: Any) -> Any:
    """A lazily filled shadow of a dict or of an instance of a subclass of dict."""
    if id(real) in t.outside.instance_dicts:
        refuse_both()
    cls = type(real)
    view: Any = {} if cls is dict else stand_in(cls)
    if issubclass(type(real), collections.defaultdict):
        view.default_factory = real.default_factory
    node.guard(Check.TYPE, cls)
    node.container = DictShadow(node, Step.ITEM, real, view)
    t.outside.shadows.append(node.container)
    made = t.outside.tree.bind(node, real, view)
    if issubclass(type(real), collections.defaultdict):
        factory = node.child(Step.ATTR, "default_factory")
        t.outside.tree.meet(factory, real.default_factory)
        factory.guard(Check.IS, real.default_factory)
    return made


def shadow_list(t: Trace, node: Node, real: Any) -> Any:
    """A list or deque, which is read once something looks into it."""
    outside, cls = t.outside, type(real)
    node.guard(Check.TYPE, cls)
    view: Any = [] if cls is list else stand_in(cls)
    outside.tree.bind(node, real, view)
    if issubclass(cls, collections.deque):
        most = collections.deque.maxlen.__get__(real)  # type: ignore[attr-defined]
        collections.deque.__init__(view, (), most)
        place = node.child(Step.ATTR, "maxlen")
        outside.tree.meet(place, most)
        place.guard(Check.EQUAL, most)
    shadow = node.container = SequenceShadow(node, cls, view, [], filled=False)
    outside.unread[id(view)] = shadow
    outside.shadows.append(shadow)
    if not may_wait(t, node, cls):
        shadow.fill(outside)
    return view


def shadow_tuple(t: Trace, node: Node, real: Any) -> Any:
    """A tuple of what the interpreter sees of the elements."""
    cls, idle = type(real), idle_items(t.outside, node)
    if (
        not idle
        and is_constant(real)
        and not (t.outside.symbolic and has_symbols(t.outside.symbolic, node.source, real))
    ):
        node.guard(Check.EQUAL, real)
        return t.outside.tree.bind(node, real, real)
    node.guard(Check.TYPE, cls)
    node.guard(Check.LENGTH, tuple.__len__(real))
    t.outside.tree.order.append(node)
    items: tuple[Any, ...] = tuple(
        carried(t.outside, node, i, v)
        if i in idle and type(v) in CONSTANTS
        else t.outside.read(node, Step.ITEM, i, v)
        for i, v in enumerate(tuple.__iter__(real))
    )
    if cls is tuple:
        view = items
    elif all(a is b for a, b in zip(items, tuple.__iter__(real), strict=True)):
        view = real
    elif cls is torch.Size:
        view = torch.Size(items)
    else:
        view = stand_in(cls, items)
    return t.outside.tree.bind(node, real, view)


def idle_items(outside: Outside, node: Node) -> frozenset[int]:
    """Which items of a tuple nothing reads: where it is the state of a frame that goes on after a break."""
    resumed = getattr(outside.function, "__braze_resumed__", None)
    return resumed.idle if resumed is not None and node.step is Step.LOCAL else frozenset()


def carried(outside: Outside, node: Node, index: int, real: Any) -> Carried:
    """What stands for such an item, of which the class alone is guarded: an object of another may have code that runs at its end."""
    place, stand_in = node.child(Step.ITEM, index), Carried()
    place.real, place.value = real, stand_in
    place.guards.append((Check.TYPE, type(real)))
    outside.tree.known[id(stand_in)] = place
    outside.tree.order.append(place)
    return stand_in


def shadow_set(t: Trace, node: Node, real: Any) -> Any:
    """A copy of a set of constants or of things known by identity."""
    cls = type(real)
    base = set if issubclass(cls, set) else frozenset
    items = list(base.__iter__(real))
    if not all(is_constant(v) or is_known_by_identity(v) for v in items):
        graph_break("BZ1014", "a set from outside that holds objects")
    node.guard(Check.TYPE, cls)
    node.guard(Check.LENGTH, len(items))
    for item in items:
        node.guard(Check.HAS_KEY, (item, True))
    view = set(items) if cls is set else real
    t.outside.tree.bind(node, real, view)
    if issubclass(type(real), set):
        if view is real:
            view = stand_in(cls)
            set.update(view, items)
            t.outside.tree.bind(node, real, view)
        node.container = SequenceShadow(node, cls, view, items)
        t.outside.shadows.append(node.container)
    return view


def instance_dict(outside: Outside, node: Node) -> DictShadow | None:
    """The shadow of an outside object's instance dict; None where it has none."""
    if node.dict is None:
        try:
            real = object.__getattribute__(node.real, "__dict__")
        except AttributeError:
            return None
        if not issubclass(type(real), dict):
            return None  # a class's view
        if type(real) is not dict:
            graph_break(
                "BZ1014",
                f"the __dict__ of a {type(node.real).__name__} from outside is a {type(real).__name__}, no plain dict",
                "keep attributes in a plain dict, or read the items",
            )
        if not has_usual_dict(type(node.real)):
            graph_break(
                "BZ1014",
                f"the __dict__ of a {type(node.real).__name__} from outside is what its class makes of it",
                "give the property another name",
            )
        known = outside.tree.known.get(id(real))
        if (known is not None and known.real is real) or id(real) in outside.instance_dicts:
            refuse_both()
        stands_in = node.value is not node.real and node.container is not None
        view = object.__getattribute__(node.value, "__dict__") if stands_in else {}
        node.dict = DictShadow(node, Step.DICT, real, view)
        node.dict.touched = stands_in
        outside.instance_dicts[id(real)] = node.dict
    return node.dict


def has_usual_dict(cls: type) -> bool:
    """Whether what objects of a class give as ``__dict__`` is where their attributes are looked up: a class may have a property of that name."""
    return type(lookup_in_mro(cls, "__dict__")[0]) in _DICT_FIELDS


def note_lack(outside: Outside, node: Node, name: str) -> bool:
    """Whether an object's ``__dict__`` is a dict of another class, such as the object itself, without this name: then the guards say so."""
    try:
        real = object.__getattribute__(node.real, "__dict__")
    except AttributeError:
        return False
    if type(real) is dict or not issubclass(type(real), dict) or dict.__contains__(real, name):
        return False
    known = outside.tree.known.get(id(real))
    if known is not None and known.container is not None:
        known.container.settle()
        if dict.__contains__(known.value, name):
            return False  # put there by the program
    if node.absent is None:
        node.absent = {}
    node.absent[name] = True
    return True


def refuse_both() -> None:
    """End the graph: what is written by one way is to be read by the other."""
    graph_break(
        "BZ1014",
        "the __dict__ of an object from outside is met by another way too",
        "pass the object, and ask it for vars()",
    )


def write_instance(t: Trace, obj: Any, name: str, value: Any) -> None:
    """Write into an instance dict, for the program only."""
    node = t.outside.tree.node_of(obj)
    if node is None:
        own = own_dict(obj)
        if own is None:
            raise no_place(obj, name)
        own[name] = value
        return
    shadow = instance_dict(t.outside, node)
    if shadow is None:
        raise no_place(obj, name)
    shadow.put(t.done, name, value)


def no_place(obj: Any, name: str) -> AttributeError:
    """Python's error where an object without a dict is to get, or lose, an attribute that its class has no slot for."""
    text = str(missing(obj, name))
    if sys.version_info < (3, 13):
        return AttributeError(text)
    # CPython asks the class for what it does itself, of which both ways are one slot
    if all(lookup_in_mro(type(obj), way)[1] is object for way in ("__setattr__", "__delattr__")):
        text += " and no __dict__ for setting new attributes"
    return AttributeError(text, name=name, obj=obj)


def instance_contents(outside: Outside, obj: Any, name: str) -> Any:
    """What an object's instance dict holds as far as the trace has come, which nobody has asked for: nothing is guarded."""
    node = outside.tree.node_of(obj)
    if node is None:
        return (own_dict(obj) or {}).get(name, MISSING)
    shadow = instance_dict(outside, node)
    if shadow is None or name in shadow.deleted:
        return MISSING
    found = dict.get(shadow.view, name, MISSING)
    return found if found is not MISSING else dict.get(shadow.real, name, MISSING)


def own_dict(obj: Any) -> dict[str, Any] | None:
    """An object's instance dict, past any ``__getattribute__``; None where it has none."""
    try:
        found: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found


def keep(done: Ledger, node: Node, name: str, value: Any) -> None:
    """A field that has no place in an instance dict: written when the graph has run."""
    if node.slots is None:
        node.slots = {}
        done.slotted.append(node)
    node.slots[name] = value
