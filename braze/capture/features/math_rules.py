"""Functions of ``math`` on numbers that change from call to call: where one gives a float for every number that is guarded to be there, the graph computes it."""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.facts.values import MISSING
from braze.capture.features.rules import named
from braze.capture.graph import floats, unbacked
from braze.capture.python import calls, operations
from braze.capture.python.iteration import elements
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace
from braze.graph.sizes.numbers import OF_MATH

FEATURE = Feature()
rule = FEATURE.call

Question = tuple[Callable[[Any, Any], Any], float]
_BELOW_OVERFLOW: Question = (operator.le, 700)
#: function -> what holds of the numbers of which it gives a float rather than an error
_DEFINED: dict[Any, tuple[Question, ...]] = {
    math.log: ((operator.gt, 0),), math.log2: ((operator.gt, 0),), math.log10: ((operator.gt, 0),),
    math.log1p: ((operator.gt, -1),), math.exp: (_BELOW_OVERFLOW,), math.expm1: (_BELOW_OVERFLOW,),
    math.sinh: (_BELOW_OVERFLOW, (operator.ge, -700)), math.cosh: (_BELOW_OVERFLOW, (operator.ge, -700)),
}  # fmt: skip


@rule(math.sqrt)
def sqrt_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``math.sqrt``: of a symbolic number, a symbolic number."""
    value: Any = args[0] if len(args) == 1 else None
    of_sizes = type(value) is torch.SymFloat and not t.graph.mode.depends_on_floats(value)
    if type(value) is torch.SymInt or of_sizes:
        if unbacked.is_unbacked(value) or t.truth(operations.compare(t, operator.ge, value, 0)):
            return floats.noted_as_written(t.graph, math.sqrt, (value,), torch.sym_sqrt(value))
        args = (operations.number(value),)  # C refuses it
    if type(value) is torch.SymFloat:
        made = floats.where_defined(t.graph, math.sqrt, value)
        if made is not MISSING:
            return made
    return calls.call_c(t, math.sqrt, args, kwargs)


@FEATURE.each(*sorted(OF_MATH, key=operator.attrgetter("__name__")))
def of_one(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A function of one number: of one that changes, a float that the graph computes. Where that is not defined, Python refuses the number."""
    if len(args) == 1 and not kwargs and floats.is_of_sizes(t.graph, args[0]):
        asked = _DEFINED.get(function, ())
        if all(t.truth(operations.compare(t, question, args[0], bound)) for question, bound in asked):
            return floats.called(t.graph, function, args[0])
    if len(args) == 1 and not kwargs and type(args[0]) is torch.SymFloat:
        made = floats.where_defined(t.graph, function, args[0])
        if made is not MISSING:
            return made
    if (
        function is math.log
        and len(args) == 2
        and floats.is_of_sizes(t.graph, args[0])
        and type(args[1]) in (int, float)
        and args[1] > 1
    ):
        return operations.binary(
            t, operator.truediv, of_one(function, t, args[:1], {}, tail), math.log(args[1])
        )
    return of_math(function, t, args, kwargs, tail)


@FEATURE.each(math.isfinite, math.isnan, math.isinf)
def of_finite(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Integers are finite, and so is what is made of sizes."""
    if len(args) == 1 and type(args[0]) is torch.SymInt:
        return function is math.isfinite
    return decided(function, t, args, kwargs, tail)


def decided(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A question about a float, or the integer that it is made, which is guarded where the float is the program's."""
    found = floats.asked(t.graph, function, args, kwargs)
    if found is not MISSING:
        return found
    if function in TO_WHOLE:
        args = tuple([known(t, a) for a in args])
    return of_math(function, t, args, kwargs, tail)


TO_WHOLE = (math.ceil, math.floor, math.trunc)


@FEATURE.each(*TO_WHOLE)
def to_whole(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Of a float that the graph computes the integer that it is in this call: no size is made of it."""
    return decided(function, t, args, kwargs, tail)


def known(t: Trace, value: Any) -> Any:
    """A float that a function here has made, as it is in this call; anything else as it is."""
    return float(value) if floats.is_computed(t.graph, value) else value


@rule(abs, operator.abs)
def abs_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Of a float that changes, a float as the graph computes it."""
    if len(args) == 1 and not kwargs and type(args[0]) is torch.SymFloat:
        return floats.combine(t.graph, abs, args[0])
    return calls.call_c(t, abs, args, kwargs)


@rule(math.pow)
def pow_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A power of floats; of numbers of 64 bits such ones do not overflow."""
    if (
        len(args) == 2
        and not kwargs
        and floats.is_of_sizes(t.graph, args[0])
        and type(args[1]) in (int, float)
    ):
        if abs(args[1]) <= 8 and t.truth(operations.compare(t, operator.gt, args[0], 0)):
            return floats.called(t.graph, math.pow, args[0], float(args[1]))
    return of_math(math.pow, t, args, kwargs, tail)


#: functions of ``math`` that multiply what they draw, as Python does it
PRODUCTS = frozenset(named(math, "prod", "sumprod"))
_HERE = {
    math.sqrt,
    math.pow,
    math.ceil,
    math.floor,
    math.trunc,
    math.isfinite,
    math.isnan,
    math.isinf,
    *OF_MATH,
}
MATH = [v for v in vars(math).values() if type(v) is types.BuiltinFunctionType and v not in _HERE]


@FEATURE.each(*MATH)
def of_math(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Functions of ``math``, with truth values as the numbers that they are: C takes no symbols of them, and SymPy does not compute with them."""
    given = [elements(t, a) for a in args] if function in PRODUCTS else args
    if function in PRODUCTS and not any(given):  # of nothing it is what it starts from
        return calls.call_c(t, function, given, kwargs)
    args = tuple(
        [
            list(map(operations.as_integer, a)) if type(a) in (list, tuple) else operations.as_integer(a)
            for a in given
        ]
    )
    kwargs = {k: operations.as_integer(v) for k, v in kwargs.items()}
    return operations.on_numbers(lambda *given: calls.call_c(t, function, given, kwargs), *args)
