"""Other inputs made of a table's samples: with special values in them, or lying in memory in unusual ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo, UnaryUfuncInfo

from tests.end_to_end import ops

Tensor = torch.Tensor

#: kinds of operators whose every element is a function of its operands' elements
ELEMENTWISE = (UnaryUfuncInfo, BinaryUfuncInfo)


def each_tensor(call: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The call with each of its tensors changed."""
    if isinstance(call, Tensor):
        return change(call)
    if isinstance(call, dict):
        return {k: each_tensor(v, change) for k, v in call.items()}
    if type(call) in (list, tuple):
        return type(call)(each_tensor(v, change) for v in call)
    return call


# -- special values -----------------------------------------------------------------------------


def palettes(dtype: torch.dtype) -> list[list[float]]:
    """Sets of values to fill tensors from: all that are special, and some that hide each other less."""
    if dtype.is_floating_point or dtype.is_complex:
        info = torch.finfo(dtype)
        inf, denormal, least = float("inf"), info.smallest_normal / 4, info.smallest_normal * info.eps
        small = [0.0, -0.0, denormal, -denormal, least, -least, info.smallest_normal]
        large = [info.max, info.min, info.max / 2, 1.0, -1.0, 3.0]
        return [
            [*small, *large, inf, -inf, float("nan"), 0.5, -2.5, 2.0],
            [*small, 1.0, -1.0],
            [inf, 1.0, 0.0, -0.0, 2.0, -3.0],
            [*large, 0.0],
        ]
    info = torch.iinfo(dtype)
    every = [info.max, info.min, info.max - 1, info.min + 1, 0, 1, 2, 7, 31, 63, 64]
    if info.min < 0:
        every += [-1, -2, -7]
    every = [v for v in every if info.min <= v <= info.max]
    return [every, [v for v in every if v not in (0, -1)]]


def special(op: OpInfo, call: ops.Call, dtype: torch.dtype, seed: int) -> ops.Call:
    """The call with special values in its tensors of a type; integers only where they are no places or sizes."""
    rng = random.Random(seed)
    if not (dtype.is_floating_point or isinstance(op, (*ELEMENTWISE, ReductionOpInfo))):
        return call

    def change(t: Tensor) -> Tensor:
        if t.dtype is not dtype or dtype is torch.bool:
            return t
        palette = rng.choice(palettes(dtype))
        made = torch.tensor([rng.choice(palette) for _ in range(t.numel())], dtype=dtype)
        return made.reshape(t.shape)

    return each_tensor(call, change)  # type: ignore[no-any-return]


def grid(op: OpInfo, dtype: torch.dtype) -> list[ops.Call]:
    """Each special value, or each pair of them, for an operator of one or two tensors."""
    values = torch.tensor(palettes(dtype)[0], dtype=dtype)
    if isinstance(op, UnaryUfuncInfo):
        return [((values.repeat(3),), {})]
    if isinstance(op, BinaryUfuncInfo):
        other = values if dtype.is_floating_point else torch.tensor(palettes(dtype)[1], dtype=dtype)
        return [((values[:, None].repeat(1, len(other)), other[None, :].repeat(len(values), 1)), {})]
    return []


# -- layouts ------------------------------------------------------------------------------------


def turned(t: Tensor) -> Tensor:
    """The same elements, the first dim innermost."""
    order = list(range(t.dim()))[::-1]
    return t.permute(order).contiguous().permute(order)


def apart(t: Tensor) -> Tensor:
    """The same elements, every second of a larger memory, not at its beginning."""
    made = torch.zeros([2 * n + 1 for n in t.shape], dtype=t.dtype)
    inner = made[tuple(slice(1, None, 2) for _ in t.shape)]
    return inner.copy_(t)


def repeated(t: Tensor) -> Tensor:
    """The first element along a dim, repeated with stride 0."""
    dim = next((d for d, n in enumerate(t.shape) if n > 1), None)
    return t if dim is None else t.narrow(dim, 0, 1).expand_as(t)


def rotated(t: Tensor) -> Tensor:
    """The same elements, the last dim outermost (channels-last for pictures)."""
    if t.dim() < 3:
        return apart(t)
    order = [0, *range(2, t.dim()), 1]
    back = sorted(range(t.dim()), key=order.__getitem__)
    return t.permute(order).contiguous().permute(back)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": turned,
    "apart": apart,
    "repeated": repeated,
    "rotated": rotated,
}


def laid_out(call: ops.Call, layout: str, *, first_only: bool = False) -> ops.Call:
    """The call with its strided tensors lying so; ``first_only``: the first of them alone."""
    left = [1 if first_only else 1 << 30]

    def change(t: Tensor) -> Tensor:
        if t.layout is not torch.strided or t.is_conj() or t.is_neg() or not t.numel() or not left[0]:
            return t
        left[0] -= 1
        return LAYOUTS[layout](t.detach()).requires_grad_(t.requires_grad)

    return each_tensor(call, change)  # type: ignore[no-any-return]
