"""Gradients of tables (embeddings) of which a call looked up few rows, on the CPU: what was not looked up is not written.

``braze::table_gradient`` and ``braze::bag_gradient`` make a gradient on fresh pages of the operating system, which are zero until
somebody writes to them: a table of a gigabyte of which a thousand rows were read costs a thousand pages. ``braze::add_to_table_``
adds to a gradient that exists. Rows that share a number are added in their order.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch

Tensor = torch.Tensor

_library = torch.library.Library("braze", "FRAGMENT")
_library.define("table_gradient(Tensor[] grads, Tensor[] indices, int rows, int[] paddings) -> Tensor")
_library.define(
    "bag_gradient(Tensor grad, Tensor indices, Tensor offsets, Tensor bag_size, int rows, int mode, int padding) -> Tensor"
)
_library.define("add_to_table_(Tensor(a!) table, Tensor[] grads, Tensor[] indices, int[] paddings) -> ()")


def _add_to_table(
    table: Tensor, grads: Sequence[Tensor], indices: Sequence[Tensor], paddings: Sequence[int]
) -> None:
    """Add the rows of each of ``grads`` where its ``indices`` say, but for those of its padding."""
    for grad, places, padding in zip(grads, indices, paddings, strict=True):
        rows, places = grad.reshape(-1, grad.shape[-1]), places.reshape(-1)
        if padding >= 0:
            kept = places != padding
            rows, places = rows[kept], places[kept]
        table.index_add_(0, places, rows)


def _table_gradient(
    grads: Sequence[Tensor], indices: Sequence[Tensor], rows: int, paddings: Sequence[int]
) -> Tensor:
    table = untouched_zeros((rows, grads[0].shape[-1]), grads[0].dtype)
    _add_to_table(table, grads, indices, paddings)
    return table


def _bag_gradient(
    grad: Tensor, indices: Tensor, offsets: Tensor, bag_size: Tensor, rows: int, mode: int, padding: int
) -> Tensor:
    """The gradient of sums (mode 0) or means (mode 1) of a table's rows over bags that begin at ``offsets``."""
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    bags = torch.searchsorted(offsets, places, right=True).sub_(1)
    taken = grad.index_select(0, bags)
    if mode == 1:
        taken /= bag_size.index_select(0, bags)[:, None]
    return _table_gradient([taken], [indices], rows, [padding])


def untouched_zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory page by page, as they are written; from the usual allocator where the system has no such pages."""
    count = math.prod(sizes)
    try:
        pages = mmap.mmap(-1, max(count * dtype.itemsize, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (AttributeError, OSError):
        return torch.zeros(sizes, dtype=dtype, device="cpu")
    storage = torch.frombuffer(pages, dtype=dtype, count=count).untyped_storage()
    made = torch.empty(0, dtype=dtype, device="cpu")
    return made.set_(storage, 0, sizes, [math.prod(sizes[d + 1 :]) for d in range(len(sizes))])  # type: ignore[arg-type]


def _empty(grad: Tensor, rows: int) -> Tensor:
    return grad.new_empty((rows, grad.shape[-1]))


_library.impl("table_gradient", _table_gradient, "CPU")
_library.impl("bag_gradient", _bag_gradient, "CPU")
_library.impl("add_to_table_", _add_to_table, "CPU")
_library.impl("table_gradient", lambda grads, _, rows, *__: _empty(grads[0], rows), "Meta")
_library.impl("bag_gradient", lambda grad, *args: _empty(grad, args[3]), "Meta")

TABLE_GRADIENT = torch.ops.braze.table_gradient.default
BAG_GRADIENT = torch.ops.braze.bag_gradient.default
ADD_TO_TABLE = torch.ops.braze.add_to_table_.default
