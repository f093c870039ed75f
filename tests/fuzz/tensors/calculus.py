"""What programs of derivatives and control flow name: in eager by Python's own branches and loops, which PyTorch's operators would compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops import scan as torch_scan

import braze

Tensor = torch.Tensor


class Cube(torch.autograd.Function):
    """A function with a derivative of its own, which has one, in both modes, and under ``vmap``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return tangent * 3 * x * x


class Clipped(torch.autograd.Function):
    """The same numbers, whose gradient is held between -1 and 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clamp(-1, 1)


def cond(test: Any, true: Callable[..., Any], false: Callable[..., Any], operands: Sequence[Tensor]) -> Any:
    """``torch.cond`` where it is captured."""
    if braze.is_compiling():
        return torch.cond(test, true, false, operands)
    return (true if test else false)(*operands)


def while_loop(
    test: Callable[..., Any], body: Callable[..., Any], carried: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """``torch.while_loop`` where it is captured."""
    if braze.is_compiling():
        return torch.while_loop(test, body, carried)
    with torch.no_grad():  # asked of a loop without rounds, too
        as_before(body(*carried), carried)
    while test(*carried):
        carried = body(*carried)
    return tuple(t.clone() for t in carried)


def as_before(following: Sequence[Tensor], carried: Sequence[Tensor]) -> None:
    """What PyTorch's loops ask of values that are carried from round to round."""
    for new, old in zip(following, carried, strict=True):
        if (new.dtype, new.shape, new.stride()) != (old.dtype, old.shape, old.stride()):
            raise ValueError("a value of another kind is carried")


def scan(
    step: Callable[..., tuple[Tensor, Tensor]], first: Tensor, rows: Tensor, reverse: bool = False
) -> Any:
    """``torch.scan`` along the first dim where it is captured."""
    if braze.is_compiling():
        return torch_scan(step, first, rows, dim=0, reverse=reverse)
    made = []
    for row in reversed(rows.unbind()) if reverse else rows.unbind():
        following, result = step(first, row)
        as_before([following], [first])
        first = following
        made.append(result)
    return first, torch.stack(made[::-1] if reverse else made)


def leaf(t: Tensor) -> Tensor:
    """The numbers, with no history, to be differentiated by."""
    return t.detach().requires_grad_()


def mapped(t: Tensor, function: Callable[..., Any], **how: Any) -> Any:
    """A function under ``vmap``."""
    return torch.func.vmap(function, **how)(t)
