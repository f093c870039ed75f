"""``items[i]`` where ``i`` changes from call to call: a place of its own, by which each call reads its item, rather than a variant per ``i``.

What is computed of ints and sizes from outside (``numbers[i % 4]``, ``numbers[x.size(0) - j]``) is one too, which each call computes first, and so is
text from outside, or of such integers and texts (``f"layer_{i}"``), as the key of a dict, and a tuple of these. What such a place holds is guarded as
anything from outside is: of a tensor or a module is told what it is like, an int or a float is a symbol, of a function or class which it is. Whether
a dict has the key is a place, too.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from typing import Any

import torch

from braze import native
from braze.capture.facts.records import Check, Step
from braze.capture.facts.replay import builtin_base
from braze.capture.facts.values import MISSING, UnknownText, is_bound_builtin, is_identity_type
from braze.capture.guards.tables import program_of
from braze.capture.outside import given_texts, texts
from braze.capture.outside.shadows import DictShadow, SequenceShadow
from braze.capture.outside.symbols import symbolic_float, symbolic_int
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import GraphState, Trace
from braze.graph.fakes.fakes import PLAIN as PLAIN_TENSORS
from braze.graph.nodes.specs import SymbolSpec
from braze.graph.private import torch_symbols
from braze.graph.sizes.shape_guards import python_text
from braze.native import calibrate, walk
from braze.native.encode import MOST_COMPUTED
from braze.support.errors import Unsupported

#: what an item is taken of; others run code of their own
DICTS = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})
HOLDERS = DICTS | {list, tuple}
HASHED = (dict, set, frozenset)
#: what stands for a key that changes from call to call, alone or in tuples
KEYS = frozenset({torch.SymInt, UnknownText})
#: what is looked at by value, and has no identity that a program would see
PLAIN = frozenset({int, float, bool, str, type(None)})
#: what such a tuple may hold besides. Two floats that are no numbers are one key or two
PLAIN_IN_KEYS = (PLAIN - {float}) | {bytes, torch.dtype, torch.device}
#: integers from here on are no symbols
LARGE = 1 << 62


def is_key(key: Any) -> bool:
    """Whether this is a key that changes from call to call."""
    return type(key) in KEYS or (type(key) is tuple and any(map(is_key, key)))


def is_told_later(key: Any) -> bool:
    """Whether each call can write such a key when the graph has run."""
    if type(key) is not tuple:
        return texts.is_told_later(key)
    return all(is_told_later(part) if is_key(part) else type(part) in PLAIN_IN_KEYS for part in key)


def item(t: Trace, holder: Any, key: Any) -> Any:
    """What the interpreter sees of ``holder[key]``; MISSING where there is none, or none that each call could read before it begins."""
    index = place_of(t, key)
    if index is None:
        return MISSING
    above = place_of_holder(t.outside, holder)
    return MISSING if above is None else item_at(t, above, index)


def item_at(t: Trace, above: Node, index: Node) -> Any:
    """The same of places."""
    node = above.child(Step.ITEM_AT, index.source)
    if node.real is not MISSING:
        return node.value
    real = there(above.real, index.real)
    if type(real) not in PLAIN:
        return by_what_it_is_like(t.outside, node, real)
    node.origin = t.frames.here()
    if type(real) is str and t.outside.symbolic and given_texts.may_stand(t.outside, node):
        return given_texts.text(t.outside, node, real)
    if type(real) is int and abs(real) < LARGE:
        value = symbolic_int(t, node, real)
        if t.outside.tree.known.get(id(value)) is node and node not in t.outside.symbolic_places:
            # below zero: minus an input. To read it again when the graph has run would be too late
            del t.outside.tree.known[id(value)]
        return value
    if type(real) is float and (made := symbolic_float(t, node, real)) is not None:
        return made
    node.guards.append((Check.EQUAL, real))
    t.outside.tree.meet(node, real)
    return real


def there(real: Any, key: Any) -> Any:
    """What a list, tuple or dict holds; MISSING where there is none, which the program is to see: as of any other object."""
    if issubclass(type(real), dict):
        return dict.get(real, key, MISSING)
    try:
        return real[key] if type(key) is int else MISSING
    except IndexError:
        return MISSING


def by_what_it_is_like(outside: Outside, node: Node, real: Any) -> Any:
    """A tensor, module, function or other object at such a place; MISSING of what was found by its number or key before."""
    if real is MISSING or is_bound_builtin(real):
        return MISSING
    known = None if is_identity_type(type(real)) else outside.tree.node_of(real)
    if known is not None and known.parent is node.parent and known.step is Step.ITEM:
        return MISSING
    return outside.see(node, real)


def holds(t: Trace, holder: Any, key: Any) -> Any:
    """Whether a dict or set from outside holds a key, which is guarded; MISSING where no call could tell before it begins."""
    index = place_of(t, key)
    above = place_of_holder(t.outside, holder) if index is not None else None
    if above is None or not issubclass(type(above.real), HASHED):
        return MISSING
    return holds_at(t, above, index)  # type: ignore[arg-type]


def holds_at(t: Trace, above: Node, index: Node) -> bool:
    """The same of places."""
    node = above.child(Step.HAS_AT, index.source)
    t.outside.tree.tell(node, builtin_base(above.real).__contains__(above.real, index.real), t.frames.here())
    return node.real  # type: ignore[no-any-return]


def place_of_text(t: Trace, text: UnknownText) -> Node | None:
    """The place of text from outside, of an integer's text, or of what is put together of such; None of any other."""
    function, args = text.made or (None, ())
    if type(function) is given_texts.Given:
        return function.node
    number = args[0] if args else None
    if type(number) is torch.SymInt and (function in (str, repr) or function is format):
        place = place_of(t, number)
        if place is None:
            return None
        how = args[1] if function is format else ""
        node = place.child(Step.FORMATTED, how)
        t.outside.tree.meet(node, format(place.real, how))
        return node
    parts = texts.parts_of(text)
    return None if parts is None else place_of_several(t, Step.JOINED, parts)


def place_of_several(t: Trace, step: Step, parts: Iterable[Any]) -> Node | None:
    """The place of text or of a tuple, of what it is made of; None where a part has none, or they are too many."""
    nothing: Any = "" if step is Step.JOINED else ()
    pieces, places = [nothing], list[Node]()
    for part in parts:
        if is_key(part):
            place = place_of(t, part)
            if place is None or len(places) == MOST_COMPUTED:
                return None
            places.append(place)
            pieces.append(nothing)
        elif step is Step.JOINED or is_plain_key(part):
            pieces[-1] += part if step is Step.JOINED else (part,)
        else:
            return None
    if len(places) == 1 and pieces == ["", ""]:
        return places[0]
    first, *others = places
    node = first.child(step, (tuple(pieces), tuple(other.source for other in others)))
    t.outside.tree.meet(node, walk.joined(pieces, [place.real for place in places]))
    return node


def place_of(t: Trace, key: Any) -> Node | None:
    """The place of text, of an int that is a symbol or is computed of some, or of a tuple of such; None where only the data tell it, or it is one number by now."""
    if type(key) is UnknownText:
        return place_of_text(t, key)
    if type(key) is tuple:
        return place_of_several(t, Step.TUPLE, key)
    expr = key.node.expr
    if torch_symbols.is_unbacked(key) or not expr.free_symbols:
        return None
    node = t.outside.tree.node_of(key)
    if node is not None and node.step is not Step.CONSTANT and type(node.real) is int:
        return node
    names = sorted(map(str, expr.free_symbols))
    places: dict[str, Node] = {}
    for name in names:
        place = t.outside.tree.symbols.get(name) or place_of_symbol(t, name)
        if place is None or len(places) == MOST_COMPUTED:
            return None
        places[name] = t.outside.tree.symbols[name] = place
    return places[names[0]] if expr.is_Symbol else computed_of(t.outside, expr, places)


def place_of_symbol(t: Trace, name: str) -> Node | None:
    """Where each call finds what a symbol stands for: an int, or the size of a tensor as it was when the call began."""
    for node in t.outside.tree.order:
        for check, expected in node.guards:
            if check is Check.EQUAL and isinstance(expected, SymbolSpec) and expected.name == name:
                return node if type(node.real) is int else None
        if isinstance(node.value, torch.Tensor) and type(node.real) in PLAIN_TENSORS:
            names = size_names(t.graph, node.value)
            # the walk in C reads sizes where it knows how tensors lie in memory
            if name in names and not (native.native_available and calibrate.facts() is None):
                dim = names.index(name)
                size = node.child(Step.SIZE, dim)
                t.outside.tree.meet(size, int(node.real.shape[dim]))
                return size
    return None


def size_names(graph: GraphState, fake: torch.Tensor) -> list[str]:
    """A tensor's sizes as text, as they were before the program changed them."""
    known = graph.specs.get(id(fake))
    sizes = fake.shape if known is None else known.sizes
    return [str(n.node.expr) if isinstance(n, torch.SymInt) else str(n) for n in sizes]


def computed_of(outside: Outside, expr: Any, places: dict[str, Node]) -> Node | None:
    """The place of what is computed of ints; None where more than 64 bits or other than integer arithmetic is needed."""
    try:
        text = python_text(expr)
    except Unsupported:
        return None
    numbers = {name: f"n{i}" for i, name in enumerate(places)}
    text = re.sub(r"\b[^\W\d]\w*\b", lambda found: numbers.get(found[0], found[0]), text)
    first, *others = places.values()
    key = text, tuple(other.source for other in others)
    program = program_of(key)
    if program.code is None:
        return None
    try:
        real = walk.computed(program, [place.real for place in places.values()])
    except walk.Mismatch:
        return None
    node = first.child(Step.COMPUTED, key)
    outside.tree.meet(node, real)
    return node


def place_of_holder(outside: Outside, holder: Any) -> Node | None:
    """The place of what an item is taken of, where it holds what it held when the call began; None where it does not, or is the program's own.

    What holds plain values alone is as good as a constant: its items were guarded as they were read.
    """
    node = outside.tree.node_of(holder)
    if node is not None and is_as_it_was(node, holder):
        return node
    own = outside.dict_views.get(id(holder))
    if own is not None and own.view is holder:
        return place_of_instance_dict(outside, own)
    waiting = outside.unread.get(id(holder))
    if waiting is not None and not waiting.filled:  # what stands for it is not all of it
        return None
    if type(holder) is dict or not PLAIN.issuperset(map(type, holder)):
        return None
    return outside.tree.constant(tuple(holder))


def place_of_instance_dict(outside: Outside, shadow: DictShadow) -> Node | None:
    """The place of what ``vars(obj)`` gives, where nothing was written to the object and its dict has names alone."""
    if shadow.changed() or not all(type(key) is str for key in dict.keys(shadow.real)):
        return None
    node = shadow.place(outside)
    node.guard(Check.TYPE, dict)
    return node


def is_as_it_was(node: Node, holder: Any) -> bool:
    """Whether nothing was written to what stands for a list, tuple or dict from outside."""
    shadow = node.container
    if shadow is None:
        return type(holder) is tuple and type(node.real) is tuple
    if isinstance(shadow, SequenceShadow):
        return not shadow.changed()
    if not isinstance(shadow, DictShadow) or shadow.step is not Step.ITEM:
        return False
    # a key of a class of the program's may be found by its code
    return (
        type(shadow.real) in DICTS
        and not shadow.changed()
        and all(type(key) is float or is_plain_key(key) for key in dict.keys(shadow.real))
    )


def is_plain_key(key: Any) -> bool:
    """Whether it runs no code of the program's to compare a key with another."""
    kind = type(key)
    return kind in PLAIN_IN_KEYS or (kind is tuple and all(map(is_plain_key, key)))
