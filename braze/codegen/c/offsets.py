"""Lanes that lie anywhere in memory, read by the processor's own instruction, where that is quick (`Target.features`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.codegen.c.expr import indirect_symbols, to_c
from braze.codegen.c.operations import Value
from braze.schedule.facts.passes import stride
from braze.symbolic.expr import Expr, Integer, Symbol

#: offsets of sixteen lanes are 32-bit numbers, which count bytes where elements are small
_FAR = 1 << 28
#: lanes -> the representation of their offsets
_OFFSETS = {8: "i64", 16: "i32"}


def offsets(
    e: Expr, args: Sequence[Value], symbol: Symbol | None, lanes: int, names: Mapping[Symbol, str]
) -> tuple[str, str] | None:
    """An index as C texts: a number of which the lanes have one, and a vector; None where it cannot be said so.

    ``args``: the values that the index's places stand for; ``names``: what its other symbols are called.
    """
    rep = _OFFSETS.get(lanes)
    if rep is None:
        return None
    known = dict(names)
    parts: list[tuple[str, int | Expr, tuple[int | None, int | None]]] = []
    for place, s in indirect_symbols(e):
        step = stride(e, s)
        if not args[place].varying:
            known[s] = f"((int64_t){args[place].text})"
        elif step is None:
            return None
        elif args[place].rep == rep:
            parts.append((args[place].text, step, s.bounds()))
        elif lanes == 8:
            parts.append((f"__builtin_convertvector({args[place].text}, i64x8)", step, s.bounds()))
        else:
            return None
    own = 0 if symbol is None else stride(e, symbol)
    if own is None:
        return None
    if own != 0:
        parts.append((f"bz_iota_{rep}x{lanes}", own, (0, lanes - 1)))
    apart = {s for place, s in indirect_symbols(e) if args[place].varying}
    if any(isinstance(step, Expr) and not apart.isdisjoint(step.symbols()) for _, step, _ in parts):
        return None  # a product of two places
    if lanes == 16 and not _near([(step, bounds) for _, step, bounds in parts]):
        return None
    c = "int64_t" if rep == "i64" else "int32_t"
    terms = [
        text if step == 1 else f"{text} * ({c})({to_c(step, known) if isinstance(step, Expr) else step})"
        for text, step, _ in parts
    ]
    return to_c(e.subs(dict.fromkeys(apart, Integer(0))), known), " + ".join(terms)


def _near(parts: Sequence[tuple[int | Expr, tuple[int | None, int | None]]]) -> bool:
    """Whether offsets are known to be small."""
    furthest = 0
    for step, (low, high) in parts:
        if isinstance(step, Expr) or low is None or high is None:
            return False
        furthest += abs(step) * max(abs(low), abs(high))
    return furthest < _FAR
