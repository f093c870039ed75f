"""Arithmetic on what is known of integers: (least, greatest) value, None where there is no bound."""

from __future__ import annotations

Interval = tuple[int | None, int | None]


def multiplied(a: Interval, b: Interval) -> Interval:
    """Of a product."""
    if None in a or None in b:
        nonnegative = all(x[0] is not None and x[0] >= 0 for x in (a, b))
        return ((a[0] or 0) * (b[0] or 0), None) if nonnegative else (None, None)
    corners = [x * y for x in a for y in b if x is not None and y is not None]
    return min(corners), max(corners)


def quotient(top: Interval, divisor: Interval) -> Interval:
    """Of a floored quotient by what is positive."""
    (lo, hi), (dlo, dhi) = top, divisor
    dlo = max(dlo or 1, 1)
    low = None if lo is None else (lo // dlo if lo < 0 else (lo // dhi if dhi else 0))
    high = None if hi is None else (hi // dlo if hi >= 0 else (hi // dhi if dhi else -1))
    return low, high


def remainder(top: Interval, divisor: Interval) -> Interval:
    """Of what a floored quotient by what is positive leaves."""
    (lo, hi), most = top, divisor[1]
    if lo is not None and lo >= 0 and hi is not None:
        return 0, hi if most is None else min(hi, most - 1)
    return 0, None if most is None else most - 1


def greater(a: Interval, b: Interval) -> Interval:
    """Of the greater of two."""
    lows = [x for x in (a[0], b[0]) if x is not None]
    return max(lows, default=None), None if a[1] is None or b[1] is None else max(a[1], b[1])


def smaller(a: Interval, b: Interval) -> Interval:
    """Of the smaller of two."""
    highs = [x for x in (a[1], b[1]) if x is not None]
    return None if a[0] is None or b[0] is None else min(a[0], b[0]), min(highs, default=None)
