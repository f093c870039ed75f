"""What rounding at random asks of operators and their numbers: where float64 loses some too, and what eager's kernels make by place."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def in_digits(value: Tensor, digits: int) -> Tensor:
    """Doubles rounded to fewer binary digits."""
    raised = value.double() * (2.0 ** (53 - digits) + 1)
    return raised - (raised - value)


def beside_infinities(made: Tensor, args: Any, other: float) -> None:
    """In place, another number where the zeros around what is convolved meet a weight that is not finite.

    Their product is no number, but some kernels pass over what is around: of one convolution eager takes one or another by type and layout.
    What the other products make may be infinite, or not.
    """
    given, weight, _, stride, padding, dilation, transposed, _, groups = args
    odd = (~weight.detach().isfinite()).double()
    if transposed or not any(padding) or not odd.any():
        return
    inside = torch.convolution(
        torch.ones_like(given[:1], dtype=odd.dtype), odd, None, stride, padding, dilation, False, [0], groups
    )
    outside = inside < odd.flatten(1).sum(1).view(-1, *(1 for _ in padding))
    put(made.detach(), made.detach().masked_fill(outside & made.detach().isnan(), other))


def sizes_of(numbers: Tensor) -> Tensor:
    """Numbers without their signs: of complex ones each part is a number, that a view may take."""
    parts = (numbers.real, numbers.imag) if numbers.is_complex() else (numbers,)
    sizes = [part.abs() for part in parts]
    return torch.complex(*sizes) if numbers.is_complex() else sizes[0]


def mass_of(summand: Any) -> Any:
    """How large what is added up may be on the way: sums of sums, as of gradients, may be taken in any order."""
    if not isinstance(summand, Tensor):
        return abs(summand)
    known = summand.__dict__.get("mass")
    return summand.detach().double().abs() if known is None else known


def lost_in(args: Any) -> Tensor:
    """Where a sum of two is not exact in float64: a summand that is lost in the other comes back in another order."""
    a, b = (x if isinstance(x, Tensor) else torch.tensor(x) for x in args[:2])
    a, b = a.detach().double(), b.detach().double()
    made = a + b
    other = made - a
    return ((a - (made - other)) + (b - other)) != 0


def lost_beside(func: Any, args: Any, kwargs: Any, size: Tensor) -> Tensor:
    """Where numbers are added up beside which float64 has no place for others: of ranges of 32 binary digits, two that have one between them."""

    def meets(i: int, given: Tensor) -> Tensor:
        return tensors(func(*absolute([*args[:i], given, *args[i + 1 :]]), **kwargs))[0] > 0

    found = torch.zeros(size.shape, dtype=torch.bool)
    for i, given in enumerate(args):
        if not is_float(given) or not given.numel():
            continue
        given = given.detach()
        there = (given != 0) & given.isfinite()
        ranges = torch.frexp(given).exponent // 32
        present = sorted({*ranges[there].tolist()}, reverse=True)
        if not present or present[0] < present[-1] + 2:
            continue
        open_ = ~meets(i, torch.zeros_like(given))
        highest = torch.full(size.shape, present[-1])
        for each in present:
            here = open_ & meets(i, given.masked_fill(~there | (ranges != each), 0.0))
            found |= here & (highest >= each + 2)
            highest = torch.where(here, highest.clamp(min=each), highest)
    return found


def in_vectors(func: Any, args: Any, kwargs: Any, whether: bool) -> Any:
    """The result of an elementwise operator, all of it in vectors, or none of it."""

    def laid_out(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if whether:
            return value.expand(64, *value.shape).contiguous()
        return torch.stack([value, value], -1)[..., 0]

    made = func(*map(laid_out, args), **kwargs)
    return made[0] if whether else made


def put(value: Tensor, numbers: Tensor) -> None:
    """Write numbers over a result, if its elements have places of their own."""
    if all(stride or n == 1 for stride, n in zip(value.stride(), value.shape, strict=True)):
        value.copy_(numbers)


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def tensors(made: Any) -> list[Tensor]:
    made = made if isinstance(made, (tuple, list)) else (made,)
    return [value for value in made if isinstance(value, Tensor)]


def absolute(args: Any) -> Any:
    """Arguments without their signs."""
    return [value.abs() if is_float(value) else value for value in args]
