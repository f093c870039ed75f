"""What guards say of sizes: bounds of symbols, their remainders, and quotients that are something else.

A guard ``s // 3 == 1`` makes ``s // 3`` a number, of which each stage is to know: a dim of that size is broadcast.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from braze.graph.private import torch_symbols
from braze.graph.sizes.numbers import QUESTIONS
from braze.support.errors import Unsupported
from braze.symbolic import names
from braze.symbolic.border import SizeSymbols
from braze.symbolic.expr import (
    Expr,
    FloorDiv,
    Integer,
    Product,
    Symbol,
    constant_part,
    linear,
    terms,
)
from braze.symbolic.flat import Flattener, close_bounds, parts_of

#: SymPy's comparisons
COMPARISONS = frozenset(QUESTIONS) - {names.NOT}
#: comparisons with 0 -> what side they hold on, 0 for neither
SIDES = {
    name: (asked in (operator.ge, operator.gt)) - (asked in (operator.le, operator.lt))
    for name, asked in QUESTIONS.items()
    if name not in (names.NOT, names.UNEQUALITY)
}


class LearnedSizes(SizeSymbols):
    """Sizes under the guards of one trace, in the normal form that these allow."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env
        #: name -> SymPy's symbol
        self._originals: dict[str, Any] = {}
        #: what guards say of remainders: name of a symbol -> (modulus, remainder)
        self.residues: dict[str, tuple[int, int]] = {}
        #: quotients that guards say to be something else
        self.equals: dict[FloorDiv, Expr] = {}
        self._flattener = Flattener()
        #: sums that guards say to be numbers, without a constant and common factors -> the number
        self.numbers: dict[Expr, int] = {}
        #: what guards say of their bounds, of symbols that are not negative: name of a symbol -> (least, greatest)
        self.limits: dict[str, tuple[int, int | None]] = {}
        self._seen: Any = None
        self._read = 0

    def form(self, size: torch.SymInt) -> Expr | None:
        """A size as our expression; None where it has none."""
        return self.form_of(size.node.expr)

    def form_of(self, expr: Any) -> Expr | None:
        """As ``form``, of a SymPy expression."""
        try:
            return self._convert(expr, self.env)
        except (Unsupported, ZeroDivisionError, AttributeError):
            return None

    def _convert_new(self, e: Any, env: Any) -> Expr:
        return self.flat(super()._convert_new(e, env))

    def _symbol(self, e: Any, env: Any) -> Symbol:
        if not e.is_integer:
            raise Unsupported("BZ3002", f"{e} is no integer")
        name = str(e)
        self._originals.setdefault(name, e)
        known = self.by_name.get(name)
        if known is not None:
            return known
        found = super()._symbol(e, env)
        low, high = found.low, found.high
        if name in self.limits:
            least, most = self.limits[name]
            low = least if low is None else max(low, least)
            high = high if most is None else most if high is None else min(high, most)
        if name in self.residues and low is not None:
            modulus, residue = self.residues[name]
            low += (residue - low) % modulus
            high = None if high is None else high - (high - residue) % modulus
        if (low, high) != (found.low, found.high):
            found = self.by_name[name] = Symbol(name, low, high)
        return found

    def refresh(self) -> None:
        """Take in what guards have settled since: bounds and remainders of symbols."""
        ranges = self.env.var_to_range
        now = (len(self.env.guards), [ranges.get(e) for e in self._originals.values()])
        if now == self._seen:
            return
        self._seen = now
        self.by_name.clear()
        self._converted.clear()
        for guard in self.env.guards[self._read :]:
            self._learn(self.env.replace(guard.expr))
        self._read = len(self.env.guards)
        self._renew()

    def _renew(self) -> None:
        """Say what is known by the symbols of today, whose bounds may have moved since it was learned."""

        def renewed(e: Expr) -> Expr:
            return e.subs({s: self._symbol(self._originals[s.name], self.env) for s in e.symbols()})

        equals = {renewed(quotient): renewed(other) for quotient, other in self.equals.items()}
        numbers = {renewed(key): number for key, number in self.numbers.items()}
        if equals == self.equals and numbers == self.numbers:
            return
        self.equals = {q: other for q, other in equals.items() if isinstance(q, FloorDiv)}
        self.numbers = {key: number for key, number in numbers.items() if key.value is None}
        self._flattener = Flattener(self.residues, self.equals)
        self._converted.clear()

    def _learn(self, condition: Any) -> None:
        """Keep what a guard says of the remainder of a symbol, of its bounds, or what makes it a number."""
        found, kind = _remainder_of(condition), names.name_of(condition)
        if found is not None:
            self._learn_remainder(*found)
        elif kind in COMPARISONS and kind != names.UNEQUALITY:
            left, right = map(self.form_of, condition.args)
            if left is not None and right is not None:
                self._learn_bounds(kind, self._flattener.by_multiples(left - right)[0])
                if kind == names.EQUALITY:
                    self._learn_number(self._flattener.expanded(left - right))
                    self._learn_quotient(self._flattener.expanded(left - right))

    def _learn_remainder(self, asked: Any, k: int, wanted: int) -> None:
        """``asked % k == wanted``, where that is the remainder of a multiple of how often its modulus is in a symbol."""
        form = self.form_of(asked)
        if form is None:
            return
        zero = self._flattener.expanded(form % k - wanted)
        self._learn_number(zero)
        self._learn_quotient(zero)
        counted = self._flattener.by_multiples(form)[0]
        parts = [(m, c % k) for m, c in terms(counted) if c % k]
        if len(parts) != 1:
            return
        (symbol, c), missing = parts[0], wanted - constant_part(counted)
        if not isinstance(symbol, Symbol):
            return
        common = math.gcd(c, k)
        if missing % common or k == common:
            return
        k //= common
        self._settle(symbol, k, missing // common * pow(c // common, -1, k) % k)

    def _learn_number(self, zero: Expr) -> None:
        """Of a sum that is 0, all but the constant is a number."""
        key, factor = _primitive(zero)
        if factor and not constant_part(zero) % factor:
            self.numbers[key] = -constant_part(zero) // factor
            self._converted.clear()

    def _learn_quotient(self, zero: Expr) -> None:
        """Of a sum that is 0, the quotient by the least number is what the others make of it."""
        common = math.gcd(constant_part(zero), *(k for _, k in terms(zero))) or 1
        found = [
            (m.divisor.value, m, k // common)
            for m, k in terms(zero)
            if isinstance(m, FloorDiv) and m.divisor.value is not None and abs(k) == common
        ]
        if not found:
            return
        _, quotient, sign = min(found, key=lambda f: f[0])
        others = [(m, k) for m, k in terms(zero) if m is not quotient and m != quotient]
        rest = linear(
            [m for m, _ in others],
            [Integer(-sign * k // common) for _, k in others],
            Integer(-sign * constant_part(zero) // common),
        )
        if quotient not in parts_of(rest):
            self.equals[quotient] = rest
            self._flattener = Flattener(self.residues, self.equals)
            self._converted.clear()

    def _settle(self, count: Symbol, k: int, remainder: int) -> None:
        """How often its modulus is in a symbol, by k, leaves this remainder."""
        name = count.name.partition("/")[0]
        modulus, residue = self.residues.get(name, (1, 0))
        self.residues[name] = (modulus * k, modulus * remainder + residue)
        self._flattener = Flattener(self.residues, self.equals)
        self.by_name.clear()
        self._converted.clear()

    def _learn_bounds(self, kind: str, difference: Expr) -> None:
        """``c * x**n + constant`` compared with 0, where x says how often its modulus is in a symbol."""
        parts, constant = terms(difference), constant_part(difference)
        if len(parts) != 1:
            return
        (monomial, c), sign = parts[0], SIDES[kind]
        power = monomial.factors if isinstance(monomial, Product) else (monomial,)
        count, n = power[0], len(power)
        if (
            not isinstance(count, Symbol)
            or any(f is not count for f in power)
            or (count.bounds()[0] or -1) < 0
        ):
            return
        name = count.name.partition("/")[0]
        modulus, residue = self.residues.get(name, (1, 0))
        low, high = self.limits.get(name, (0, None))
        if kind.startswith("Strict"):
            constant += -1 if sign > 0 else 1
        if c < 0:
            c, constant, sign = -c, -constant, -sign
        if sign >= 0:  # c * x**n >= -constant
            least = _root(-(constant // c), n, up=True)
            low = max(low, modulus * least + residue)
        if sign <= 0:  # c * x**n <= -constant
            most = modulus * _root(-constant // c, n, up=False) + residue
            high = most if high is None else min(high, most)
        self.limits[name] = (low, high)
        self.by_name.clear()
        self._converted.clear()
        symbol = self._symbol(self._originals[name], self.env)
        if symbol.low == symbol.high and symbol.low is not None:
            self._settled(symbol.name, symbol.low)

    def _settled(self, name: str, value: int) -> None:
        """Told of a symbol that bounds make a number."""

    def hint(self, form: Expr) -> int | None:
        """The number that a form was while tracing; None where only the data tell."""
        known = torch_symbols.hints(self.env)
        values = {
            s: known[self._originals[s.name]] for s in form.symbols() if self._originals[s.name] in known
        }
        if len(values) < len(form.symbols()):
            return None
        return form.evaluate({s: int(v) for s, v in values.items()})

    def difference(self, left: Expr, right: Expr) -> Expr:
        """left - right, a number where what is known of remainders makes it one."""
        return self.flat(left - right)

    def flat(self, form: Expr) -> Expr:
        """With few divisions, by what is known of remainders; a number where guards say that it is one."""
        found = self._flattener.flat(form)
        if self.numbers and found.value is None:
            sum_ = self._flattener.expanded(found)
            key, factor = _primitive(sum_)
            if key in self.numbers:
                return Integer(factor * self.numbers[key] + constant_part(sum_))
        return found


class SettledSizes(LearnedSizes):
    """The sizes of a trace that is over; its guards are read when the first symbol is met."""

    def __init__(self) -> None:
        super().__init__(None)
        self._ones: dict[Expr, bool] = {}

    def expr(self, value: Any) -> Expr:
        """As any; a dim that the trace took for one of one element is one, in whatever words a guard says so: it is broadcast."""
        found = super().expr(value)
        if found.value is not None or not isinstance(value, torch.SymInt):
            return found
        known = self._ones.get(found)
        if known is None:
            known = self._ones[found] = self.hint(found) == 1 and torch_symbols.is_settled(value == 1)
        return Integer(1) if known else found

    def _convert(self, e: Any, env: Any) -> Expr:
        self._meet(env)
        return super()._convert(e, env)

    def _symbol(self, e: Any, env: Any) -> Symbol:
        self._meet(env)
        return super()._symbol(e, env)

    def _meet(self, env: Any) -> None:
        if self.env is None:
            self.env = env
            self.refresh()

    def flat(self, form: Expr) -> Expr:
        """As it stands, where nothing makes it simpler; a number where its bounds meet, too."""
        found = super().flat(form) if self.equals or self.residues or self.numbers else form
        low, high = (None, None) if found.value is not None else close_bounds(found)
        return found if low is None or low != high else Integer(low)


def _primitive(e: Expr) -> tuple[Expr, int]:
    """A sum without its constant as a sum of coprime terms, and how often it is that; 0 for a number."""
    parts = terms(e)
    factor = math.gcd(*(k for _, k in parts))
    if parts and parts[0][1] < 0:
        factor = -factor
    return linear([m for m, _ in parts], [Integer(k // factor) for _, k in parts], Integer(0)), factor


def _remainder_of(condition: Any) -> tuple[Any, int, int] | None:
    """(x, k, c) where a condition in SymPy's words says that x % k is c."""
    kind = names.name_of(condition)
    if kind not in (names.EQUALITY, names.UNEQUALITY, names.LESS_THAN):
        return None
    asked, wanted = condition.args
    if names.name_of(asked) == names.MUL:  # 4 * (x % 2) == 0
        factor, bare = asked.as_coeff_Mul()
        if factor.is_Integer and factor > 1 and wanted.is_Integer and not wanted % factor:
            asked, wanted = bare, wanted / factor
    if names.name_of(asked) not in names.REMAINDERS or not (asked.args[1].is_Integer and wanted.is_Integer):
        return None
    k, c = int(asked.args[1]), int(wanted)
    if k < 1 or not 0 <= c < k:
        return None
    if kind == names.UNEQUALITY and k == 2:
        return asked.args[0], 2, 1 - c
    if kind == names.EQUALITY or (kind == names.LESS_THAN and c == 0):
        return asked.args[0], k, c
    return None


def _root(number: int, n: int, *, up: bool) -> int:
    """The n-th root of a number of 0 or more, as the next integer on that side."""
    if number <= 0:
        return 0
    found = round(number ** (1 / n))
    while found**n > number:
        found -= 1
    while (found + 1) ** n <= number:
        found += 1
    return found + (up and found**n < number)
