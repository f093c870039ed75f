"""Automatic dynamic shapes: what changed between a variant and the values that miss it becomes symbolic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from braze.capture.facts.records import Capture, Check, Guard, Source, Step
from braze.capture.guards.tables import read_source
from braze.graph.nodes.specs import FloatSpec, SymbolSpec
from braze.native.torch_state import holds_numbers_alone

#: what stands for a number, with the type of that
NUMBERS = {int: int, float: float, SymbolSpec: int, FloatSpec: float}
#: in place of all that is to be a symbol from the first call on: sizes of what is no parameter, and numbers that are arguments
ALL = "all"
#: in place of a dimension: text that was another one
TEXT = -2
#: and a list that was longer or shorter
LENGTH = -3
#: sizes of tensors and values of numbers, by where they are
Extents = dict[Source, tuple[int, ...] | int | float]


def is_about_extents(guard: Guard) -> bool:
    """Whether a guard's failure may be cured by symbolic sizes, ints or floats."""
    if guard.check is Check.EQUAL:
        return guard.source is not None and is_data(guard.source) and holds_numbers(guard.expected)
    return guard.check in (Check.TENSOR, Check.RANGE)


def holds_numbers(expected: Any) -> bool:
    """Whether this is a number, or a tuple with one somewhere."""
    if type(expected) in TUPLES:
        return any(map(holds_numbers, expected))
    return type(expected) in NUMBERS


def is_data(source: Source) -> bool:
    """Whether a number at this source may become a symbol once it changes: any that user code holds."""
    while source.parent is not None:
        if source.step not in DATA:
            return False
        source = source.parent
    return source.step in DATA or source.step is Step.CONSTANT


#: steps to what changes from call to call; the others lead to defaults and the like. Beneath an object that is known by identity (a function
#: that another wraps, a class, a module) it is what that holds
DATA = frozenset(
    {
        Step.LOCAL, Step.GLOBAL, Step.GLOBALS_OF, Step.CELL, Step.CLOSURE, Step.ATTR, Step.DICT, Step.CLASS_ATTR, Step.TYPE, Step.FUNC,
        Step.ITEM, Step.ITEM_AT, Step.NEGATIVE, Step.LENGTH,
    }
)  # fmt: skip


#: tuples whose items are compared one by one once a number among them has changed
TUPLES = (tuple, torch.Size)


def has_symbols(symbolic: Any, source: Source, value: Any) -> bool:
    """Whether a number in a tuple at this source is to be a symbol."""
    if ALL in symbolic and is_argument(source) and holds_numbers(value):
        return True
    items = ((Source(Step.ITEM, i, source), v) for i, v in enumerate(value))
    return any(
        (at, -1) in symbolic or (type(v) in TUPLES and has_symbols(symbolic, at, v)) for at, v in items
    )


def is_argument(source: Source) -> bool:
    """Whether a source is an argument or an item of one: numbers there are expected to change."""
    while source.parent is not None:
        if source.step is not Step.ITEM:
            return False
        source = source.parent
    return source.step is Step.LOCAL


def changed_extents(capture: Capture, function: Any, locals: Sequence[Any]) -> frozenset[tuple[Source, int]]:
    """(source, dimension) of every size, and (source, -1) of every int argument, that differs now."""
    found: set[tuple[Source, int]] = set()
    for guard in capture.guards:
        if guard.source is None:
            continue
        if guard.check is Check.TENSOR:
            value = read_source(guard.source, function, locals)
            if issubclass(type(value), torch.Tensor) and value.dim() == len(guard.expected.sizes):
                pairs = enumerate(zip(guard.expected.sizes, value.shape, strict=True))
                found.update(
                    (guard.source, i) for i, (old, new) in pairs if isinstance(old, str) or old != new
                )
        elif is_about_extents(guard):
            value = read_source(guard.source, function, locals)
            found.update((itself(at), -1) for at in changed_numbers(guard.source, guard.expected, value))
    return frozenset(found)


def changed_numbers(source: Source, expected: Any, value: Any) -> Iterator[Source]:
    """Where a number is another one now: here, or in a tuple that is as long as it was."""
    if type(expected) in TUPLES:
        if type(value) is type(expected) and len(value) == len(expected):
            for i, (old, new) in enumerate(zip(expected, value, strict=True)):
                yield from changed_numbers(Source(Step.ITEM, i, source), old, new)
    elif holds_numbers(expected):
        if type(value) is NUMBERS[type(expected)] and value != expected:
            yield source


def numbers(source: Source, expected: Any) -> Iterator[Source]:
    """Where numbers stand: here, or in a tuple."""
    if type(expected) in TUPLES:
        for i, item in enumerate(expected):
            yield from numbers(Source(Step.ITEM, i, source), item)
    elif holds_numbers(expected):
        yield source


def itself(source: Source) -> Source:
    """Where a number is found, whatever its sign."""
    return source.parent if source.step is Step.NEGATIVE and source.parent is not None else source


def changed_texts(capture: Capture, function: Any, locals: Sequence[Any]) -> frozenset[tuple[Source, int]]:
    """(source, TEXT) of every text that is another one now."""
    found: set[tuple[Source, int]] = set()
    for guard in capture.guards:
        if is_about_text(guard) and guard.source is not None:
            value = read_source(guard.source, function, locals)
            if type(value) is str and value != guard.expected:
                found.add((guard.source, TEXT))
    return frozenset(found)


def is_about_text(guard: Guard) -> bool:
    """Whether a guard fails of another text than was given before."""
    return guard.check is Check.EQUAL and type(guard.expected) is str


def changed_lengths(capture: Capture, function: Any, locals: Sequence[Any]) -> frozenset[tuple[Source, int]]:
    """(source, LENGTH) of every list of numbers that is longer or shorter now."""
    found: set[tuple[Source, int]] = set()
    for guard in capture.guards:
        if guard.check is Check.LENGTH and guard.source is not None and is_data(guard.source):
            value = read_source(guard.source, function, locals)
            if type(value) is list and len(value) != guard.expected and holds_numbers_alone(value):
                found.add((guard.source, LENGTH))
    return frozenset(found)


def all_extents(capture: Capture) -> frozenset[tuple[Source, int]]:
    """Every size of every tensor but parameters and buffers, and every number that is an argument."""
    found: set[tuple[Source, int]] = set()
    for guard in capture.guards:
        if guard.source is None:
            continue
        if guard.check is Check.TENSOR and not is_model_state(guard):
            found.update((guard.source, i) for i in range(len(guard.expected.sizes)))
        elif guard.check is Check.EQUAL and is_about_extents(guard) and is_argument(itself(guard.source)):
            found.update((itself(at), -1) for at in numbers(guard.source, guard.expected))
    return frozenset(found)


def extents(locals: Sequence[Any]) -> Extents:
    """The sizes of tensors and the values of numbers among a call's arguments, and in lists, tuples and dicts there."""
    found: Extents = {}
    pending = [(Source(Step.LOCAL, i), value) for i, value in enumerate(locals)]
    looked_into: set[int] = set()  # a list may hold itself, or be held by many
    while pending:
        source, value = pending.pop()
        if issubclass(type(value), torch.Tensor):
            found[source] = tuple(value.shape)
        elif type(value) in (int, float):
            found[source] = value
        elif type(value) in (list, tuple, dict) and id(value) not in looked_into:
            looked_into.add(id(value))
            items = enumerate(value) if type(value) is not dict else value.items()
            pending += [
                (Source(Step.ITEM, key, source), item) for key, item in items if type(key) in (int, str)
            ]
    return found


def changed_since(before: Extents, now: Extents) -> frozenset[tuple[Source, int]]:
    """What ``changed_extents`` tells, of two calls neither of which was captured."""
    found: set[tuple[Source, int]] = set()
    for source, old in before.items():
        new = now.get(source)
        if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
            found.update((source, i) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
        elif type(old) is type(new) and type(old) in (int, float) and old != new:
            found.add((source, -1))
    return frozenset(found)


def is_model_state(guard: Guard) -> bool:
    """Whether a tensor is a parameter or a buffer: its sizes are the model's, not the call's."""
    at = guard.source
    while at is not None:
        if at.step is Step.DICT and at.key in ("_parameters", "_buffers"):
            return True
        at = at.parent
    return guard.expected.is_parameter
