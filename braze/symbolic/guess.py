"""What stands for a number that only a call will tell: the one guess that every plan is made by."""

from __future__ import annotations

from collections.abc import Mapping

from braze.symbolic.expr import Expr, Symbol

#: a size of which nobody has seen a value
UNKNOWN = 1024


def likely(e: Expr, seen: Mapping[str, int] | None = None) -> int:
    """An expression as a number; a symbol is what was ``seen`` of it, by name, or a guess within its bounds."""
    if e.value is not None:
        return e.value
    return e.evaluate(
        {s: _guess(s) if seen is None or s.name not in seen else seen[s.name] for s in e.symbols()}
    )


def likely_size(e: Expr) -> int:
    """A size as a number. One that its symbols' guesses would make negative, or empty, is taken to be 1."""
    return e.value if e.value is not None else max(likely(e), 1)


def _guess(s: Symbol) -> int:
    low, high = s.bounds()
    value = UNKNOWN if low is None else max(UNKNOWN, low)
    return value if high is None else min(value, high)
