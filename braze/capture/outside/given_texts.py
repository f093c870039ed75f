"""Text from outside that another call gave otherwise: the name of a request, what stood on the stack at a break.

It may be handed on, and written into other text when the graph has run, with no guard on what it says. Which instructions do no more is told in
``python/looks_at_texts.py``: before any other it is the text of this call, and guarded as that. Where it lies in a container that C code
gets, nobody can put the text in its place: then the frame is traced again, and the text is guarded where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from braze.capture.facts.records import Check, Source, Step
from braze.capture.facts.values import UnknownText
from braze.capture.guards.dynamic import TEXT
from braze.capture.outside import texts
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node

#: steps to text that the program itself reads; what other steps lead to (a function's name) is read for it
READ_BY_PROGRAM = frozenset({Step.LOCAL, Step.ITEM, Step.DICT, Step.CELL, Step.GLOBAL, Step.ITEM_AT})


class ValueMatters(BaseException):
    """Trace again, with what these places hold guarded where it is read. Not an Exception: no handler of the user's may see it."""

    def __init__(self, sources: frozenset[Source]) -> None:
        super().__init__()
        self.sources = sources


class Given:
    """Says what a text is in this call, which is guarded from then on."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __call__(self) -> str:
        self.node.guard(Check.EQUAL, self.node.real)
        return self.node.real  # type: ignore[no-any-return]


def may_stand(outside: Outside, node: Node) -> bool:
    """Whether text at this place was another in an earlier call, and nothing has looked at it where it could not be told from this."""
    source = node.source
    return node.step in READ_BY_PROGRAM and (source, TEXT) in outside.symbolic and source not in outside.plain


def text(outside: Outside, node: Node, real: str) -> UnknownText:
    """What stands for text from outside."""
    made = UnknownText()
    made.made = Given(node), ()
    node.real, node.value = real, made
    node.guards.append((Check.TYPE, str))
    outside.tree.known[id(made)] = outside.texts[id(made)] = node
    outside.tree.order.append(node)
    return made


def sources_in(values: Iterable[Any]) -> Iterator[Source]:
    """Of which places there is text among values, or in text that is made of others."""
    for value in values:
        if type(value) is tuple:
            yield from sources_in(value)
        elif type(value) is UnknownText and value.made is not None:
            function, args = value.made
            if type(function) is Given:
                yield function.node.source
            yield from sources_in(args)


def refuse(*values: Any) -> None:
    """Trace again where there is such text among values of which C code gets the containers."""
    found = frozenset(sources_in(values))
    if found:
        raise ValueMatters(found)


def written(value: UnknownText) -> Any:
    """Text of numbers in a container that C code gets; where it is made of text from outside, which would be written there too, the frame is traced again."""
    refuse(value)
    return texts.written(value)
