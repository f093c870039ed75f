"""New tensors: everything by ``full``, ``arange.start_step`` and ``empty``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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


def _new(x: Tensor, size: Sequence[int], value: Any, **options: Any) -> Any:
    """A filled tensor of a size, for the rest like ``x``."""
    return _filled(size, value, **_options_of(x, options))


decompose(aten.zeros.default)(partial(_filled, value=0))
decompose(aten.ones.default)(partial(_filled, value=1))
decompose(aten.scalar_tensor.default)(partial(_filled, []))
decompose(aten.zeros_like.default)(partial(_like, value=0))
decompose(aten.ones_like.default)(partial(_like, value=1))
decompose(aten.full_like.default)(_like)
decompose(aten.new_zeros.default)(partial(_new, value=0))
decompose(aten.new_ones.default)(partial(_new, value=1))
decompose(aten.new_full.default)(_new)


@decompose(aten.new_empty.default)
def new_empty(x: Tensor, size: Sequence[int], *, layout: Any = None, **options: Any) -> Any:
    if layout not in (None, torch.strided):
        return NotImplemented
    made = _options_of(x, options)
    return aten.empty.memory_format(list(size), dtype=made["dtype"], device=made["device"])


@decompose(aten.arange.default, aten.arange.start)
def arange(
    *limits: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    """From 0, or the first of two limits, by steps of 1."""
    if layout not in (None, torch.strided):
        return NotImplemented
    start, end = limits if len(limits) > 1 else (0, *limits)
    if dtype is None:
        dtype = (
            torch.get_default_dtype()
            if any(isinstance(n, float | torch.SymFloat) for n in limits)
            else torch.int64
        )
    return aten.arange.start_step(start, end, 1, dtype=dtype, device=device or torch.device("cpu"))


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


@decompose(aten.eye.default, aten.eye.m)
def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    """1 where row and column are equal."""
    if layout not in (None, torch.strided):
        return NotImplemented
    device = device or torch.device("cpu")
    rows = aten.arange.start_step(0, n, 1, dtype=torch.int64, device=device)
    columns = aten.arange.start_step(0, n if m is None else m, 1, dtype=torch.int64, device=device)
    return cast(aten.eq.Tensor(aten.unsqueeze.default(rows, -1), columns), dtype or torch.get_default_dtype())
