"""What one trace knows of its size symbols, in expressions of our own (``symbolic/expr.py``) beside PyTorch's in SymPy.

A size that rules compute is an :class:`Expr` until it stands in a tensor, and a question about sizes is first put to the bounds of such
expressions: SymPy sees what comes out, in normal form, and what neither bounds nor earlier guards tell. What guards say of sizes
is learned in ``learned_sizes.py``, since divisions come out simpler for it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from braze.graph.private import torch_symbols
from braze.graph.sizes import bits
from braze.graph.sizes.decided_floats import DecidedFloats
from braze.graph.sizes.learned_sizes import COMPARISONS, SIDES, LearnedSizes
from braze.graph.sizes.numbers import QUESTIONS
from braze.support import trace
from braze.symbolic import names
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
)
from braze.symbolic.flat import close_bounds

_ARITHMETIC: dict[Any, Any] = {
    operator.add: Expr.__add__, operator.sub: Expr.__sub__, operator.mul: Expr.__mul__,
    operator.floordiv: Expr.__floordiv__, operator.mod: Expr.__mod__, operator.iadd: Expr.__add__,
    operator.isub: Expr.__sub__, operator.imul: Expr.__mul__, operator.ifloordiv: Expr.__floordiv__,
    operator.imod: Expr.__mod__,
}  # fmt: skip
_DIVISIONS = frozenset({Expr.__floordiv__, Expr.__mod__})


class WantsPlainSizes(RuntimeError):
    """A composite in C++ asked for the plain sizes of a tensor whose sizes are symbols."""


class Ground(LearnedSizes):
    """The sizes of one trace, there and back."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._written: dict[Expr, Any] = {}
        self._numbers: dict[Expr, Any] = {}
        self._silent = False
        #: whether rules may have PyTorch decide, and guard, what is not plain to see
        self.asking = False
        #: what is decided by floats
        self.decided: DecidedFloats | None = None
        #: a call runs whose composites in C++ take sizes for numbers, which fixes them
        self.in_cpp = False
        self._evaluate = env.evaluate_expr
        env.evaluate_expr = self._evaluated

    def _settled(self, name: str, value: int) -> None:
        """PyTorch too takes it for a number."""
        self._silent = True
        try:
            bool(self.env.create_symintnode(self._originals[name], hint=value) == value)
        finally:
            self._silent = False

    # -- back to PyTorch's -------------------------------------------------------------------

    def number(self, form: Expr) -> Any:
        """An int, or a SymInt in normal form."""
        if form.value is not None:
            return form.value
        found = self._numbers.get(form)
        if found is None:
            found = self._numbers[form] = self.env.create_symintnode(self.written(form), hint=self.hint(form))
        return found

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
            if function in bits.SHIFTS and type(b) is int:
                return bits.shifted(self.combined, function, a, b)
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
        if known is None and self.decided is not None:
            known = self.decided.asked(condition)
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
        if name not in COMPARISONS or self._silent:
            return None
        self.refresh()
        left, right = map(self.form_of, condition.args)
        if left is None or right is None:
            return None
        return _judged(name, *close_bounds(self.difference(left, right)))


def _judged(name: str, low: int | None, high: int | None) -> bool | None:
    """What the bounds of a difference say of a comparison with 0."""
    if name in (names.EQUALITY, names.UNEQUALITY):
        if low == 0 == high:
            return name == names.EQUALITY
        apart = (low is not None and low > 0) or (high is not None and high < 0)
        return name == names.UNEQUALITY if apart else None
    holds = QUESTIONS[name]
    least, most = (low, high) if SIDES[name] > 0 else (high, low)
    if least is not None and holds(least, 0):
        return True
    return False if most is not None and not holds(most, 0) else None
