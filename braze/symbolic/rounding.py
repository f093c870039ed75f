"""Whole numbers made of floats: ``int(n * 0.5)``, ``math.ceil(n / 3)``, the sizes of ``interpolate(scale_factor=1.7)``.

A float rounds, a quotient of integers does not, so that one stands for the other only where both are known to be the same:

- where every step is exact, as with constants of few binary digits, below 2**52;
- where a quotient of integers is all there is, below 2**52: an integer that it would be rounded up to is further off than a float;
- where the float comes of one integer and constants (1.7, a third), of that integer's values below 2**16, which are all tried.

That values stay below is asked of the ShapeEnv, so that a guard keeps it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from braze.support.errors import Unsupported
from braze.symbolic import names
from braze.symbolic.expr import Expr, Integer, floor_div, maximum

#: floats as whole numbers -> what makes them
ROUNDED: dict[str, Callable[[float], int]] = {
    names.FLOOR_TO_INT: math.floor,
    names.TRUNC_TO_INT: math.trunc,
    names.CEIL_TO_INT: math.ceil,
}
#: the same of a quotient of integers
_TOWARDS: dict[str, Callable[[int, int], int]] = {
    names.FLOOR_TO_INT: lambda top, bottom: top // bottom,
    names.TRUNC_TO_INT: lambda top, bottom: top // bottom if top >= 0 else -(-top // bottom),
    names.CEIL_TO_INT: lambda top, bottom: -(-top // bottom),
}
#: below it all integers are floats, and all their halves
_EXACT = 1 << 52
#: how many values of an integer are tried
_TRIED = 1 << 16
#: constants of more binary digits are not taken as exact
_DIGITS = 20
#: the largest denominator of the fractions that constants are taken for
_DENOMINATOR = 1000

#: gives the expression of a SymPy integer
Convert = Callable[[Any], Expr]


class Step(NamedTuple):
    """What is done to a float: ``*``, ``+`` or ``/`` with a constant."""

    operation: str
    constant: float


class Line(NamedTuple):
    """``(factor * n + offset) / bottom``."""

    factor: int
    offset: int
    bottom: int


def rounded(e: Any, convert: Convert, env: Any) -> Expr | None:
    """A float that is rounded to an integer as a quotient of integers; None where that is not known to be the same."""
    kind, value = names.name_of(e), e.args[0]
    if names.name_of(value) == names.INT_TRUE_DIV and not value.args[1].is_Integer:
        bottom = convert(value.args[1])
        check_divisor(e, bottom)
        return quotient(kind, _between(value.args[0], convert, 1 - _EXACT, _EXACT - 1, env), bottom)
    found = _steps(value)
    if found is None:
        return None
    whole, steps = found
    if (line := _exact(steps)) is not None:
        high = (_EXACT - abs(line.offset)) // max(abs(line.factor), 1) - 1
        low = -high
    elif len(steps) == 1 and steps[0].operation == "/" and steps[0].constant.is_integer():
        line, low, high = _fraction(steps), 1 - _EXACT, _EXACT - 1
    else:
        line, low, high = _tried(kind, steps), 0, _TRIED - 1
    if line is None:
        return None
    top = _between(whole, convert, low, high, env)
    return quotient(kind, top * line.factor + line.offset, Integer(line.bottom))


def quotient(kind: str, top: Expr, bottom: Expr) -> Expr:
    """A quotient as a whole number: the next below, the next above, or the next towards zero."""
    if kind == names.CEIL_TO_INT:
        return -floor_div(-top, bottom)
    low = top.bounds()[0]
    if kind == names.FLOOR_TO_INT or (low is not None and low >= 0):
        return floor_div(top, bottom)
    zero = Integer(0)
    return floor_div(maximum(top, zero), bottom) - floor_div(maximum(-top, zero), bottom)


def check_divisor(e: Any, divisor: Expr) -> None:
    """Refuse a quotient or remainder by what may be below zero: the rules of ours are those of divisors above it."""
    if (low := divisor.bounds()[0]) is None or low < 0:
        raise Unsupported("BZ3002", f"the size {e} has no integer form", why=f"{divisor} may be below zero")


def _between(whole: Any, convert: Convert, low: int, high: int, env: Any) -> Expr:
    """The expression of an integer that is known to be from ``low`` to ``high``, by a guard where need be."""
    form = convert(whole)
    least, most = form.bounds()
    for holds, asked in (
        (most is not None and most <= high, lambda: whole <= high),
        (least is not None and least >= low, lambda: whole >= low),
    ):
        if not holds and not env.evaluate_expr(asked()):
            raise Unsupported(
                "BZ3002",
                f"a number that floats round, of {whole}",
                why=f"it is not from {low} to {high}, where integers give the same",
            )
    return form


def _steps(e: Any) -> tuple[Any, tuple[Step, ...]] | None:
    """The SymPy integer that a float comes of, and what is done to it in turn; None where it comes of more."""
    kind, args = names.name_of(e), e.args
    if kind == names.TO_FLOAT:
        return args[0], ()
    if kind == names.INT_TRUE_DIV:
        return (
            (args[0], (Step("/", float(args[1])),))
            if args[1].is_Integer and -_EXACT < args[1] < _EXACT
            else None
        )
    if len(args) != 2:
        return None
    if kind == names.FLOAT_TRUE_DIV:
        operation, constant, rest = "/", args[1], args[0]
    elif kind in (names.MUL, names.ADD):
        operation, (constant, rest) = (
            "*" if kind == names.MUL else "+",
            args if args[0].is_number else args[::-1],
        )
    else:
        return None
    found = _steps(rest)
    if found is None or not constant.is_number or not math.isfinite(float(constant)):
        return None
    whole, steps = found
    return whole, (*steps, Step(operation, float(constant)))


def _exact(steps: tuple[Step, ...]) -> Line | None:
    """The line of steps none of which rounds as long as its numbers are small; not shortened, so that none on the way is larger."""
    factor, offset, bottom = 1, 0, 1
    for operation, constant in steps:
        top, under = constant.as_integer_ratio()
        if max(abs(top), under).bit_length() > _DIGITS or bottom.bit_length() > _DIGITS:
            return None
        if operation == "/":
            if top < 1 or top & (top - 1):
                return None
            top, under = under, top
        if operation == "+":
            factor, offset, bottom = factor * under, offset * under + top * bottom, bottom * under
        else:
            factor, offset, bottom = factor * top, offset * top, bottom * under
    return Line(factor, offset, bottom)


def _fraction(steps: tuple[Step, ...]) -> Line | None:
    """The line of steps by the fractions that their constants are near to."""
    factor, offset = Fraction(1), Fraction(0)
    for operation, constant in steps:
        near = (
            Fraction(constant)
            if constant.is_integer()
            else Fraction(constant).limit_denominator(_DENOMINATOR)
        )
        if operation == "/" and not near:
            return None
        if operation == "+":
            offset += near
        else:
            by = 1 / near if operation == "/" else near
            factor, offset = factor * by, offset * by
    bottom = math.lcm(factor.denominator, offset.denominator)
    return Line(int(factor * bottom), int(offset * bottom), bottom)


@functools.lru_cache(maxsize=256)
def _tried(kind: str, steps: tuple[Step, ...]) -> Line | None:
    """The line by fractions, where it gives the same integer as the floats do for each value that is tried."""
    line = _fraction(steps)
    if line is None or max(map(abs, line)) >= _EXACT // _TRIED:
        return None
    whole, towards = ROUNDED[kind], _TOWARDS[kind]
    for n in range(_TRIED):
        value = float(n)
        for operation, constant in steps:
            value = (
                value * constant
                if operation == "*"
                else value + constant
                if operation == "+"
                else value / constant
            )
        if not math.isfinite(value) or whole(value) != towards(line.factor * n + line.offset, line.bottom):
            return None
    return line
