"""Which places of a GPU's kernel need 64 bits.

Triton counts in 32 bits where it is not told otherwise, and a place that does not fit comes out below zero: inside every mask, far from its buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from braze.loops.build import nodes_of
from braze.loops.ir import Buffer, Op
from braze.loops.rewrite import roots
from braze.schedule.facts.records import Group
from braze.symbolic.expr import Expr, Product, Sum, Symbol, product, terms

#: the first number that 32 bits do not hold
FAR = 2**31


def is_wide(buffer: Buffer) -> bool:
    """Whether an element of a buffer may lie 2^31 or more from its first: of sizes without a bound it may."""
    return is_far(buffer.last + 1)


def are_wide(group: Group, buffers: Mapping[str, Buffer], names: Iterable[str]) -> bool:
    """Whether a kernel needs 64 bits: for a place in one of its buffers, for the number of a point or of an element of a row, which
    may be more than any of them holds (what is expanded is stored once), or for a place that is a number to it."""
    if any(is_wide(buffers[n]) for n in names):
        return True
    counts = [product([a.extent for a in axes]) for axes in (group.axes, group.row_axes)]
    numbers = (n.attr for step in group.steps for n in nodes_of(*roots(step)) if n.op is Op.INDEX)
    return any(map(is_far, counts)) or any(map(is_far, numbers))


def is_far(number: Expr) -> bool:
    """Whether a number may be 2^31 or more."""
    most = number.value if number.value is not None else number.bounds()[1]
    return most is None or most >= FAR


def multiplies_far(number: Expr, sizes: frozenset[Symbol]) -> bool:
    """Whether sizes, each of which fits 32 bits, are multiplied on the way to a number, and what comes out may not."""
    whole = [(number, 1)] if isinstance(number, Product) else terms(number) if isinstance(number, Sum) else []
    for monomial, times in whole:
        factors = monomial.factors if isinstance(monomial, Product) else (monomial,)
        known = [f for f in factors if f.symbols() and f.symbols() <= sizes]
        if len(known) + (abs(times) != 1) > 1 and known and is_far(product(known) * abs(times)):
            return True
    return any(multiplies_far(part, sizes) for part in number.children())
