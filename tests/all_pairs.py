"""Of tests over three axes and more, the cases in which each two values stand together once (all-pairs testing).

A bug hangs on one value or on two that meet far more often than on three (Kuhn, Wallace, Gallo, "Software Fault Interactions and
Implications for Software Testing", IEEE TSE 30(6), 2004), and the full product takes two to ten times as long.
``BRAZE_SWEEP=1`` runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

#: what one case is on each axis
Place = tuple[object, ...]


def chosen(places: Sequence[Place]) -> list[int]:
    """The numbers of the cases that are run, in their order: those that bring most new pairs come first, until no pair is missing."""
    pairs = [set(combinations(enumerate(place), 2)) for place in places]
    missing = set().union(*pairs)
    kept = []
    for least in range(max(map(len, pairs), default=0), 0, -1):
        for number, brought in enumerate(pairs):
            if len(brought & missing) >= least:
                kept.append(number)
                missing -= brought
    return sorted(kept)


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests of three axes and more that bring no pair of values that another one has not."""
    of_one_function: defaultdict[object, list[tuple[pytest.Item, Place]]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and (place := _place(item)) is not None:
            of_one_function[item.parent, item.originalname].append((item, place))
    out: set[pytest.Item] = set()
    for cases in of_one_function.values():
        kept = {cases[i][0] for i in chosen([place for _, place in cases])}
        out.update(item for item, _ in cases if item not in kept)
    return out


def _place(item: pytest.Function) -> Place | None:
    """What a test has on each of its axes: the objects themselves, which all tests of a function share."""
    call = getattr(item, "callspec", None)
    axes = [_names(mark) for mark in item.iter_markers("parametrize")]
    if call is None or len(axes) < 3:
        return None
    return tuple(tuple(id(call.params.get(name)) for name in names) for names in axes)


def _names(mark: pytest.Mark) -> list[str]:
    named = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return [name.strip() for name in named.split(",")] if isinstance(named, str) else list(named)
