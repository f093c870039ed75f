"""The border to ShapeEnv: sizes that may be torch.SymInt become expressions.

SymPy objects are read by their attributes and class names, so that graphs with static shapes never import
SymPy through this module.
"""

from __future__ import annotations

from typing import Any

from braze.support.errors import Unsupported
from braze.symbolic import names
from braze.symbolic.expr import Expr, Integer, Symbol, floor_div, maximum, minimum, modulo, product
from braze.symbolic.rounding import ROUNDED, check_divisor, rounded

#: upper bounds at or above this stand for "no bound"
_UNBOUNDED = 1 << 48


class SizeSymbols:
    """Converts the sizes of one graph; keeps one Symbol per size name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Symbol] = {}
        self._converted: dict[Any, Expr] = {}

    def expr(self, value: Any) -> Expr:
        """The expression of an int or torch.SymInt."""
        if type(value) is int:
            return Integer(value)
        if isinstance(value, Expr):
            return value
        node = getattr(value, "node", None)
        if node is None:
            return Integer(int(value))
        known = node.maybe_as_int()
        if known is not None:
            return Integer(known)
        return self._convert(node.expr, node.shape_env)

    def found(self, value: Any) -> Symbol | None:
        """The symbol as which an operator has made a size or number that only the data tell; None for any other.

        It stays a symbol, also where the trace went on to assume that it is some number or some other size.
        """
        node = getattr(value, "node", None)
        if node is None:
            return None
        e, env = node._expr, node.shape_env
        while e in env.unbacked_renamings:
            e = env.unbacked_renamings[e]
        e = names.number_of(e)
        return self._symbol(e, env) if e.is_Symbol and names.is_told_by_data(str(e)) else None

    def exprs(self, values: Any) -> tuple[Expr, ...]:
        """Several at once."""
        return tuple([Integer(v) if type(v) is int else self.expr(v) for v in values])

    def _convert(self, e: Any, env: Any) -> Expr:
        found = self._converted.get(e)
        if found is None:
            found = self._converted[e] = self._convert_new(e, env)
        return found

    def _convert_new(self, e: Any, env: Any) -> Expr:
        if e.is_Integer:
            return Integer(int(e))
        if e.is_Symbol:
            return self._symbol(e, env)
        kind = names.name_of(e)
        if kind in ROUNDED:
            found = rounded(e, lambda whole: self._convert(whole, env), env)
            if found is None:
                raise Unsupported(
                    "BZ3002",
                    f"the size {e} has no integer form",
                    why="no quotient of integers is known to be what its floats give",
                )
            return found
        args = [self._convert(a, env) for a in e.args] if not e.is_Pow else []
        if e.is_Add:
            out = args[0]
            for a in args[1:]:
                out = out + a
            return out
        if e.is_Mul:
            return product(args)
        if e.is_Pow and e.args[1].is_Integer and int(e.args[1]) > 0:
            return product([self._convert(e.args[0], env)] * int(e.args[1]))
        if kind in names.QUOTIENTS or kind in names.REMAINDERS:
            check_divisor(e, args[1])
            return (floor_div if kind in names.QUOTIENTS else modulo)(args[0], args[1])
        if kind in (names.MAX, names.MIN):
            fold = maximum if kind == names.MAX else minimum
            out = args[0]
            for a in args[1:]:
                out = fold(out, a)
            return out
        raise Unsupported(
            "BZ3002", f"the size {e} has no integer form", why=f"{kind} is not an operation on integer sizes"
        )

    def _symbol(self, e: Any, env: Any) -> Symbol:
        name = str(e)
        found = self.by_name.get(name)
        if found is None:
            ranges = env.var_to_range.get(e)
            low = _finite(ranges.lower) if ranges is not None else 0
            high = _finite(ranges.upper) if ranges is not None else None
            if high is not None and high >= _UNBOUNDED:
                high = None
            found = self.by_name[name] = Symbol(name, low, high)
        return found


def _finite(bound: Any) -> int | None:
    return int(bound) if bound.is_Integer else None
