"""Random tensor programs, compiled and eager: mixed types, broadcasting, reductions, windows on memory, writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import braze
from tests.end_to_end import ops

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]  # fmt: skip

Step = Callable[[list[torch.Tensor]], torch.Tensor]


def number(values: list[torch.Tensor], k: int) -> torch.Tensor:
    return values[k % len(values)]


def window(x: torch.Tensor, kind: int) -> torch.Tensor:
    """A view: shifted, with steps, turned, repeated in place."""
    if x.dim() == 0:
        return x.expand(3)
    makes = [
        lambda: x[1:] if x.shape[0] > 1 else x,
        lambda: x[..., ::2],
        lambda: x.transpose(0, -1),
        lambda: x.narrow(-1, x.shape[-1] - 1, 1).expand(x.shape),
        lambda: x.unsqueeze(0),
        lambda: x.flip(-1),
        lambda: x.select(0, 0),
    ]
    return makes[kind % len(makes)]()


def arithmetic(a: torch.Tensor, b: torch.Tensor, kind: int) -> torch.Tensor:
    makes = [
        lambda: a + b,
        lambda: a * b,
        lambda: torch.maximum(a, b),
        lambda: torch.where(a > b, a, b),
        lambda: (a <= b) | (a == 1),
        lambda: a * 2 + 1.5,
        lambda: a.float().tanh().to(b.dtype),
        lambda: torch.cat([a.reshape(-1), b.reshape(-1)]),
    ]
    return makes[kind % len(makes)]()


def folded(x: torch.Tensor, kind: int) -> torch.Tensor:
    dim = -1 if x.dim() else 0
    makes = [
        lambda: x.sum(dim),
        lambda: x.amax(dim, keepdim=True),
        lambda: x.double().mean(dim, keepdim=True),
        lambda: (x != 0).any(dim),
        lambda: x.float().softmax(dim),
        lambda: x.to(torch.int64).cumsum(dim),
        lambda: x.sum(),
    ]
    return makes[kind % len(makes)]()


def written(x: torch.Tensor, y: torch.Tensor, kind: int) -> torch.Tensor:
    """A copy (or an argument itself) of which a window is written."""
    x = x.clone() if kind % 2 else x
    part = window(x, [0, 1, 2, 4][kind // 2 % 4])
    if kind % 3 == 0:
        part.fill_(1)
    elif kind % 3 == 1:
        part.copy_(y.reshape(-1)[0])
    else:
        part.mul_(2) if x.dtype is not torch.bool else part.logical_not_()
    return x


def program(steps: list[tuple[int, int, int, int]]) -> Callable[..., list[torch.Tensor]]:
    """A function that goes through the steps; those that eager refuses were left out before."""

    def run(values: list[torch.Tensor]) -> list[torch.Tensor]:
        values = list(values)
        for family, kind, i, j in steps:
            values.append(one_step(values, family, kind, i, j))
        return values

    return run


def one_step(values: list[torch.Tensor], family: int, kind: int, i: int, j: int) -> torch.Tensor:
    a, b = number(values, i), number(values, j)
    if family == 0:
        return window(a, kind)
    if family == 1:
        return folded(a, kind)
    if family == 2:
        return written(a, b, kind)
    return arithmetic(a, b, kind)


@st.composite
def inputs(draw: st.DrawFn) -> list[torch.Tensor]:
    found = []
    for k in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from([(4, 5), (5,), (1, 5), (4, 1), (), (2, 4, 5), (0, 5), (17,)]))
        dtype = draw(st.sampled_from(DTYPES))
        torch.manual_seed(k)
        x = torch.randint(-3, 4, shape) if dtype is not torch.uint8 else torch.randint(0, 4, shape)
        x = (x.double() / 2).to(dtype) if dtype.is_floating_point else x.to(dtype)
        if x.dim() and draw(st.booleans()):
            x = torch.stack([x, x])[1]  # starts inside its storage
        found.append(x)
    return found


steps = st.tuples(st.integers(0, 5), st.integers(0, 23), st.integers(0, 9), st.integers(0, 9))


def allowed(given_: list[torch.Tensor], wanted: list[tuple[int, int, int, int]]) -> list[Any]:
    """The steps that eager takes one after another, on values of moderate size."""
    kept: list[Any] = []
    for step in wanted:
        try:
            with torch.no_grad():
                last = program([*kept, step])(copy.deepcopy(given_))[-1]
        except (RuntimeError, IndexError):
            continue
        if last.numel() < 500:
            kept.append(step)
    return kept


@settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(inputs(), st.lists(steps, min_size=1, max_size=9))
def test_compiled_is_eager(values: list[torch.Tensor], wanted: list[tuple[int, int, int, int]]) -> None:
    run = program(allowed(values, wanted))
    braze.reset()
    with torch.no_grad():
        mine, theirs = copy.deepcopy(values), copy.deepcopy(values)
        compiled = braze.compile(run, options={"verify": 2})
        ours, eager = compiled(mine), run(theirs)
    room = {torch.bfloat16: 0.05, torch.float16: 0.01}
    for a, b in zip([*ours, *mine], [*eager, *theirs], strict=True):
        assert (a.dtype, a.shape, ops.strides(a)) == (b.dtype, b.shape, ops.strides(b))
        torch.testing.assert_close(
            a, b, rtol=room.get(b.dtype, 1e-4), atol=room.get(b.dtype, 1e-4), equal_nan=True
        )
