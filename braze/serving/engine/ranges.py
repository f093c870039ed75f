"""Numbers that a user gives, and the ranges in which they mean something."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from braze.options import told
from braze.support.errors import UserError


class Range(NamedTuple):
    """Which values mean something, and how that is said."""

    kinds: tuple[type, ...]
    holds: Callable[[Any], bool]
    told: str


def whole(least: int) -> Range:
    """Whole numbers from one on."""
    return Range((int,), lambda x: x >= least, f"a whole number from {least} on")


#: yes or no
SWITCH = Range((bool,), lambda x: True, "True or False")
#: when recordings are made
CAPTURE = Range((str,), lambda x: x in ("eager", "lazy"), "'eager' or 'lazy'")
#: parts of something that is there
SHARE = Range((int, float), lambda x: 0 < x <= 1, "in (0, 1]")
#: seconds that something may take
SECONDS = Range((int, float), lambda x: x > 0 and not math.isinf(x), "a number of seconds above 0")


def refuse_others(code: str, title: str, given: Any, ranges: Mapping[str, Range]) -> None:
    """UserError for fields of ``given`` whose values lie outside of their ranges."""
    bad = {
        f"{name}={told(value)} is not {range.told}": f"{name}= takes {range.told}"
        for name, range in ranges.items()
        if (isinstance(value := getattr(given, name), bool) and bool not in range.kinds)
        or not isinstance(value, range.kinds)
        or not range.holds(value)
    }
    if bad:
        raise UserError(code, title, why="; ".join(bad), hints=[*bad.values()])
