"""Where accesses lie in their buffers: proved for all sizes, or left as a question about sizes that each call answers.

The least and greatest index of an access are found as expressions over sizes, axis by axis. That neither leaves the buffer is then
shown from what is known of the sizes. What is not to be shown becomes a ``SizeCheck`` of the program where the two are exact, that
is, where some point of the loops really has them: such a check fails for no program that is right. An access under a mask is left to
its mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from braze.loops.build import nodes_of
from braze.loops.ir import (
    Axis,
    Buffer,
    Condition,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    SizeCheck,
    Step,
    Store,
    TemplateCall,
    views_in,
)
from braze.support.record import record
from braze.symbolic.expr import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Product,
    Symbol,
    constant_part,
    maximum,
    minimum,
    product,
    terms,
)
from braze.symbolic.flat import close_bounds, exact_quotient, flat


@record
class Range:
    """Least and greatest value, over sizes only; ``exact``: there is a point that has each."""

    low: Expr
    high: Expr
    exact: bool = True


@record
class Access:
    """A load or store of a step, or what a call is given: buffer, index, and the loops in which it stands."""

    step: str
    buffer: str
    index: Expr
    axes: tuple[Axis, ...]


def guarded(program: LoopProgram) -> LoopProgram:
    """The program with a check for each access that lies inside its buffer at some sizes only, for all that is known."""
    found = dict.fromkeys(c for _, c in open_questions(program) if isinstance(c, SizeCheck))
    more = [c for c in found if c not in program.checks]
    return dataclasses.replace(program, checks=(*program.checks, *more)) if more else program


def open_questions(program: LoopProgram) -> Iterator[tuple[Access, SizeCheck | str | None]]:
    """Each access that is not shown to lie inside its buffer: with what must hold of the sizes, with what is wrong, or with None.

    None: the bounds that were found leave the buffer, and it may be that no point has them.
    """
    table = {b.name: b for b in program.buffers}
    seen: set[Access] = set()
    for step in program.steps:
        for access in accesses_of(step):
            if access in seen or access.buffer not in table:
                continue
            seen.add(access)
            yield from _questions(access, table[access.buffer])


def accesses_of(step: Step) -> Iterator[Access]:
    """What a step touches outside of masks."""
    if isinstance(step, ExternCall):
        yield from _of_views(step.name, step.given)
        return
    if isinstance(step, TemplateCall):
        yield from _of_views(step.name, step.args)
    stores = stores_of(step)
    if isinstance(step, LoopNest):
        inside = (*step.axes, *step.reduce_axes)
        for node in unmasked_loads([r.value for r in step.reductions]):
            yield Access(step.name, node.attr[0], node.attr[1], inside)
    for node in unmasked_loads([n for s in stores for n in (s.value, *s.args)]):
        yield Access(step.name, node.attr[0], node.attr[1], step.axes)
    for store in stores:
        yield Access(step.name, store.buffer, store.index, step.axes)


def stores_of(step: Step) -> tuple[Store, ...]:
    """The stores of a nest or an epilogue."""
    if isinstance(step, LoopNest):
        return step.stores
    return step.epilogue if isinstance(step, TemplateCall) else ()


def unmasked_loads(roots: Sequence[Node]) -> list[Node]:
    """The loads that happen at every point."""
    return [node for node in nodes_of(*roots, inside_masks=False) if node.op is Op.LOAD]


def _of_views(step: str, values: object) -> Iterator[Access]:
    """A window on a buffer, as loops over its dimensions."""
    for view in views_in(values):
        axes = tuple(Axis(Symbol(f"d{k}", 0, None, size), size) for k, size in enumerate(view.sizes))
        index = view.offset
        for axis, stride in zip(axes, view.strides, strict=True):
            index = index + axis.symbol * stride
        yield Access(step, view.buffer, index, axes)


def _questions(access: Access, buffer: Buffer) -> Iterator[tuple[Access, SizeCheck | str | None]]:
    if any(axis.extent.value is not None and axis.extent.value <= 0 for axis in access.axes):
        return
    found = range_of(access.index, {a.symbol: Range(ZERO, a.extent - 1) for a in access.axes})
    what = f"{access.step}: {buffer.name}[{access.index}]"
    if found is None:
        yield access, f"{what} has no bounds"
        return
    last = buffer.last
    reaches = f"{what} reaches {found.low}..{found.high} of {last + 1} elements"
    for room in (found.low, last - found.high):
        room = flat(room)
        low, high = close_bounds(room)
        if low is not None and low >= 0:
            continue
        sizes = [axis.extent for axis in access.axes if axis.extent.value is None]
        if found.exact and high is not None and high < 0 and not sizes:
            yield access, reaches
        elif not found.exact:
            yield access, None
        else:
            inside = Condition("ge", (room, ZERO))
            for size in dict.fromkeys(sizes):
                inside = Condition("or", (inside, Condition("le", (size, ZERO))))
            yield access, SizeCheck(inside, f"BZ9007: {reaches}")


def range_of(e: Expr, symbols: Mapping[Symbol, Range]) -> Range | None:
    """The values of an expression as its symbols run through theirs; None where nothing is to be said."""
    inside = {s for s in e.symbols() if s in symbols or s.place is not None}
    if not inside:
        return Range(e, e)
    if isinstance(e, Symbol):
        return symbols[e] if e in symbols else _of_computed(e)
    if isinstance(e, FloorDiv) and not inside & e.divisor.symbols():
        top = range_of(e.numerator, symbols)
        return None if top is None else Range(top.low // e.divisor, top.high // e.divisor, top.exact)
    if isinstance(e, Mod) and not inside & e.divisor.symbols():
        top = range_of(e.numerator, symbols)
        if top is not None and _not_negative(top.low) and _not_negative(e.divisor - 1 - top.high):
            return top
        return Range(ZERO, e.divisor - 1, False)
    if isinstance(e, Product):
        return _of_product(e, inside, symbols) or _of_rows(e, symbols)
    if isinstance(e, (Max, Min)):
        return _of_either(e, inside, symbols)
    return _of_sum(e, symbols) or _of_rows(e, symbols)


def _of_either(e: Max | Min, inside: set[Symbol], symbols: Mapping[Symbol, Range]) -> Range | None:
    """Of the greater or the smaller of two."""
    left, right = range_of(e.left, symbols), range_of(e.right, symbols)
    if left is None or right is None:
        return None
    either = maximum if isinstance(e, Max) else minimum
    alone = not inside & e.left.symbols() & e.right.symbols()
    exact = alone and left.exact and right.exact
    return Range(either(left.low, right.low), either(left.high, right.high), exact)


def _of_sum(e: Expr, symbols: Mapping[Symbol, Range]) -> Range | None:
    low = high = ZERO + constant_part(e)
    exact = True
    used: set[Symbol] = set()
    for monomial, k in terms(e):
        found = range_of(monomial, symbols)
        if found is None:
            return None
        mine = {s for s in monomial.symbols() if s in symbols or s.place is not None}
        exact = exact and found.exact and not used & mine
        used |= mine
        low = low + (found.low if k > 0 else found.high) * k
        high = high + (found.high if k > 0 else found.low) * k
    return Range(low, high, exact)


def _of_rows(e: Expr, symbols: Mapping[Symbol, Range]) -> Range | None:
    """Of loop variables by strides of which nothing is known but that they are rows', or of one element, or not negative when added up (``2*q*d + 4*d``)."""
    free: list[Expr] = []
    strides: dict[Expr, Expr] = {}
    for monomial, k in terms(e):
        factors = monomial.factors if isinstance(monomial, Product) else (monomial,)
        moving = [f for f in factors if any(s in symbols or s.place is not None for s in f.symbols())]
        rest = product([f for f in factors if f not in moving]) * k
        if not moving:
            free.append(rest)
        else:
            at = product(moving)
            strides[at] = strides.get(at, ZERO) + rest
    if e in strides:
        return None  # a product of nothing but what moves
    low = high = sum(free, ZERO + constant_part(e))
    for at, stride in strides.items():
        found = range_of(at, symbols)
        if found is None:
            return None
        if found.low != found.high and not _not_negative(stride) and not _are_whole_rows(stride, symbols):
            return None
        low, high = low + found.low * stride, high + found.high * stride
    return Range(low, high, False)


def _are_whole_rows(stride: Expr, symbols: Mapping[Symbol, Range]) -> bool:
    """Whether a stride is that of rows along which another of the loops runs: one of no element has no points to ask of."""
    for found in symbols.values():
        rows = _how_often(found.high + 1, stride) if found.low == ZERO else None
        if rows is not None and (_not_negative(rows) or _are_whole_rows(rows, symbols)):
            return True
    return False


#: terms of a quotient of two sums
_STEPS = 8


def _how_often(length: Expr, stride: Expr) -> Expr | None:
    """The number of rows of a symbolic length in a stride, which may both be sums; None where there is none, or it is not found in a few steps."""
    if not (parts := terms(length)):
        return None
    monomial, k = parts[0]
    rows: Expr = ZERO
    left = stride
    for _ in range(_STEPS):
        found = (exact_quotient(m * c, monomial * k) for m, c in terms(left))
        more = next((n for n in found if n is not None), None)
        if more is None:
            return None
        rows, left = rows + more, left - more * length
        if left == ZERO:
            return rows
    return None


def _of_product(e: Product, inside: set[Symbol], symbols: Mapping[Symbol, Range]) -> Range | None:
    free = product([f for f in e.factors if not f.symbols() & inside])
    moving = [range_of(f, symbols) for f in e.factors if f.symbols() & inside]
    if not _not_negative(free) or any(
        m is None or (len(moving) > 1 and not _not_negative(m.low)) for m in moving
    ):
        return None
    low, high = free, free
    exact = len(moving) == 1 or all(isinstance(f, Symbol) for f in e.factors if f.symbols() & inside)
    for m in moving:
        assert m is not None
        low, high, exact = low * m.low, high * m.high, exact and m.exact
    return Range(low, high, exact)


def _not_negative(e: Expr) -> bool:
    e = flat(e)
    if isinstance(e, Product) and all(map(_not_negative, e.factors)):
        return True
    low = close_bounds(e)[0]
    return low is not None and low >= 0


def _of_computed(s: Symbol) -> Range | None:
    if s.limit is not None:
        return Range(ZERO + (s.low or 0), s.limit - ONE, False)
    if s.low is None or s.high is None:
        return None
    return Range(ZERO + s.low, ZERO + s.high, False)
