"""New tensors: everything by ``full``, ``arange.start_step`` and ``empty``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.decomp.numbers import cast
from braze.decomp.registry import decompose

aten = torch.ops.aten
Tensor = torch.Tensor


def _filled(
    size: Sequence[int],
    value: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    layout: Any = None,
    pin_memory: Any = None,
) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    return aten.full.default(
        list(size),
        value,
        dtype=dtype if dtype is not None else torch.get_default_dtype(),
        device=device if device is not None else torch.device("cpu"),
    )


def _like(x: Tensor, value: Any, *, memory_format: Any = None, **options: Any) -> Any:
    """A filled tensor like ``x``; one that keeps unusual strides stays PyTorch's."""
    keeps = memory_format in (None, torch.preserve_format)
    if (keeps and not x.is_contiguous()) or memory_format in (torch.channels_last, torch.channels_last_3d):
        return NotImplemented
    return _filled(x.shape, value, **_options_of(x, options))


def _options_of(x: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """The options with what is not given taken from ``x``."""
    return {
        **options,
        "dtype": options.get("dtype") or x.dtype,
        "device": options.get("device") or x.device,
    }


@decompose(aten.zeros.default)
def zeros(size: Sequence[int], **options: Any) -> Any:
    return _filled(size, 0, **options)


@decompose(aten.ones.default)
def ones(size: Sequence[int], **options: Any) -> Any:
    return _filled(size, 1, **options)


@decompose(aten.scalar_tensor.default)
def scalar_tensor(value: Any, **options: Any) -> Any:
    return _filled([], value, **options)


@decompose(aten.zeros_like.default)
def zeros_like(x: Tensor, **options: Any) -> Any:
    return _like(x, 0, **options)


@decompose(aten.ones_like.default)
def ones_like(x: Tensor, **options: Any) -> Any:
    return _like(x, 1, **options)


@decompose(aten.full_like.default)
def full_like(x: Tensor, value: Any, **options: Any) -> Any:
    return _like(x, value, **options)


@decompose(aten.new_zeros.default)
def new_zeros(x: Tensor, size: Sequence[int], **options: Any) -> Any:
    return _filled(size, 0, **_options_of(x, options))


@decompose(aten.new_ones.default)
def new_ones(x: Tensor, size: Sequence[int], **options: Any) -> Any:
    return _filled(size, 1, **_options_of(x, options))


@decompose(aten.new_full.default)
def new_full(x: Tensor, size: Sequence[int], value: Any, **options: Any) -> Any:
    return _filled(size, value, **_options_of(x, options))


@decompose(aten.new_empty.default)
def new_empty(x: Tensor, size: Sequence[int], *, layout: Any = None, **options: Any) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    made = _options_of(x, options)
    return aten.empty.memory_format(list(size), dtype=made["dtype"], device=made["device"])


def _count(start: Any, end: Any, step: Any, dtype: Any, device: Any, layout: Any) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    if dtype is None:
        numbers = (start, end, step)
        dtype = torch.get_default_dtype() if any(isinstance(n, float) for n in numbers) else torch.int64
    return aten.arange.start_step(start, end, step, dtype=dtype, device=device or torch.device("cpu"))


@decompose(aten.arange.default)
def arange(
    end: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    return _count(0, end, 1, dtype, device, layout)


@decompose(aten.arange.start)
def arange_start(
    start: Any, end: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    return _count(start, end, 1, dtype, device, layout)


@decompose(aten.linspace.default)
def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    """From both ends towards the middle, so that it is symmetric."""
    dtype = dtype or torch.get_default_dtype()
    if (
        type(steps) is not int
        or steps < 2
        or not dtype.is_floating_point
        or layout not in (None, torch.strided)
    ):
        return NotImplemented
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    index = aten.arange.start_step(0, steps, 1, dtype=wide, device=device or torch.device("cpu"))
    step = (end - start) / (steps - 1)
    upward = aten.add.Scalar(aten.mul.Scalar(index, step), start)
    downward = aten.sub.Scalar(aten.mul.Scalar(index, step), (steps - 1) * step - end)
    return cast(aten.where.self(aten.lt.Scalar(index, steps // 2), upward, downward), dtype)


@decompose(aten.eye.default)
def eye(n: int, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    return eye_m(n, n, dtype=dtype, layout=layout, device=device)


@decompose(aten.eye.m)
def eye_m(
    n: int, m: int, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    """1 where row and column are equal."""
    if layout not in (None, torch.strided):
        return NotImplemented
    device = device or torch.device("cpu")
    rows = aten.arange.start_step(0, n, 1, dtype=torch.int64, device=device)
    columns = aten.arange.start_step(0, m, 1, dtype=torch.int64, device=device)
    return cast(aten.eq.Tensor(aten.unsqueeze.default(rows, -1), columns), dtype or torch.get_default_dtype())
