"""Integer expressions in normal form.

::

    Expr = Integer | Symbol | Sum | Product | FloorDiv | Mod | Max | Min

A ``Sum`` is an integer constant plus integer coefficients times *monomials*; a monomial is an atom or a
``Product`` of atoms; an atom is a Symbol, FloorDiv, Mod, Max or Min. Expressions are interned, so equal
normal forms are the same object. Make them with operators (``+ - * // %``), never with the classes.
``//`` rounds to minus infinity and ``%`` takes the sign of the divisor, as in Python; divisors are
positive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Union

from braze.support.record import interned
from braze.symbolic import intervals
from braze.symbolic.intervals import Interval

IntLike = Union["Expr", int]


class Expr:
    """An integer expression; see the module docstring. Ordered by text for stable output only."""

    __slots__ = ("_bounds", "_symbols", "_text")

    _text: str
    _bounds: Interval
    _symbols: frozenset[Symbol]

    def __init_subclass__(cls) -> None:
        # before the record decorator would write one of its own
        cls.__repr__ = Expr.__repr__  # type: ignore[method-assign]

    def __add__(self, other: IntLike) -> Expr:
        return _sum(((self, 1), (as_expr(other), 1)))

    def __radd__(self, other: int) -> Expr:
        return _sum(((as_expr(other), 1), (self, 1)))

    def __sub__(self, other: IntLike) -> Expr:
        return _sum(((self, 1), (as_expr(other), -1)))

    def __rsub__(self, other: int) -> Expr:
        return _sum(((as_expr(other), 1), (self, -1)))

    def __neg__(self) -> Expr:
        return _sum(((self, -1),))

    def __mul__(self, other: IntLike) -> Expr:
        return _multiply(self, as_expr(other))

    def __rmul__(self, other: int) -> Expr:
        return _multiply(as_expr(other), self)

    def __floordiv__(self, other: IntLike) -> Expr:
        return floor_div(self, as_expr(other))

    def __mod__(self, other: IntLike) -> Expr:
        return modulo(self, as_expr(other))

    @property
    def value(self) -> int | None:
        """The integer, where the expression is constant."""
        return None

    @property
    def is_constant(self) -> bool:
        return self.value is not None

    def symbols(self) -> frozenset[Symbol]:
        """Every symbol inside (not those of a symbol's own limit)."""
        try:
            return self._symbols
        except AttributeError:
            found = frozenset().union(*(c.symbols() for c in self.children()))
            object.__setattr__(self, "_symbols", found)
            return found

    def children(self) -> tuple[Expr, ...]:
        return ()

    def bounds(self) -> Interval:
        """Least and greatest value, inclusive; None where unbounded."""
        try:
            return self._bounds
        except AttributeError:
            found = self._find_bounds()
            object.__setattr__(self, "_bounds", found)
            return found

    def _find_bounds(self) -> Interval:
        return None, None

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        """Replace symbols, all at once."""
        return self

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        """The value under an assignment of all symbols."""
        raise NotImplementedError(type(self).__name__)

    def coefficient(self, symbol: Symbol) -> Expr | None:
        """c where self = c*symbol + rest and neither c nor rest holds symbol; None where not linear."""
        c: Expr = ZERO
        for monomial, k in terms(self):
            if monomial is symbol:
                c = c + k if c is not ZERO else Integer(k)
                continue
            if isinstance(monomial, Symbol) or symbol not in monomial.symbols():
                continue
            factors = list(monomial.factors if isinstance(monomial, Product) else (monomial,))
            if factors.count(symbol) != 1:
                return None
            factors.remove(symbol)
            rest = product(factors)
            if symbol in rest.symbols():
                return None
            c = c + rest * k
        return c

    def __str__(self) -> str:
        try:
            return self._text
        except AttributeError:
            text = self._render()
            object.__setattr__(self, "_text", text)
            return text

    def __repr__(self) -> str:
        return str(self)

    def _render(self) -> str:
        raise NotImplementedError(type(self).__name__)


@interned
class Integer(Expr):
    number: int

    @property
    def value(self) -> int | None:
        return self.number

    def _find_bounds(self) -> Interval:
        return self.number, self.number

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return self.number

    def _render(self) -> str:
        return str(self.number)


@interned
class Symbol(Expr):
    """An unknown: a loop variable, a size, or a value read from memory.

    ``low`` is inclusive; ``high`` (inclusive) and ``limit`` (an exclusive bound as an expression) may be None.
    ``place``: of a value read from memory, which of an index's computed parts it is (`indirect`).
    """

    name: str
    low: int | None = None
    high: int | None = None
    limit: Expr | None = None
    place: int | None = None

    def _find_bounds(self) -> Interval:
        if self.high is None and self.limit is not None:
            top = self.limit.bounds()[1]
            return self.low, None if top is None else top - 1
        return self.low, self.high

    def symbols(self) -> frozenset[Symbol]:
        return frozenset((self,))

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        return as_expr(mapping.get(self, self))

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return env[self]

    def _render(self) -> str:
        return self.name


@interned
class Product(Expr):
    """Two or more atoms, sorted by text."""

    factors: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.factors

    def _find_bounds(self) -> Interval:
        low, high = self.factors[0].bounds()
        for f in self.factors[1:]:
            low, high = intervals.multiplied((low, high), f.bounds())
        return low, high

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        out: Expr = ONE
        for f in self.factors:
            out = out * f.subs(mapping)
        return out

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        out = 1
        for f in self.factors:
            out *= f.evaluate(env)
        return out

    def _render(self) -> str:
        return "*".join(_wrapped(f) for f in self.factors)


@interned
class Sum(Expr):
    """``constant + sum(k * monomial)``; monomials sorted by text, coefficients not 0."""

    parts: tuple[tuple[Expr, int], ...]
    constant: int

    def children(self) -> tuple[Expr, ...]:
        return tuple(m for m, _ in self.parts)

    def _find_bounds(self) -> Interval:
        low: int | None = self.constant
        high: int | None = self.constant
        for m, k in self.parts:
            lo, hi = m.bounds()
            if k < 0:
                lo, hi = hi, lo
            low = None if low is None or lo is None else low + k * lo
            high = None if high is None or hi is None else high + k * hi
        return low, high

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        return _sum(((m.subs(mapping), k) for m, k in self.parts), self.constant)

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return self.constant + sum(k * m.evaluate(env) for m, k in self.parts)

    def _render(self) -> str:
        out = ""
        for m, k in self.parts:
            text = _wrapped(m) if abs(k) == 1 else f"{abs(k)}*{_wrapped(m)}"
            out += (" - " if k < 0 else " + ") + text if out else ("-" if k < 0 else "") + text
        if self.constant:
            out += f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}"
        return out


@interned
class FloorDiv(Expr):
    numerator: Expr
    divisor: Expr

    def children(self) -> tuple[Expr, ...]:
        return self.numerator, self.divisor

    def _find_bounds(self) -> Interval:
        return intervals.quotient(self.numerator.bounds(), self.divisor.bounds())

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        return floor_div(self.numerator.subs(mapping), self.divisor.subs(mapping))

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return self.numerator.evaluate(env) // self.divisor.evaluate(env)

    def _render(self) -> str:
        return f"{_wrapped(self.numerator)}//{_wrapped(self.divisor)}"


@interned
class Mod(Expr):
    numerator: Expr
    divisor: Expr

    def children(self) -> tuple[Expr, ...]:
        return self.numerator, self.divisor

    def _find_bounds(self) -> Interval:
        return intervals.remainder(self.numerator.bounds(), self.divisor.bounds())

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        return modulo(self.numerator.subs(mapping), self.divisor.subs(mapping))

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return self.numerator.evaluate(env) % self.divisor.evaluate(env)

    def _render(self) -> str:
        return f"{_wrapped(self.numerator)}%{_wrapped(self.divisor)}"


@interned
class Max(Expr):
    left: Expr
    right: Expr

    def children(self) -> tuple[Expr, ...]:
        return self.left, self.right

    def _find_bounds(self) -> Interval:
        return intervals.greater(self.left.bounds(), self.right.bounds())

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        return maximum(self.left.subs(mapping), self.right.subs(mapping))

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return max(self.left.evaluate(env), self.right.evaluate(env))

    def _render(self) -> str:
        return f"max({self.left}, {self.right})"


@interned
class Min(Expr):
    left: Expr
    right: Expr

    def children(self) -> tuple[Expr, ...]:
        return self.left, self.right

    def _find_bounds(self) -> Interval:
        return intervals.smaller(self.left.bounds(), self.right.bounds())

    def subs(self, mapping: Mapping[Symbol, IntLike]) -> Expr:
        return minimum(self.left.subs(mapping), self.right.subs(mapping))

    def evaluate(self, env: Mapping[Symbol, int]) -> int:
        return min(self.left.evaluate(env), self.right.evaluate(env))

    def _render(self) -> str:
        return f"min({self.left}, {self.right})"


ZERO = Integer(0)
ONE = Integer(1)


def as_expr(value: IntLike) -> Expr:
    """An Expr from an int or an Expr."""
    return Integer(value) if type(value) is int else value if isinstance(value, Expr) else Integer(int(value))


def terms(e: Expr) -> tuple[tuple[Expr, int], ...]:
    """(monomial, coefficient) pairs, the constant left out."""
    if isinstance(e, Sum):
        return e.parts
    if isinstance(e, Integer):
        return ()
    return ((e, 1),)


def constant_part(e: Expr) -> int:
    """The integer added to the monomials."""
    if isinstance(e, Sum):
        return e.constant
    return e.number if isinstance(e, Integer) else 0


def product(factors: list[Expr] | tuple[Expr, ...]) -> Expr:
    """The product of any expressions."""
    out: Expr = ONE
    for f in factors:
        out = _multiply(out, f)
    return out


def floor_div(a: Expr, d: Expr) -> Expr:
    """a // d for d > 0, with the multiples of d taken out."""
    if d is ONE or a is ZERO:
        return a
    if a.value is not None and d.value is not None:
        return Integer(a.value // d.value)
    if d.value == 0:
        raise ZeroDivisionError(f"({a}) // 0")
    quotient, rest = split_multiples(a, d)
    if _within(rest, d):
        return quotient
    if quotient is not ZERO:
        return quotient + floor_div(rest, d)
    k = d.value
    if k is not None:
        # (g*x + r) // (g*m) = x // m for 0 <= r < g
        for g in sorted({math.gcd(c, k) for _, c in terms(a)} - {1}, reverse=True):
            whole, small = split_multiples(a, Integer(g))
            if _within(small, Integer(g)):
                return floor_div(whole, Integer(k // g))
        if isinstance(a, FloorDiv) and a.divisor.value is not None:
            return floor_div(a.numerator, Integer(a.divisor.value * k))
    return FloorDiv(a, d)


def modulo(a: Expr, d: Expr) -> Expr:
    """a % d for d > 0, with the multiples of d dropped."""
    if d is ONE or a is ZERO:
        return ZERO
    if a.value is not None and d.value is not None:
        return Integer(a.value % d.value)
    if d.value == 0:
        raise ZeroDivisionError(f"({a}) % 0")
    _, rest = split_multiples(a, d)
    if _within(rest, d):
        return rest
    if rest is not a:
        return modulo(rest, d)
    k = d.value
    if k is not None:
        g = _common_factor(a, k)
        if g > 1 and constant_part(a) % g == 0:
            return modulo(_divide_exactly(a, g), Integer(k // g)) * g
        if isinstance(a, Mod) and a.divisor.value is not None and a.divisor.value % k == 0:
            return modulo(a.numerator, d)
    return Mod(a, d)


def maximum(a: IntLike, b: IntLike) -> Expr:
    """The greater of two."""
    x, y = as_expr(a), as_expr(b)
    if (order := _order(x, y)) is not None:
        return y if order <= 0 else x
    return Max(*sorted((x, y), key=str))


def minimum(a: IntLike, b: IntLike) -> Expr:
    """The smaller of two."""
    x, y = as_expr(a), as_expr(b)
    if (order := _order(x, y)) is not None:
        return x if order <= 0 else y
    return Min(*sorted((x, y), key=str))


def indirect(k: int, low: int | None = None, high: int | None = None, limit: Expr | None = None) -> Symbol:
    """The symbol for the k-th value read from memory inside an index (loops.ir Op.LOAD)."""
    return Symbol(f"ind{k}", low, high, limit, k)


def axis_symbol(name: str, extent: IntLike) -> Symbol:
    """A loop variable 0 <= name < extent."""
    e = as_expr(extent)
    if e.value is not None:
        return Symbol(name, 0, max(e.value - 1, 0))
    return Symbol(name, 0, None, e)


def contiguous_strides(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides; sizes 0 and 1 count as 1, as torch has it for 0."""
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(sizes):
        strides.append(step)
        if size is not ONE and size is not ZERO:
            step = step * size
    return tuple(reversed(strides))


def linear(values: Sequence[Expr], factors: Sequence[Expr], offset: Expr) -> Expr:
    """offset + sum of value*factor, in one normalisation."""
    pairs: list[tuple[Expr, int]] = [(offset, 1)]
    for v, f in zip(values, factors, strict=True):
        if isinstance(f, Integer):
            if f.number:
                pairs.append((v, f.number))
        else:
            pairs.append((_multiply(v, f), 1))
    return _sum(pairs)


def known_le(a: IntLike, b: IntLike) -> bool:
    """Whether a <= b is provable from the bounds."""
    low = (as_expr(b) - as_expr(a)).bounds()[0]
    return low is not None and low >= 0


def _order(x: Expr, y: Expr) -> int | None:
    if known_le(x, y):
        return -1
    return 1 if known_le(y, x) else None


def _sum(pairs: Iterable[tuple[Expr, int]], constant: int = 0) -> Expr:
    found: dict[Expr, int] = {}
    for e, k in pairs:
        kind = type(e)
        if kind is Integer:
            constant += k * e.number  # type: ignore[attr-defined]
        elif kind is Sum:
            constant += k * e.constant  # type: ignore[attr-defined]
            for m, c in e.parts:  # type: ignore[attr-defined]
                found[m] = found.get(m, 0) + k * c
        else:
            found[e] = found.get(e, 0) + k
    if not found:
        return Integer(constant)
    _rejoin_quotients(found)
    listed = [part for part in found.items() if part[1]]
    if not listed:
        return Integer(constant)
    if len(listed) > 1:
        listed.sort(key=lambda part: str(part[0]))
    elif not constant and listed[0][1] == 1:
        return listed[0][0]
    return Sum(tuple(listed), constant)


def _rejoin_quotients(found: dict[Expr, int]) -> None:
    """k*d*(x//d) + k*(x%d) = k*x, in place."""
    for m in [m for m in found if type(m) is Mod]:
        d, k = m.divisor.value, found.get(m, 0)
        # the caller keeps the constant, so only numerators without one can be put back
        if d is None or not k or constant_part(m.numerator):
            continue
        quotient = FloorDiv(m.numerator, m.divisor)
        if found.get(quotient) == k * d:
            del found[m], found[quotient]
            for part, c in terms(m.numerator):
                found[part] = found.get(part, 0) + k * c


def _multiply(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Integer):
        if a.number == 0:
            return ZERO
        return b if a.number == 1 else _sum(((b, a.number),))
    if isinstance(b, Integer):
        return _multiply(b, a)
    if isinstance(a, Sum):
        return _sum(tuple((_multiply(m, b), k) for m, k in terms(a)) + ((b, constant_part(a)),))
    if isinstance(b, Sum):
        return _multiply(b, a)
    factors = [
        *(a.factors if isinstance(a, Product) else (a,)),
        *(b.factors if isinstance(b, Product) else (b,)),
    ]
    return Product(tuple(sorted(factors, key=str)))


def split_multiples(a: Expr, d: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a = q*d + r and every obvious multiple of d in q."""
    k = d.value
    quotient: Expr = ZERO
    rest: Expr = ZERO
    if k is not None:
        for m, c in terms(a):
            if c % k == 0:
                quotient = quotient + m * (c // k)
            else:
                rest = rest + m * c
        c = constant_part(a)
        # keep the constant with the rest only if that makes the rest provably small
        if _within(rest + c % k, d) or rest is ZERO or c // k:
            return quotient + c // k, rest + c % k
        return quotient, rest + c
    wanted = list(d.factors) if isinstance(d, Product) else [d]
    for m, c in terms(a):
        have = list(m.factors) if isinstance(m, Product) else [m]
        if all(have.count(w) >= wanted.count(w) for w in wanted):
            for w in wanted:
                have.remove(w)
            quotient = quotient + product(have) * c
        else:
            rest = rest + m * c
    return quotient, rest + constant_part(a)


def _within(e: Expr, d: Expr) -> bool:
    """Whether 0 <= e < d is provable."""
    low, high = e.bounds()
    if low is None or low < 0:
        return False
    if d.value is not None:
        return high is not None and high < d.value
    if isinstance(e, Symbol) and e.limit is d:
        return True
    if isinstance(e, Mod) and e.divisor is d:
        return True
    least = d.bounds()[0]
    return high is not None and least is not None and high < least


def _common_factor(a: Expr, k: int) -> int:
    return math.gcd(k, *(c for _, c in terms(a)))


def _divide_exactly(a: Expr, g: int) -> Expr:
    """(a - a.constant % g) / g, where g divides all coefficients."""
    return _sum(tuple((m, c // g) for m, c in terms(a)), constant_part(a) // g)


def _wrapped(e: Expr) -> str:
    return f"({e})" if isinstance(e, (Sum, Product, FloorDiv, Mod)) else str(e)
