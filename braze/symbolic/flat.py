"""Sizes without divisions inside divisions, as far as that goes: what nets do to the sizes of pictures, stage by stage.

A remainder is written by its quotient (``x % k = x - k*(x//k)``), a quotient of a negative size by that of a positive one
(``(-x)//k = -((x + k - 1)//k)``), and ``(x//m + c)//k`` is ``(x + c*m)//(m*k)``. So a size padded to a multiple of 7 comes out the
same however its program writes it, ``7*((x + 6)//7)``, and of two stages of that there is one division, not four.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    if not divisions(e):
        return e
    residues = residues or {}
    if residues:
        counted, back = by_multiples(e, residues)
        counted = expanded(counted)
        if not divisions(counted):
            return counted.subs(back)
    made = expanded(e, residues)
    kept = _Keeping(residues).of(e)
    return made if (divisions(made), _length(made)) < (divisions(kept), _length(kept)) else kept


def _length(e: Expr) -> int:
    """How many terms and factors are to be written."""
    return 1 + sum(map(_length, e.children()))


def expanded(e: Expr, residues: Residues | None = None) -> Expr:
    """The same number by those rules, whatever they gain: without remainders."""
    return _Flattening(residues or {}).of(e)


def by_multiples(e: Expr, residues: Residues) -> tuple[Expr, dict[Symbol, Expr]]:
    """The same number over symbols that say how often the modulus is in each symbol of known remainder, and what these are."""
    there: dict[Symbol, Expr] = {}
    back: dict[Symbol, Expr] = {}
    for s in e.symbols():
        if s.name in residues:
            m, c = residues[s.name]
            count = Symbol(f"{s.name}/{m}", None if s.low is None else s.low // m)
            there[s] = count * m + c
            back[count] = s // m
    return e.subs(there), back


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


def divisions(e: Expr) -> int:
    """How many quotients and remainders are in an expression, repeats counted."""
    return isinstance(e, FloorDiv | Mod) + sum(map(divisions, e.children()))


class _Flattening:
    """One expression rewritten from the inside out."""

    def __init__(self, residues: Residues) -> None:
        self.residues = residues
        self.done: dict[Expr, Expr] = {}

    def of(self, e: Expr) -> Expr:
        """The expression without remainders."""
        if isinstance(e, Integer | Symbol):
            return e
        found = self.done.get(e)
        if found is None:
            found = self.done[e] = self._of(e)
        return found

    def _of(self, e: Expr) -> Expr:
        match e:
            case Sum(parts, constant):
                total: Expr = Integer(constant)
                for m, k in parts:
                    total = total + self.of(m) * k
                return total
            case Product(factors):
                return product([self.of(f) for f in factors])
            case FloorDiv(numerator, divisor):
                return self.quotient(self.of(numerator), self.of(divisor))
            case Mod(numerator, divisor):
                n, d = expanded(numerator, self.residues), expanded(divisor, self.residues)
                known = modulo(by_multiples(n, self.residues)[0], d) if self.residues else e
                return known if known.value is not None else self.remainder(n, d)
            case Max(left, right):
                return maximum(self.of(left), self.of(right))
            case Min(left, right):
                return minimum(self.of(left), self.of(right))
        return e

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
        return whole + floor_div(rest, d)


class _Keeping(_Flattening):
    """Remainders stay, of what is written without."""

    def remainder(self, n: Expr, d: Expr) -> Expr:
        """n % d for d > 0."""
        return modulo(n, d)


def _beyond(c: int, constant: int, k: int, modulus: int, residue: int) -> int:
    """What of c*x + constant never reaches the next multiple of what it moves by, as far as k sees it."""
    a, b = abs(c) * modulus, k
    while b:
        a, b = b, a % b
    return (c * residue + constant) % a
