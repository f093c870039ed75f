"""What one trace knows of its size symbols, in expressions of our own (``symbolic/expr.py``) beside PyTorch's in SymPy.

A size that rules compute is an :class:`Expr` until it stands in a tensor, and a question about sizes is first put to the bounds of such
expressions: SymPy sees what comes out, in normal form, and what neither bounds nor earlier guards tell. What guards say of
remainders (``s % 4 == 0``) is kept here, since divisions come out simpler for it.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from braze.graph import bits, torch_symbols
from braze.graph.numbers import QUESTIONS
from braze.support import trace
from braze.support.errors import Unsupported
from braze.symbolic import names
from braze.symbolic.border import SizeSymbols
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
    linear,
    terms,
)
from braze.symbolic.flat import Flattener, close_bounds, parts_of

#: SymPy's comparisons
_QUESTIONS = frozenset(QUESTIONS) - {names.NOT}
#: comparisons with 0 -> what side they hold on, 0 for neither
_SIGNS = {
    name: (asked in (operator.ge, operator.gt)) - (asked in (operator.le, operator.lt))
    for name, asked in QUESTIONS.items()
    if name not in (names.NOT, names.UNEQUALITY)
}

_ARITHMETIC: dict[Any, Any] = {
    operator.add: Expr.__add__,
    operator.sub: Expr.__sub__,
    operator.mul: Expr.__mul__,
    operator.floordiv: Expr.__floordiv__,
    operator.mod: Expr.__mod__,
    operator.iadd: Expr.__add__,
    operator.isub: Expr.__sub__,
    operator.imul: Expr.__mul__,
    operator.ifloordiv: Expr.__floordiv__,
    operator.imod: Expr.__mod__,
}
_DIVISIONS = frozenset({Expr.__floordiv__, Expr.__mod__})


class WantsPlainSizes(RuntimeError):
    """A composite in C++ asked for the plain sizes of a tensor whose sizes are symbols."""


class Ground(SizeSymbols):
    """The sizes of one trace, there and back."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env
        #: name -> SymPy's symbol
        self._originals: dict[str, Any] = {}
        self._written: dict[Expr, Any] = {}
        self._numbers: dict[Expr, Any] = {}
        #: what guards say of remainders: name of a symbol -> (modulus, remainder)
        self.residues: dict[str, tuple[int, int]] = {}
        #: quotients that guards say to be something else
        self.equals: dict[FloorDiv, Expr] = {}
        self._flattener = Flattener()
        #: what guards say of their bounds, of symbols that are not negative: name of a symbol -> (least, greatest)
        self.limits: dict[str, tuple[int, int | None]] = {}
        self._silent = False
        self._seen: Any = None
        #: whether rules may have PyTorch decide, and guard, what is not plain to see
        self.asking = False
        self._read = 0
        #: a call runs whose composites in C++ take sizes for numbers, which fixes them
        self.in_cpp = False
        self._evaluate = env.evaluate_expr
        env.evaluate_expr = self._evaluated

    # -- from PyTorch's ----------------------------------------------------------------------

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
        ranges = torch_symbols.ranges(self.env)
        now = (len(self.env.guards), [ranges.get(e) for e in self._originals.values()])
        if now == self._seen:
            return
        self._seen = now
        self.by_name.clear()
        self._converted.clear()
        for guard in self.env.guards[self._read :]:
            self._learn(guard.expr)
        self._read = len(self.env.guards)

    def _learn(self, condition: Any) -> None:
        """Keep what a guard says of the remainder of a symbol, of its bounds, or what makes it a number."""
        found, kind = _remainder_of(condition), names.name_of(condition)
        if found is not None:
            self._learn_remainder(*found)
        elif kind in _QUESTIONS and kind != names.UNEQUALITY:
            left, right = map(self.form_of, condition.args)
            if left is not None and right is not None:
                self._learn_bounds(kind, self._flattener.by_multiples(left - right)[0])
                if kind == names.EQUALITY:
                    self._learn_quotient(self._flattener.expanded(left - right))

    def _learn_remainder(self, asked: Any, k: int, wanted: int) -> None:
        """``asked % k == wanted``, where that is the remainder of a multiple of how often its modulus is in a symbol."""
        form = self.form_of(asked)
        if form is None:
            return
        self._learn_quotient(self._flattener.expanded(form % k - wanted))
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

    def _learn_quotient(self, zero: Expr) -> None:
        """Of a sum that is 0, the quotient by the least number is what the others make of it."""
        common = math.gcd(constant_part(zero), *(k for _, k in terms(zero))) or 1
        found = [
            (m.divisor.value, m, k // common)
            for m, k in terms(zero)
            if isinstance(m, FloorDiv) and m.divisor.value is not None and abs(k) == common
        ]
        if len(terms(zero)) < 2 or not found:
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
        (monomial, c), sign = parts[0], _SIGNS[kind]
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
            self._silent = True
            try:  # so that PyTorch too takes it for a number
                bool(self.env.create_symintnode(self._originals[name], hint=symbol.low) == symbol.low)
            finally:
                self._silent = False

    # -- back to PyTorch's -------------------------------------------------------------------

    def number(self, form: Expr) -> Any:
        """An int, or a SymInt in normal form."""
        if form.value is not None:
            return form.value
        found = self._numbers.get(form)
        if found is None:
            found = self._numbers[form] = self.env.create_symintnode(
                self.written(form), hint=self._hint(form)
            )
        return found

    def _hint(self, form: Expr) -> int | None:
        known = torch_symbols.hints(self.env)
        values = {
            s: known[self._originals[s.name]] for s in form.symbols() if self._originals[s.name] in known
        }
        if len(values) < len(form.symbols()):
            return None
        return form.evaluate({s: int(v) for s, v in values.items()})

    def written(self, form: Expr) -> Any:
        """A form as a SymPy expression."""
        found = self._written.get(form)
        if found is None:
            found = self._written[form] = self._write(form)
        return found

    def _write(self, form: Expr) -> Any:
        words = torch_symbols.sympy_words()
        match form:
            case Integer(number):
                return words.Integer(number)
            case Symbol():
                return self._originals[form.name]
            case Sum(parts, constant):
                return words.Add(*[words.Mul(k, self.written(m)) for m, k in parts], constant)
            case Product(factors):
                return words.Mul(*map(self.written, factors))
            case FloorDiv(numerator, divisor):
                return words.FloorDiv(self.written(numerator), self.written(divisor))
            case Mod(numerator, divisor):
                low = numerator.bounds()[0]
                kind = words.Mod if low is not None and low >= 0 else words.PythonMod
                return kind(self.written(numerator), self.written(divisor))
            case Max(left, right):
                return words.Max(self.written(left), self.written(right))
            case Min(left, right):
                return words.Min(self.written(left), self.written(right))
        raise AssertionError(form)

    def combined(self, function: Any, a: Any, b: Any) -> Any:
        """``function(a, b)`` of numbers of which one is symbolic, in normal form where it has one."""
        method = _ARITHMETIC.get(function)
        if method is None:
            found = bits.combined(self.combined, function, a, b) if function in bits.BITWISE else None
            return function(a, b) if found is None else found
        left, right = self._part(a), self._part(b)
        if left is None or right is None:
            return function(a, b)
        if method in _DIVISIONS and (right.bounds()[0] or 0) < 1:
            return function(a, b)
        return self.number(self.flat(method(left, right)))

    def _part(self, number: Any) -> Expr | None:
        if type(number) is int:
            return Integer(number)
        if type(number) is not torch.SymInt or torch_symbols.is_unbacked(number):
            return None
        return self.form(number)

    # -- questions ---------------------------------------------------------------------------

    def _evaluated(self, condition: Any, /, *args: Any, **kwargs: Any) -> Any:
        """What the ShapeEnv is asked: PyTorch is, where the answer is not plain to see."""
        known = self._answer(condition)
        if known is None:
            if condition.free_symbols:
                if self.in_cpp and not torch_symbols.is_condition(condition):
                    raise WantsPlainSizes
                trace.count("size_questions")
            return self._evaluate(condition, *args, **kwargs)
        words = torch_symbols.sympy_words()
        return words.true if known else words.false

    def _answer(self, condition: Any) -> bool | None:
        """Whether a comparison in SymPy's words holds at all sizes, or at none; None where neither is plain to see."""
        name = names.name_of(condition)
        if name not in _QUESTIONS or self._silent:
            return None
        self.refresh()
        left, right = map(self.form_of, condition.args)
        if left is None or right is None:
            return None
        return _judged(name, *close_bounds(self.difference(left, right)))

    def difference(self, left: Expr, right: Expr) -> Expr:
        """left - right, a number where what is known of remainders makes it one."""
        return self.flat(left - right)

    def flat(self, form: Expr) -> Expr:
        """With few divisions, by what is known of remainders."""
        return self._flattener.flat(form)


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


def _judged(name: str, low: int | None, high: int | None) -> bool | None:
    """What the bounds of a difference say of a comparison with 0."""
    match name:
        case names.EQUALITY | names.UNEQUALITY:
            if low == 0 == high:
                return name == names.EQUALITY
            apart = (low is not None and low > 0) or (high is not None and high < 0)
            return name == names.UNEQUALITY if apart else None
        case names.LESS_THAN:
            return True if high is not None and high <= 0 else False if low is not None and low > 0 else None
        case names.STRICT_LESS_THAN:
            return True if high is not None and high < 0 else False if low is not None and low >= 0 else None
        case names.GREATER_THAN:
            return True if low is not None and low >= 0 else False if high is not None and high < 0 else None
        case _:
            return True if low is not None and low > 0 else False if high is not None and high <= 0 else None
