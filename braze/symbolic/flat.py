"""Sizes without divisions inside divisions, as far as that goes: what nets do to the sizes of pictures, stage by stage.

A remainder is written by its quotient (``x % k = x - k*(x//k)``), a quotient of a negative size by that of a positive one
(``(-x)//k = -((x + k - 1)//k)``), and ``(x//m + c)//k`` is ``(x + c*m)//(m*k)``. So a size padded to a multiple of 7 comes out the
same however its program writes it, ``7*((x + 6)//7)``, and of two stages of that there is one division, not four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from braze.symbolic.expr import (
    Expr,
    FloorDiv,
    Integer,
    Max,
    Min,
    Mod,
    Product,
    Sum,
    Symbol,
    constant_part,
    floor_div,
    linear,
    maximum,
    minimum,
    modulo,
    product,
    split_multiples,
    terms,
)

#: name of a symbol -> (m, c): it is c more than a multiple of m
Residues = Mapping[str, tuple[int, int]]


def flat(e: Expr, residues: Residues | None = None) -> Expr:
    """The same number with as few divisions as the rules above leave; remainders stay where writing them out gains nothing.

    Where it is a polynomial in the quotients of symbols by the moduli of which their remainders are known, it is written as that.
    """
    return Flattener(residues).flat(e)


class Flattener:
    """``flat`` with a memory, for one knowledge of remainders, and of quotients that are something else."""

    def __init__(
        self, residues: Residues | None = None, equals: Mapping[FloorDiv, Expr] | None = None
    ) -> None:
        self.residues = dict(residues or {})
        #: quotient -> what it is, of which it is no part
        self.equals = dict(equals or {})
        self._flat: dict[Expr, Expr] = {}
        self._counted: dict[Expr, tuple[Expr, dict[Symbol, Expr]]] = {}
        self._plainly = _Rules(self, {}, {})
        self._written_out = _Rules(self, self.residues, self.equals)
        self._kept = _Keeping(self, self.residues, self.equals)

    def flat(self, e: Expr) -> Expr:
        """See ``flat``."""
        found = self._flat.get(e)
        if found is None:
            found = self._flat[e] = self._made_flat(e) if divisions(e) else e
            self._flat.setdefault(found, found)
        return found

    def _made_flat(self, e: Expr) -> Expr:
        counted, back = self.by_multiples(e)
        if counted is not e and not divisions(counted):
            made = counted.subs(back)
            return self._written_out.of(made) if self.equals else made
        made, kept = self._written_out.of(e), self._kept.of(e)
        return made if (divisions(made), _length(made)) < (divisions(kept), _length(kept)) else kept

    def expanded(self, e: Expr) -> Expr:
        """The same number by those rules, whatever they gain: without remainders."""
        return self._written_out.of(e)

    def by_multiples(self, e: Expr) -> tuple[Expr, dict[Symbol, Expr]]:
        """The same number over symbols that say how often the modulus is in each symbol of known remainder, and what these are.

        Without remainders, and with as few divisions as may be.
        """
        if not self.residues:
            return self._plainly.of(e), {}
        found = self._counted.get(e)
        if found is None:
            found = self._counted[e] = self._by_multiples(e)
        return found

    def _by_multiples(self, e: Expr) -> tuple[Expr, dict[Symbol, Expr]]:
        there: dict[Symbol, Expr] = {}
        back: dict[Symbol, Expr] = {}
        for s in e.symbols():
            if s.name in self.residues:
                m, c = self.residues[s.name]
                count = Symbol(f"{s.name}/{m}", None if s.low is None else s.low // m)
                there[s] = count * m + c
                back[count] = s // m
        return self._plainly.of(e.subs(there) if there else e), back


def parts_of(e: Expr) -> set[Expr]:
    """An expression and all inside."""
    return {e}.union(*map(parts_of, e.children()))


def _length(e: Expr) -> int:
    """How many terms and factors are to be written."""
    return 1 + sum(map(_length, e.children()))


def exact_quotient(e: Expr, d: Expr) -> Expr | None:
    """q with q*d = e, where d has one term and every term of e has its factors; None elsewhere."""
    if d.value is not None:
        monomial, by = None, d.value
    else:
        pieces = terms(d)
        if len(pieces) != 1 or constant_part(d):
            return None
        monomial, by = pieces[0]
    wanted = list(monomial.factors) if isinstance(monomial, Product) else [monomial] if monomial else []
    if not by or (wanted and constant_part(e)) or constant_part(e) % by:
        return None
    total: Expr = Integer(constant_part(e) // by)
    for m, k in terms(e):
        have = list(m.factors) if isinstance(m, Product) else [m]
        if k % by or any(have.count(w) < wanted.count(w) for w in wanted):
            return None
        for w in wanted:
            have.remove(w)
        total = total + product(have) * (k // by)
    return total


def close_bounds(e: Expr) -> tuple[int | None, int | None]:
    """Least and greatest value, as near as rounding tells: quotients of one size in a sum hold each other (``7*((x + 6)//7) - x``)."""
    low, high = e.bounds()
    summed = e.numerator if isinstance(e, FloorDiv) else e
    if isinstance(summed, Sum) and any(isinstance(m, FloorDiv) for m, _ in summed.parts):
        if low is None or high is None or low < high:
            least, most = _least(e), _least(-e)
            low = least if low is None else low if least is None else max(low, least)
            high = high if most is None else -most if high is None else min(high, -most)
    return low, high


def _least(e: Expr) -> int | None:
    """A lower bound, by ``x - k + 1 <= k*(x//k) <= x``."""
    weights: dict[Expr, Fraction] = {}
    total = Fraction(constant_part(e))
    pending = [(m, Fraction(k)) for m, k in terms(e)]
    while pending:
        m, k = pending.pop()
        by = m.divisor.value if isinstance(m, FloorDiv) else None
        if isinstance(m, FloorDiv) and by is not None:
            total += k / by * (constant_part(m.numerator) - (by - 1 if k > 0 else 0))
            pending += [(inner, k / by * c) for inner, c in terms(m.numerator)]
        else:
            weights[m] = weights.get(m, Fraction(0)) + k
    for m, weight in weights.items():
        end = m.bounds()[0 if weight > 0 else 1]
        if weight and end is None:
            return None
        total += weight * (end or 0)
    return math.ceil(total)


def divisions(e: Expr) -> int:
    """How many quotients and remainders are in an expression, repeats counted."""
    return isinstance(e, FloorDiv | Mod) + sum(map(divisions, e.children()))


class _Rules:
    """Expressions rewritten from the inside out."""

    def __init__(self, owner: Flattener, residues: Residues, equals: Mapping[FloorDiv, Expr]) -> None:
        self.owner = owner
        self.residues = residues
        self.equals = equals
        self.done: dict[Expr, Expr] = {}

    def of(self, e: Expr) -> Expr:
        """The expression without remainders."""
        found = self.done.get(e)
        if found is None:
            found = self.done[e] = self._of(e) if divisions(e) else e
        return found

    def _of(self, e: Expr) -> Expr:
        match e:
            case Sum(parts, constant):
                return linear(
                    [self.of(m) for m, _ in parts], [Integer(k) for _, k in parts], Integer(constant)
                )
            case Product(factors):
                return product([self.of(f) for f in factors])
            case FloorDiv(numerator, divisor):
                return self.quotient(self.of(numerator), self.of(divisor))
            case Mod(numerator, divisor):
                n, d = self.inside(numerator), self.inside(divisor)
                known = modulo(self.owner.by_multiples(n)[0], d) if self.residues else e
                return known if known.value is not None else self.remainder(n, d)
            case Max(left, right):
                return maximum(self.of(left), self.of(right))
            case Min(left, right):
                return minimum(self.of(left), self.of(right))
        return e

    def inside(self, e: Expr) -> Expr:
        """What stands in a remainder, without such."""
        return self.of(e)

    def remainder(self, n: Expr, d: Expr) -> Expr:
        """n % d for d > 0."""
        return n - d * self.quotient(n, d)

    def quotient(self, n: Expr, d: Expr) -> Expr:
        """n // d for d > 0."""
        whole, rest = split_multiples(n, d)
        parts = terms(rest)
        if not parts:
            return whole + floor_div(rest, d)
        if all(c < 0 for _, c in parts):
            return whole - self.quotient(d - 1 - rest, d)
        k = d.value
        if k is None and len(terms(d)) == 1 and terms(d)[0][1] > 1 and not constant_part(d):
            monomial, by = terms(d)[0]
            return whole + self.quotient(self.quotient(rest, Integer(by)), monomial)
        if k is not None and len(parts) == 1:
            (m, c), constant = parts[0], constant_part(rest)
            if c == 1 and isinstance(m, FloorDiv) and m.divisor.value is not None:
                by = m.divisor.value
                return whole + self.quotient(m.numerator + constant * by, Integer(by * k))
            if isinstance(m, Symbol) and m.name in self.residues:
                rest = rest - _beyond(c, constant, k, *self.residues[m.name])
        made = floor_div(rest, d)
        if isinstance(made, FloorDiv) and made in self.equals:
            made = self.of(self.equals[made])
        return whole + made


class _Keeping(_Rules):
    """Remainders stay, of what is written without."""

    def inside(self, e: Expr) -> Expr:
        """What stands in a remainder, without such."""
        return self.owner.expanded(e)

    def remainder(self, n: Expr, d: Expr) -> Expr:
        """n % d for d > 0."""
        return modulo(n, d)


def _beyond(c: int, constant: int, k: int, modulus: int, residue: int) -> int:
    """What of c*x + constant never reaches the next multiple of what it moves by, as far as k sees it."""
    a, b = abs(c) * modulus, k
    while b:
        a, b = b, a % b
    return (c * residue + constant) % a
