"""Whether two tensors over one storage may have an element in common.

Two tensors are apart when 1. one ends before the other begins, or 2. they walk the storage in equal periods (rows of a
matrix, say) and what they have of one period is apart: different columns, every other element, halves of a
fused projection, every other column of rows of any length. Anything else counts as overlapping. Counts in bytes, so that element types may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.graph.fakes.fakes import text_of
from braze.graph.private import torch_symbols

#: (stride in bytes, size) of each dimension, outermost first
Steps = tuple[tuple[int, int], ...]
#: (first byte, steps, bytes of an element)
Region = tuple[int, Steps, int]


def may_overlap(a: torch.Tensor, b: torch.Tensor, *, decide: bool = False) -> bool:
    """Whether two tensors of one storage may share an element.

    So they do where a size is a symbol; ``decide``: it is asked what holds of the sizes here, and guards keep the answer.
    """
    one, other = _region(a, decide), _region(b, decide)
    if one is None or other is None:
        return True
    if not _sizes(a) or not _sizes(b):
        return False  # no elements
    return not _apart(one, other)


def are_apart(spans: list[tuple[int, int, bool]]) -> bool:
    """Whether no written one of some (begin, bytes, whether it is written) overlaps another: one walk in memory's order.

    A network's statistics are written by hundreds beside hundreds of weights: pairs of them took 4 ms a call.
    """
    end = written_end = -1
    for begin, size, written in sorted(spans):
        if begin < (end if written else written_end):
            return False
        end = max(end, begin + size)
        if written:
            written_end = max(written_end, begin + size)
    return True


def is_inside(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a tensor lies between the first and the last element of another; not, where a number is symbolic."""
    inner, outer = _region(view), _region(whole)
    if inner is None or outer is None or (_sizes(view) and not _sizes(whole)):
        return False
    return outer[0] <= inner[0] and _end(inner) <= _end(outer)


def reaches_beyond(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a tensor has elements before the first or behind the last of another, of whose memory nothing is left out.

    Of symbols it is asked, and guards keep the answer; of what only the data tell nothing is asked, and it does not.
    """
    if not is_symbolic(view) and not is_symbolic(whole):
        return not is_inside(view, whole)
    numbers = [n for t in (view, whole) for n in (*t.shape, *t.stride(), t.storage_offset())]
    if any(type(n) is not int and torch_symbols.is_unbacked(n) for n in numbers) or not _sizes(view):
        return False
    if not _sizes(whole):
        return True
    (first, last), (start, end) = ((t.storage_offset(), _last(t)) for t in (view, whole))
    return bool(first < start) or bool(last * view.dtype.itemsize > end * whole.dtype.itemsize)


def _last(tensor: torch.Tensor) -> Any:
    """The place behind the last element, of which there is one; nothing is asked."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.storage_offset() + sum((n - 1) * stride for n, stride in steps) + 1


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Whether a number of a tensor's layout is a symbol."""
    return any(type(n) is not int for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage are the same elements in the same order."""
    return a.dtype is b.dtype and _layout(a) == _layout(b)


def _layout(tensor: torch.Tensor) -> list[int | str]:
    """Sizes, strides and offset, symbols as they are written: nothing is decided about them."""
    return [text_of(n) for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]


def _sizes(tensor: torch.Tensor) -> bool:
    return all(n != 0 for n in tensor.shape)


def _region(tensor: torch.Tensor, decide: bool = False) -> Region | None:
    """Where a tensor lies; None where a number is symbolic, and nothing is decided."""
    if is_symbolic(tensor) and not decide:
        return None
    width = tensor.dtype.itemsize
    steps = [(s * width, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and s != 0]
    start: Any = tensor.storage_offset()
    return start * width, tuple(sorted(steps, reverse=True)), width


def _reach(steps: Sequence[tuple[int, int]]) -> int:
    return sum(stride * (size - 1) for stride, size in steps)


def _end(region: Region) -> int:
    """The byte after the last."""
    start, steps, element = region
    return start + _reach(steps) + element


def _apart(one: Region, other: Region, within: bool = False) -> bool:
    """Whether two regions have no byte in common, as far as that is seen; of symbols, and ``within`` a period, no more is asked than where one ends."""
    if _ends_apart(one, other):
        return True
    met: list[tuple[Region, Region]] = []
    for period, _ in (*one[1], *other[1]):
        parts = _in_period(period, one), _in_period(period, other)
        if parts[0] is None or parts[1] is None:
            continue
        if _ends_apart(*parts):  # type: ignore[arg-type]
            return True
        met.append(parts)  # type: ignore[arg-type]
    if within:
        return False
    deeper: list[tuple[Region, Region]] = []
    for found in met:
        if _is_known(found) and found[0][0] != found[1][0] and found not in deeper:
            deeper.append(found)
    return any(_apart(*found, within=True) for found in deeper)


def _ends_apart(one: Region, other: Region) -> bool:
    """Whether one ends before the other begins."""
    first, second = (one, other) if one[0] <= other[0] else (other, one)
    return bool(_end(first) <= second[0])


def _in_period(period: int, region: Region) -> Region | None:
    """What a region has of each stretch of ``period`` bytes; None where it has other parts of one than of another."""
    start, walk, element = region
    if any(stride % period for stride, _ in walk if stride >= period):
        return None
    part = start % period, tuple(step for step in walk if step[0] < period), element
    return part if _end(part) <= period else None


def _is_known(regions: tuple[Region, Region]) -> bool:
    """Whether no number is a symbol."""
    return all(
        type(n) is int for start, walk, _ in regions for n in (start, *(n for step in walk for n in step))
    )
