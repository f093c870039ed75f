"""What divides an expression."""

from __future__ import annotations

from braze.symbolic.expr import Expr, Integer, Sum


def multiple(e: Expr, of: int) -> bool:
    """Whether an expression is a multiple of a number, whatever its symbols are."""
    match e:
        case Integer(number):
            return number % of == 0
        case Sum(parts, constant):
            return constant % of == 0 and all(k % of == 0 for _, k in parts)
    return False
