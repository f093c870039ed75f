"""``braze::cut_product``: a product whose columns were padded for the tensor cores, without the padding, some rows at a time.

The whole padded product and its copy without padding would live at once: for a vocabulary that is twice the largest thing that eager
has. Here a scratch holds a part of the rows, from which they are copied into the result.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

#: the rows are taken in so many parts
PARTS = 4

_library = torch.library.Library("braze", "FRAGMENT")
_library.define(
    "cut_product(Tensor rows, Tensor matrix, Tensor? bias, bool linear, SymInt columns) -> Tensor"
)


def _run(rows: Tensor, matrix: Tensor, bias: Tensor | None, linear: bool, columns: int) -> Tensor:
    """The first ``columns`` of a product; ``linear``: the matrix lies transposed."""
    made = _shaped(rows, matrix, bias, linear, columns)
    taken, result = rows.reshape(-1, rows.shape[-1]), made.view(-1, columns)
    across = matrix.t() if linear else matrix
    count = taken.shape[0]
    each = max(1, -(-count // PARTS))
    scratch = rows.new_empty((min(each, count), across.shape[1]))
    for first in range(0, count, each):
        part = taken[first : first + each]
        whole = scratch[: part.shape[0]]
        if bias is None:
            torch.mm(part, across, out=whole)
        else:
            torch.addmm(bias, part, across, out=whole)
        result[first : first + each].copy_(whole[:, :columns])
    return made


def _shaped(rows: Tensor, matrix: Tensor, bias: Tensor | None, linear: bool, columns: int) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], columns))


_library.impl("cut_product", _run, "CPU")
_library.impl("cut_product", _run, "CUDA")
_library.impl("cut_product", _shaped, "Meta")

OPERATOR = torch.ops.braze.cut_product.default
