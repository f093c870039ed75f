"""How Fourier transforms lie on a processor: as MKL is called, which PyTorch's fakes before 2.13 do not all know.

As in ``layout_rules.py``: functions of plain meta tensors, or of geometries, which give new ones, or NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.rules.layout_rules import row_major
from braze.graph.sizes.extents import Geometry, is_symbolic

aten = torch.ops.aten


def _sorted_by_strides(x: Any, dims: Sequence[int]) -> list[int]:
    """The outermost first; those of one stride as they come."""
    return sorted(dims, key=x.stride, reverse=True)


def _transformed(x: Any, dims: Sequence[int], sizes: Sequence[Any], dtype: torch.dtype) -> Any:
    """The transformed dims innermost, as they come, the rest around them in the order of the input's strides."""
    if not torch.backends.mkl.is_available():
        return row_major(sizes, dtype)
    kept = [d for d in range(x.dim()) if d not in dims]
    first = len(kept)
    # it swaps the last of them into the places of transformed ones, which shows where strides are equal
    late = [d for d in reversed(kept) if d >= first]
    outer = [late.pop(0) if d in dims else d for d in range(first)]
    strides: list[Any] = [0] * x.dim()
    step: Any = 1
    for d in reversed([*_sorted_by_strides(x, outer), *dims]):
        strides[d], step = step, step * sizes[d]
    if is_symbolic(sizes):
        return Geometry(dtype, sizes, strides)
    return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")


def _of_reals(x: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    if not x.dtype.is_floating_point or not dim:
        return NotImplemented
    *others, last = (d % x.dim() for d in dim)
    sizes = list(x.shape)
    if onesided:
        sizes[last] = sizes[last] // 2 + 1
    return _transformed(x, [*_sorted_by_strides(x, others), last], sizes, x.dtype.to_complex())


def _of_complex(x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    if not x.dtype.is_complex or not dim:
        return NotImplemented
    dims = [d % x.dim() for d in dim]
    return _transformed(x, _sorted_by_strides(x, dims), list(x.shape), x.dtype)


def _to_reals(x: Any, dim: Sequence[int], normalization: int, size: Any) -> Any:
    """All but the last dim is transformed before."""
    if not x.dtype.is_complex or not dim:
        return NotImplemented
    *others, last = dim
    x = _of_complex(x, others, normalization, False) if others else x
    sizes = list(x.shape)
    sizes[last] = size
    return _transformed(x, [last % x.dim()], sizes, x.dtype.to_real())


TRANSFORMS: dict[Any, Callable[..., Any]] = {
    aten._fft_r2c.default: _of_reals,
    aten._fft_c2c.default: _of_complex,
    aten._fft_c2r.default: _to_reals,
}
