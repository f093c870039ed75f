"""What is decided by floats of the program's, and by floats made of integers and sizes, as Python over the symbols that stand for them.

Each number that a call begins with is a symbol, and so is each float that a node computes; what the nodes compute is known here, so that a
condition is written as the program computes it rather than by PyTorch's algebra, which takes ``(k + 1e16) - 1e16`` for ``k``.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import torch

from braze.graph.private import torch_symbols
from braze.graph.sizes.numbers import OF_MATH, QUESTIONS
from braze.graph.sizes.shape_guards import Relation, python_text, settled_sizes
from braze.support.errors import Unsupported
from braze.symbolic import names

#: operations of a decision: guards of many take longer than another variant is worth
MOST_OPERATIONS = 64
#: functions of floats -> how Python writes them
WRITTEN: dict[Any, str] = {
    **{
        function: f"({{}} {sign} {{}})"
        for function, sign in {
            operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.pow: "**", operator.mod: "%", operator.floordiv: "//",
            operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
        }.items()
    },
    operator.neg: "(-{})", operator.pos: "(+{})", abs: "abs({})", int: "int({})", round: "round({})", bool: "({} != 0)",
    torch.sym_float: "float({})",
    **{getattr(math, name): f"math.{name}({{}})" for name in ("floor", "ceil", "trunc", "isnan", "isinf", "isfinite")},
    **{function: f"math.{function.__name__}({{}})" for function in (*OF_MATH, math.sqrt)},
}  # fmt: skip

#: comparisons of the absolute value of a float
_ABSOLUTE: dict[Any, Any] = {
    function: (lambda a, b, function=function: function(abs(a), b)) for function in QUESTIONS.values()
}
WRITTEN |= {_ABSOLUTE[f]: WRITTEN[f].replace("{}", "abs({})", 1) for f in _ABSOLUTE if f in WRITTEN}


#: an integer's symbol in the text of a condition
INTEGER = re.compile(r"int_of\((\w+)\)")


class DecidedFloats:
    """Conditions on the floats of one trace. Operands are symbols, their names, or numbers of Python's."""

    def __init__(self, floats: dict[str, float], integers: dict[str, Any]) -> None:
        #: name of each symbolic float -> its hint
        self.floats = floats
        #: name of each integer or size that a call begins with -> what is known of it
        self.integers = integers
        #: id of a float made of sizes by the algebra of symbols -> (that, function, operands), or the float of the graph as which it was written
        self.written: dict[int, tuple[Any, Any, tuple[Any, ...]]] = {}
        #: name of a float that a node computes -> (function, what of)
        self.made: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        #: text of a condition -> the names of the numbers that a call begins with
        self.conditions: dict[str, tuple[str, ...]] = {}

    def answer(self, function: Any, *operands: Any) -> Any:
        """What a function gives of floats, from here on guarded; None where it raises, or these are made of other than a call begins with.

        A finite float is guarded to be one, anything else to be that again.
        """
        found: dict[str, None] = {}
        text = self._text(function, operands, found, [MOST_OPERATIONS])
        if text is None or not found:
            return None
        try:
            value = function(*map(self._hint, operands))
        except (ArithmeticError, ValueError):
            return None
        if type(value) is float and math.isfinite(value):
            text = f"math.isfinite({text})"
        elif type(value) not in (bool, int):
            return None
        elif value is not True:
            text = f"{text} == {value!r}"
        self.conditions[text] = tuple(found)
        return value

    def asked(self, condition: Any) -> bool | None:
        """The answer to a comparison in SymPy's words, of floats and numbers each by itself; None for any other."""
        function = QUESTIONS.get(names.name_of(condition))
        if function is None or len(condition.args) != 2 or not self.floats:
            return None
        left, right = map(self._side, condition.args)
        if left is None or right is None:
            return None
        if names.name_of(condition.args[1]) == names.ABS:
            return None
        if names.name_of(condition.args[0]) == names.ABS:
            return self.answer(_ABSOLUTE[function], left, right)  # type: ignore[no-any-return]
        return self.answer(function, left, right)  # type: ignore[no-any-return]

    def _side(self, expr: Any) -> Any:
        """A side of a comparison: a float's name (also of its absolute value, on the left), or a number; None for any other."""
        if names.name_of(expr) == names.ABS:
            expr = expr.args[0]
        if expr.is_Symbol:
            return str(expr) if str(expr) in self.floats else None
        return int(expr) if expr.is_Integer else float(expr) if expr.is_Float else None

    def _hint(self, value: Any) -> Any:
        """The number that an operand is in this call."""
        if type(value) in (torch.SymInt, torch.SymFloat) and torch_symbols.made_as(value) not in self.floats:
            return value.node.hint
        name = _name(value)
        return value if name is None else self.floats[name]

    def told(self, env: Any) -> list[Relation]:
        """(Python expression, names in it) for each condition, with what the trace has found integers to be."""
        found: dict[str, Relation] = {}
        settled = settled_sizes(env) if self.conditions else {}
        for text, names_of in self.conditions.items():
            if settled.keys().isdisjoint(names_of):
                found[text] = (text, names_of)
                continue
            text = INTEGER.sub(lambda m: _in_text(settled[m[1]]) if m[1] in settled else m[0], text)
            left = (*(n for n in names_of if n in self.floats), *dict.fromkeys(INTEGER.findall(text)))
            if left:
                found[text] = (text, left)
        return list(found.values())

    def _text(
        self, function: Any, operands: tuple[Any, ...], found: dict[str, None], left: list[int]
    ) -> str | None:
        """Python for an operation, or None. ``left``: how many there may be yet."""
        form = "round({}, {})" if function is round and len(operands) == 2 else WRITTEN.get(function)
        left[0] -= 1
        if form is None or left[0] < 0:
            return None
        parts: list[str] = []
        for value in operands:
            name = _name(value)
            if type(value) in (int, float, bool):
                part: str | None = repr(value) if math.isfinite(value) else f"float({str(value)!r})"
            elif name in self.made:
                part = self._text(*self.made[name], found, left)
            elif name in self.floats:
                found[name] = None
                part = f"float_of({name})"
            elif type(value) is torch.SymInt:
                part = self._of_integers(value, found)
            elif id(value) in self.written:
                _, made_by, of = self.written[id(value)]
                again = type(made_by) is torch.SymFloat
                part = (
                    self._text(operator.pos, (made_by,), found, left)
                    if again
                    else self._text(made_by, of, found, left)
                )
            else:  # one operation on integers, which the algebra does as Python does
                part = self._of_integers(value, found) if type(value) is torch.SymFloat else None
            if part is None:
                return None
            parts.append(part)
        return form.format(*parts)

    def _of_integers(self, value: torch.SymInt | torch.SymFloat, found: dict[str, None]) -> str | None:
        """Python for a number, by the algebra of integers, which is exact for these; None where a call does not begin with its symbols."""
        expr = value.node.expr
        symbols = [str(s) for s in expr.free_symbols]
        if not self.integers.keys() >= set(symbols) or torch_symbols.is_unbacked(value):
            return None
        try:
            text = python_text(expr)
        except Unsupported:
            return None
        found.update(dict.fromkeys(sorted(symbols)))
        return _in_text(text)


def _in_text(text: str) -> str:
    """Python over integers, its symbols marked as such."""
    return re.sub(r"\b(?!(?:if|else|and|or|not)\b)[^\W\d]\w*\b(?![.(])", r"int_of(\g<0>)", text)


def _name(value: Any) -> str | None:
    """The name of a float that is a symbol."""
    if type(value) is torch.SymFloat and not torch_symbols.is_unbacked(value):
        return torch_symbols.made_as(value)
    return value if type(value) is str else None
