"""Python's operators: their functions, and the special methods that C asks for each."""

from __future__ import annotations

import operator
from typing import Any

from braze.capture.facts.values import words
from braze.graph.private.torch_symbols import SYMBOLIC

NAMES = words("add and floordiv lshift matmul mul mod or pow rshift sub truediv xor")


def named(name: str) -> Any:
    """The function of module ``operator`` for a special method's name."""
    return getattr(operator, f"{name}_" if name in ("and", "or") else name)


#: ``2 += tensor`` makes a new tensor
NOT_IN_PLACE = {named(f"i{n}"): named(n) for n in NAMES}
#: operator function -> methods of the first operand, and that of the second, in the order of CPython's numbers for them
METHODS = {named(n): (f"__{n}__", f"__r{n}__") for n in NAMES}
METHODS |= {named(f"i{n}"): (f"__i{n}__", f"__{n}__", f"__r{n}__") for n in NAMES}
COMPARE_METHODS = {
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}
UNARY_METHODS = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__"}
#: methods of symbols by which C code computes with them -> the operator, and whether the symbol is its second operand
OF_SYMBOLS = {
    vars(cls)[name]: (function, name != names[0])
    for function, names in METHODS.items()
    for name in names[-2:]
    for cls in SYMBOLIC
    if name in vars(cls) and not function.__name__.startswith("i")
}
