"""Tables of tensors' addresses for kernels that work on many tensors at once, in plain Python.

A table is rows of 64-bit integers: the number of elements, where the row starts in a count of elements over all rows
(each row rounded up to 64), then one address a column. Whatever the caller keeps behind them is left alone.
"""

from __future__ import annotations

from typing import Any

from braze.native import torch_state

#: entries of a row before the addresses
HEAD = 2
_ROUND = 64


def tabulate(columns: tuple[list[Any], ...], like: Any, table: Any, first: int = 0) -> tuple[int, bool]:
    """Write the rows from ``first`` on; ``(the first irregular row or -1, whether anything but column 1 changed)``.

    Row i holds the i-th tensor of each column. It is regular if all are strided tensors of the dtype, device and
    dispatch keys of ``like`` (plain, that is: not sparse, conjugated, fake, ...), of one size and one order of dims,
    with no holes and no overlaps. ``table`` is a writable buffer of 64-bit integers, with as many rows as the columns.
    """
    rows = len(columns[0])
    if any(not isinstance(c, list) or len(c) != rows for c in columns):
        raise TypeError("tabulate takes a tuple of lists of one length")
    cells = memoryview(table).cast("B").cast("q")
    width = len(cells) // rows if rows else 0
    if rows and width < HEAD + len(columns):
        raise ValueError("tabulate: the table has too few columns")
    wanted, changed, start = _facts(like), False, 0
    if wanted is None:
        raise TypeError("tabulate: the sample is no tensor, or torch is not bound")
    if first:
        start = _after(cells, (first - 1) * width)
    for i in range(first, rows):
        found = _row([column[i] for column in columns], wanted)
        if found is None:
            return i, changed
        row = [found[0], start, *found[1]]
        for k, value in enumerate(row):
            changed |= k not in (1, HEAD + 1) and cells[i * width + k] != value
            cells[i * width + k] = value
        start = _after(cells, i * width)
    return -1, changed


def _after(cells: Any, at: int) -> int:
    return cells[at + 1] + -(-cells[at] // _ROUND) * _ROUND


def _facts(value: Any) -> tuple[Any, ...] | None:
    """What the tensors of a table have in common."""
    if not isinstance(value, torch_state.torch().Tensor):
        return None
    _, dtype, device, _, _, _, keys = torch_state.metadata(value)
    return dtype, device, keys


def _row(tensors: list[Any], wanted: tuple[Any, ...]) -> tuple[int, list[int]] | None:
    """(number of elements, addresses) of a regular row."""
    if any(_facts(tensor) != wanted for tensor in tensors):
        return None
    layouts = {_layout(tensor) for tensor in tensors}
    if len(layouts) != 1 or not _dense(tensors[0]):
        return None
    return tensors[0].numel(), [tensor.data_ptr() for tensor in tensors]


def _layout(tensor: Any) -> tuple[Any, ...]:
    sizes = tuple(tensor.size())
    return sizes, tuple(s for s, n in zip(tensor.stride(), sizes, strict=True) if n > 1)


def _dense(tensor: Any) -> bool:
    if tensor.numel() < 2:
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.size(), strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= size
    return True
