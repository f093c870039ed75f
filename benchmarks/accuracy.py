"""How far loss and gradients are from float64, in units of eager's distance, over several inputs.

Three things make the distances of one input a matter of chance. Where an input of a ReLU is within rounding of zero, it is
passed in one precision and not in the other, and the gradients of all layers before move by a thousandth: a flip, as
likely in eager. The loss, and what is proportional to it in all gradients at once, is off by one random number. And some
gradients are zero by symmetry (a bias of keys, a bias before batch norm), so that all of them is rounding.

So each model is measured on several inputs drawn from fixed seeds; flips are left out and counted. Of each output counts the median
of what is left, of the model the geometric mean over outputs, and beside it the output that compares worst, which by
chance is 1.3 or so, and up to 2 where it is one number. A kernel that is less exact is so on every input: it is no flip, and moves both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

#: inputs that are drawn for a model; of tokens, whose layers seldom flip, so many are enough where none has flipped
DRAWS, ENOUGH = 12, 4
#: a flip is so many times further off than other inputs are, and no further than this: what is, is wrong, once in all inputs or not
FLIP, WRONG = 30.0, 0.1
#: rounding the exact result is this far from it, in a root mean square: nothing is measured below
ROUNDING = 3e-8


def inputs_of(inputs: dict[str, Any], draw: int) -> dict[str, Any]:
    """Other inputs of the same kind, the same ones in every process; draw 0 is the inputs themselves."""
    generator = torch.Generator().manual_seed(draw)
    return {name: _drawn(x, generator) if draw else x for name, x in inputs.items()}


def _drawn(x: Any, generator: torch.Generator) -> Any:
    """Normal numbers for floats, tokens in another order; masks stay."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_floating_point():
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)
    if x.dtype is torch.bool or bool((x <= 1).all()):
        return x
    return x.flatten()[torch.randperm(x.numel(), generator=generator)].view(x.shape)


def enough(inputs: dict[str, Any], *sides: Sequence[Sequence[float]]) -> bool:
    """Whether a model has been measured on inputs enough, by the errors so far, by draw and output."""
    drawn = len(sides[0])
    floats = any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in inputs.values())
    if floats or drawn < ENOUGH:
        return drawn >= DRAWS
    columns = [column for side in sides for column in list(zip(*side, strict=True))[1:]]
    return drawn >= DRAWS or all(max(c) <= FLIP * max(min(c), ROUNDING) for c in columns)


def errors(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], half: bool = False) -> list[float]:
    """The root-mean-square difference of each output, relative to that output's own. ``half``: in bfloat16."""
    if len(found) != len(exact):
        return [math.inf] * len(exact)
    scales = [float(b.square().mean().sqrt()) for b in exact]
    # a gradient that is zero by symmetry is as exact as the others are large
    usual = statistics.median(scales) if scales else 0.0
    least = 8 * torch.finfo(torch.bfloat16 if half else torch.float32).eps * usual + 1e-30
    return [_error(a, b, max(scale, least)) for a, b, scale in zip(found, exact, scales, strict=True)]


def _error(found: torch.Tensor, exact: torch.Tensor, scale: float) -> float:
    if found.shape != exact.shape:
        return math.inf
    off = float((found.double() - exact).square().mean().sqrt()) / scale
    return math.inf if math.isnan(off) else off


def typical(draws: Sequence[float], may_flip: bool = True) -> tuple[float, list[int]]:
    """The median of an output's errors on the inputs that are no flips, and which are.

    A loss does not flip: what goes into a ReLU and out of it is next to zero either way.
    """
    usual = max(sorted(draws)[min(1, len(draws) - 1)], ROUNDING)
    odd = [k for k, e in enumerate(draws) if e > FLIP * usual]
    wrong = [draws[k] for k in odd if draws[k] > WRONG]
    if wrong:
        return max(wrong), []
    if not may_flip:
        odd = []
    return max(statistics.median(e for k, e in enumerate(draws) if k not in odd), ROUNDING), odd


def compared(
    ours: Sequence[Sequence[float]], eagers: Sequence[Sequence[float]], names: Sequence[str]
) -> dict[str, Any]:
    """Of errors by draw and output, the first of which is the loss: means, flips, and the output with the largest ratio."""
    (mine, my_flips), (theirs, their_flips) = (_columns(side) for side in (ours, eagers))
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    return {
        "error": statistics.geometric_mean(mine),
        "eager_error": statistics.geometric_mean(theirs),
        "worst_ratio": ratios[worst],
        "worst_output": names[worst],
        "outputs": len(names),
        "draws": len(ours),
        "flips": my_flips,
        "eager_flips": their_flips,
    }


def _columns(draws: Sequence[Sequence[float]]) -> tuple[list[float], int]:
    """Each output's typical error, and in how many draws an output flips."""
    found = [typical(column, may_flip=k > 0) for k, column in enumerate(zip(*draws, strict=True))]
    return [error for error, _ in found], len({k for _, flips in found for k in flips})
