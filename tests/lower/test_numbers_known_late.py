"""Numbers of operators that are known when the graph runs: floats that change from call to call."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import braze
from tests.helpers import logged


@pytest.fixture(autouse=True)
def _fresh():
    braze.reset()


ROWS = {
    "sum": lambda x, k: x.add(x.cos(), alpha=k),
    "sum with a number": lambda x, k: x.add(k, alpha=k),
    "difference": lambda x, k: torch.sub(x, x.cos(), alpha=k),
    "difference the other way": lambda x, k: torch.rsub(x, x.cos(), alpha=k),
    "clamp": lambda x, k: x.clamp(min=-k, max=k),
    "clamp from below": lambda x, k: x.clamp_min(k),
    "clamp from above": lambda x, k: torch.clamp_max(x, k),
    "lerp": lambda x, k: torch.lerp(x, x.cos(), k),
    "addcmul": lambda x, k: torch.addcmul(x, x.cos(), x.sin(), value=k),
    "addcdiv": lambda x, k: torch.addcdiv(x, x.cos(), x.exp(), value=k),
    "leaky relu": F.leaky_relu,
    "elu": F.elu,
    "celu": lambda x, k: F.celu(x, k or 1.0),
    "softplus": lambda x, k: F.softplus(x, k, 1.0 + k),
    "threshold": lambda x, k: F.threshold(x, k, -k),
    "hardtanh": lambda x, k: F.hardtanh(x, -abs(k), abs(k)),
    "hardshrink": F.hardshrink,
    "softshrink": lambda x, k: F.softshrink(x, abs(k)),
    "nan to number": lambda x, k: torch.nan_to_num(x / x.abs().floor(), k, k, -k),
    "huber loss": lambda x, k: F.huber_loss(x, x.cos(), delta=abs(k) + 1),
    "smooth loss": lambda x, k: F.smooth_l1_loss(x, x.cos(), beta=abs(k)),
}
NUMBERS = (0.3, 1.7, 0.0, 1.0)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 33, generator=generator, dtype=torch.float64) * 2
    x[0, :4] = torch.tensor([0.0, -0.0, 0.3, -1.7])
    return x.to(dtype)


#: how many of NUMBERS are compiled for -> the operators: where that is more than two, they decide by a number that is 0 or 1
MISSES = {
    4: ("celu",),
    3: ("sum", "difference", "difference the other way"),
}
#: as many as those, but by another number
ZERO_APART = ("lerp", "smooth loss", "nan to number")
MISSES[2] = tuple(name for name in ROWS if name not in {*MISSES[4], *MISSES[3], *ZERO_APART})
#: operators that decide alike make one graph; those that decide most, one each
GROUPS = [(2, MISSES[2]), (3, MISSES[3]), (3, ZERO_APART), *((4, (name,)) for name in MISSES[4])]


def with_gradients(program, count, x, k):
    """The program's results, each of numbers of its own, and the gradients of their sum."""
    given = [x.detach().clone().requires_grad_() for _ in range(count)]
    made, total = program(given, k)
    return list(zip(made, torch.autograd.grad(total, given), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("misses", "names"), GROUPS, ids=lambda value: ", ".join(value) if isinstance(value, tuple) else ""
)
def test_operators_compute_with_numbers_that_come_with_the_call(
    misses: int, names: tuple[str, ...], dtype: torch.dtype
) -> None:
    """Values and gradients are no further from float64 than eager's, and nothing runs through ATen."""
    functions, x = [ROWS[name] for name in names], numbers(dtype)

    def program(given: list[torch.Tensor], k: float) -> tuple[list[torch.Tensor], torch.Tensor]:
        made = [f(x, k) for f, x in zip(functions, given)]
        return [y.detach() for y in made], torch.stack([y.sum() for y in made]).sum()

    compiled = braze.compile(program)
    for k in NUMBERS:
        with logged() as said:
            have = with_gradients(compiled, len(names), x, k)
        assert not [text for text in said if "BZ3001" in text]
        eager, exact = (with_gradients(program, len(names), each, k) for each in (x, x.double()))
        for name, *results in zip(names, have, eager, exact, strict=True):
            for ours, theirs, wanted in zip(*results, strict=True):
                assert ours.dtype is dtype and ours.shape == theirs.shape
                room = (theirs.double() - wanted).abs() + 4 * torch.finfo(dtype).eps * (1 + wanted.abs())
                off = (ours.double() - wanted).abs()
                same = (ours.isnan() & theirs.isnan()) | (ours == theirs)
                assert (same | (off <= room)).all(), (name, k, (off - room).max())
    assert compiled.misses == misses


@pytest.mark.parametrize("k", [0.5, math.nan, math.inf, -math.inf, -0.0, 0.0])
def test_special_numbers_that_come_with_the_call_are_eagers(k: float) -> None:
    names = ["clamp", "clamp from below", "sum", "addcmul", "leaky relu", "threshold", "lerp"]
    x = [numbers(torch.float32) for _ in names]

    def program(x: list[torch.Tensor], k: float) -> list[torch.Tensor]:
        return [ROWS[name](each, k) for name, each in zip(names, x)]

    compiled = braze.compile(program)
    for each in (0.25, 0.75, k):
        for name, have, want in zip(names, compiled(x, each), program(x, each), strict=True):
            torch.testing.assert_close(
                have, want, equal_nan=True, msg=lambda said, name=name: f"{name}: {said}"
            )
            assert torch.equal(have.signbit() & (have == 0), want.signbit() & (want == 0)), name
    # lerp's is asked whether it is finite, and not 0
    assert compiled.misses == (2 if k and math.isfinite(k) else 3), "the number does not come with the call"


def test_what_is_no_number_may_be_a_zero_with_a_sign() -> None:
    x = torch.tensor([math.nan, 1.0])
    assert braze.compile(lambda x: torch.nan_to_num(x, nan=-0.0))(x).signbit().tolist() == [True, False]


def test_integers_are_scaled_by_a_number_that_changes() -> None:
    """A number made of sizes was taken for one that is known (BZ9025)."""

    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        return torch.addcmul(x, x, x, value=n), torch.rsub(x, n, alpha=n), torch.add(x, x, alpha=n)

    compiled = braze.compile(program, dynamic=True, options={"verify": 1})
    for n in (3, 5, -7):
        x = torch.arange(n, n + 3)
        assert all(map(torch.equal, compiled(x, n), program(x, n)))
