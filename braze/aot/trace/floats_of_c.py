"""Symbols where PyTorch takes floats in C++ alone, forward and backward: C++ carries a number of its own for each.

Such a number is like no other of the graph, so that operators which get it, or what C++ makes of it (``1 - p``), are known to mean the symbol. What C++
may make of it `graph/fakes/floats_of_c.py` says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from braze.aot.trace.heard_floats import heard
from braze.graph.fakes import floats_of_c
from braze.graph.fakes.fakes import FakeMode

#: by how much such a number differs from the float of this call, in parts of it: C++ decides the same by both
_OFF = 2.0**-22
#: by how much others differ that are tried beside them: also as the narrowest of floats they are others
_APART = 2.0**-5


class FloatsOfC:
    """The numbers of one trace that stand for symbols.

    ``computed(function, operands, symbol)`` notes the node that computes a symbol.
    """

    def __init__(
        self, mode: FakeMode, computed: Callable[[Any, tuple[Any, ...], torch.SymFloat], Any]
    ) -> None:
        self._mode, self._computed = mode, computed
        #: number -> its symbol, or the operation by which C++ makes it of others: (function, operands)
        self._meant: dict[float, Any] = {}
        self._drawn = random.Random(0)

    def marked(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which a captured call is traced: its symbols are left to C++, which fixes them, where it makes more of them than is known."""
        if self._mode.env is None or not (found := [*floats_of_c.symbols_among(target, args, kwargs)]):
            return args, kwargs
        first, other = _Numbers(args, kwargs), _Numbers(args, kwargs)
        for each, symbol in found:
            own, made = self._mode.floats.get(self._mode.name_of(symbol)), floats_of_c.made_of(each, args)
            if own is None or made is None:
                return args, kwargs
            for numbers, apart in ((first, 0), (other, _APART)):
                off = apart + _OFF * self._drawn.uniform(0.5, 1)
                numbers.add(
                    each, symbol, own * (1 - off if each.within is floats_of_c.INSIDE else 1 + off), made
                )
        if not first.are_like_no_other(self._meant) or not _is_known(target, first, other):
            return args, kwargs
        self._meant.update(first.meant)
        return first.call()

    def symbol(self, number: float) -> Any:
        """What a number of the trace means: a symbol, or itself."""
        found = self._meant.get(number, number)
        if type(found) is tuple:
            function, operands = found
            parts = tuple(map(self.symbol, operands))
            symbols = [v for v in parts if type(v) is torch.SymFloat]
            own = function(
                *[self._mode.floats[self._mode.name_of(v)] if type(v) is torch.SymFloat else v for v in parts]
            )
            found = self._meant[number] = self._computed(
                function, parts, self._mode.derived_float(own, symbols)
            )
        return found

    def symbols(self, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """The arguments of an operator with what their numbers mean."""
        if not self._meant:
            return args, kwargs
        return tuple(map(self._of, args)), {name: self._of(value) for name, value in kwargs.items()}

    def called(self, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function of ours gives of these, which computes with symbols itself."""
        args, kwargs = self.symbols(args, kwargs)
        return rule(*args, **kwargs)

    def _of(self, value: Any) -> Any:
        return self.symbol(value) if type(value) is float else value


class _Numbers:
    """Numbers for the symbols of a call, and for what C++ makes of them."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._given = args, kwargs
        self._by_name: dict[str, Any] = {}
        #: as :attr:`FloatsOfC._meant`
        self.meant: dict[float, Any] = {}
        #: how many there should be
        self._count = 0

    def add(
        self, each: floats_of_c.Taken, symbol: torch.SymFloat, number: float, makes: floats_of_c.Made
    ) -> None:
        """One for a symbol."""
        self._by_name[each.name] = each, number
        made, self.meant[number] = [number], symbol
        for function, places in makes:
            operands = tuple([made[v] if type(v) is int else v for v in places])
            made.append(function(*operands))
            self.meant[made[-1]] = function, operands
        self._count += len(made)

    def are_like_no_other(self, before: Mapping[float, Any]) -> bool:
        """Whether each means one thing."""
        return len(self.meant) == self._count and self.meant.keys().isdisjoint(before)

    def call(self) -> tuple[Any, Any]:
        """The arguments of the call with them."""
        return floats_of_c.replaced(self._by_name, *self._given)


def _is_known(target: Any, first: _Numbers, other: _Numbers) -> bool:
    """Whether all that differs between a call with some numbers and one with others are these numbers."""
    one, two = heard(target, *first.call()), heard(target, *other.call())
    if one is None or two is None or len(one) != len(two):
        return False
    places, others = ({n: i for i, n in enumerate(numbers.meant)} for numbers in (first, other))
    return all(
        a == b or (a != a and b != b) or places.get(a, -1) == others.get(b)
        for a, b in zip(one, two, strict=True)
    )
