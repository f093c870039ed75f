"""``numbers[i]`` where ``i`` changes from call to call: a place of its own, by which each call reads its number, rather than a variant per ``i``.

What is computed of ints and sizes from outside (``numbers[i % 4]``, ``numbers[x.size(0) - j]``) is one too, which each call computes first.
What such a place holds is guarded as any number from outside is: an int or a float is a symbol, anything else plain is compared.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from braze import native
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import MISSING
from braze.capture.guards.tables import program_of
from braze.capture.outside.shadows import DictShadow, SequenceShadow
from braze.capture.outside.symbols import symbolic_float, symbolic_int
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import GraphState, Trace
from braze.graph import torch_symbols
from braze.graph.fakes import PLAIN as PLAIN_TENSORS
from braze.graph.shape_guards import python_text
from braze.graph.specs import SymbolSpec
from braze.native import calibrate, walk
from braze.native.encode import MOST_COMPUTED
from braze.support.errors import Unsupported

#: what an item is taken of; others run code of their own, or are no containers of numbers
HOLDERS = frozenset({list, tuple, dict})
#: what is looked at by value, and has no identity that a program would see
PLAIN = frozenset({int, float, bool, str, type(None)})
#: integers from here on are no symbols
LARGE = 1 << 62


def item(t: Trace, holder: Any, key: torch.SymInt) -> Any:
    """What the interpreter sees of ``holder[key]``; MISSING where it is no plain value, or none that each call could read before it begins."""
    index = place_of(t, key)
    if index is None:
        return MISSING
    above = place_of_holder(t.outside, holder)
    if above is None:
        return MISSING
    node = above.child(Step.ITEM_AT, index.source)
    if node.real is not MISSING:
        return node.value
    try:
        real = above.real[index.real]
    except LookupError:  # which the program is to see: raised for this number, as of any other object
        return MISSING
    if type(real) not in PLAIN:
        return MISSING
    node.origin = t.frames.here()
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


def place_of(t: Trace, key: torch.SymInt) -> Node | None:
    """The place of an int that is a symbol, or is computed of some; None where only the data tell it, or it is one number by now."""
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
    if type(holder) is dict or not PLAIN.issuperset(map(type, holder)):
        return None
    return outside.tree.constant(tuple(holder))


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
    return not shadow.changed() and PLAIN.issuperset(map(type, dict.keys(shadow.real)))
