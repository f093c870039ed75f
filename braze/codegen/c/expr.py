"""Index expressions as C, and what the generator asks of them."""

from __future__ import annotations

from collections.abc import Mapping

from braze.support.errors import InternalError
from braze.symbolic.expr import Expr, FloorDiv, Integer, Max, Min, Mod, Product, Sum, Symbol


def to_c(e: Expr, names: Mapping[Symbol, str] | None = None) -> str:
    """C text of an index expression (int64_t arithmetic); ``names`` renames symbols."""
    if isinstance(e, Integer):
        return str(e.number) if abs(e.number) < 2**31 else f"{e.number}LL"
    if isinstance(e, Symbol):
        return names.get(e, e.name) if names else e.name
    if isinstance(e, Product):
        return "*".join(_atom(f, names) for f in e.factors)
    if isinstance(e, Sum):
        return _sum(e, names)
    if isinstance(e, (FloorDiv, Mod)):
        return _quotient(e, names)
    if isinstance(e, (Max, Min)):
        name = "bz_max_s" if isinstance(e, Max) else "bz_min_s"
        return f"{name}({to_c(e.left, names)}, {to_c(e.right, names)})"
    raise InternalError("BZ9060", f"no C for the index expression {e!r}")


def _sum(e: Sum, names: Mapping[Symbol, str] | None) -> str:
    out = ""
    for m, k in e.parts:
        factor = "" if abs(k) == 1 else f"{abs(k) if abs(k) < 2**31 else f'{abs(k)}LL'}*"
        sign = ("-" if not out else " - ") if k < 0 else ("" if not out else " + ")
        out += f"{sign}{factor}{_atom(m, names)}"
    if e.constant:
        out += f" {'-' if e.constant < 0 else '+'} {abs(e.constant)}"
    return out


def _quotient(e: FloorDiv | Mod, names: Mapping[Symbol, str] | None) -> str:
    a, b = to_c(e.numerator, names), to_c(e.divisor, names)
    low = e.numerator.bounds()[0]
    if low is not None and low >= 0:
        # unsigned division is cheaper, by constants above all
        text = f"(int64_t)((uint64_t)({a}) {'/' if isinstance(e, FloorDiv) else '%'} (uint64_t)({b}))"
        return f"({text})"
    return f"bz_fdiv({a}, {b})" if isinstance(e, FloorDiv) else f"bz_mod({a}, {b})"


def _atom(e: Expr, names: Mapping[Symbol, str] | None) -> str:
    text = to_c(e, names)
    if isinstance(e, Symbol) and not text.isidentifier():
        return f"({text})"
    return f"({text})" if isinstance(e, (Sum, Product)) else text


def indirect_symbols(e: Expr) -> list[tuple[int, Symbol]]:
    """The symbols in ``e`` that stand for values read from memory, each after its number."""
    return sorted((s.place, s) for s in e.symbols() if s.place is not None)


def at_zero(e: Expr, symbol: Symbol) -> Expr:
    """``e`` with the symbol at 0."""
    return e.subs({symbol: Integer(0)})
