"""Kernels on a GPU give eager's numbers where a number is special: signs of zeros, infinities, huge quotients, doubles."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import braze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

INF, NAN = torch.inf, torch.nan
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.4, -0.4, -0.5, 2.5, 7.0, -7.0, 1e-8, 1e30, -3e38, INF, -INF, NAN]

#: name -> function of one tensor, which gives eager's numbers to the bit
EXACT = {
    "neg": lambda x: -x,
    "a negative zero": lambda x: x * -0.0,
    "round": torch.round,
    "trunc": torch.trunc,
    "reciprocal": torch.reciprocal,
    "remainder": lambda x: x.remainder(0.75),
    "fmod": lambda x: x.fmod(-3.0),
    "floor_divide": lambda x: torch.div(x.nan_to_num(1.0, 1.0, 1.0), 0.3, rounding_mode="floor"),
    "deviation of equal numbers": lambda x: torch.full_like(x, 2.75).view(-1, 4).std(0),
    "argmax": lambda x: x.argmax(),
    "bfloat16": lambda x: -(x.bfloat16()),
}
#: the same within some units in the last place
CLOSE = {
    "tanh": torch.tanh,
    "exp": lambda x: torch.exp(x * 11),
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x.abs()),
    "sigmoid": torch.sigmoid,
    "softmax with a masked half": lambda x: torch.softmax(
        torch.cat([x.nan_to_num(1.0, 1.0, 1.0), torch.full((9000,), -INF, device="cuda")]), 0
    ),
}


def same(ours, theirs):
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
    assert torch.equal(ours.signbit() & ~ours.isnan(), theirs.signbit() & ~theirs.isnan())


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_to_the_bit(name, dtype):
    x = torch.tensor(SPECIAL, dtype=dtype, device="cuda")
    same(braze.compile(EXACT[name])(x), EXACT[name](x))


@pytest.mark.parametrize("name", CLOSE)
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_to_the_last_digits(name, dtype, digits):
    x = torch.tensor([*SPECIAL, 0.1, -0.3, 0.9, 3.3], dtype=dtype, device="cuda")
    torch.testing.assert_close(
        braze.compile(CLOSE[name])(x), CLOSE[name](x), rtol=digits, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8])
def test_shifts_by_more_than_a_number_has_bits(dtype):
    a = torch.tensor([-128, -7, -1, 0, 1, 2, 100, 127], device="cuda").to(dtype).repeat(5)
    b = torch.tensor([0, 1, 7, 16, 64], device="cuda").to(dtype).repeat_interleave(8)
    both = lambda a, b: (a << b, a >> b)
    for ours, theirs in zip(braze.compile(both)(a, b), both(a, b)):
        assert torch.equal(ours, theirs)


def test_the_largest_of_whole_numbers_that_floats_do_not_tell_apart():
    x = torch.tensor([[2**53, 2**53 + 1, 2**53], [1 - 2**60, -(2**60), -(2**60) - 1]], device="cuda")
    assert torch.equal(braze.compile(lambda x: x.argmax(1))(x), x.argmax(1))


def test_log_sigmoid_and_its_gradient():
    x = torch.randn(64, device="cuda", requires_grad=True)
    y = x.detach().clone().requires_grad_()
    braze.compile(lambda x: F.logsigmoid(x).sum())(x).backward()
    F.logsigmoid(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("to", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_as_integers(to, dtype):
    """The low bits where a number does not fit."""
    numbers = [-1.5, -128.5, -129.0, 200.0, 256.0, 300.0, 32768.0, -32769.0, 65537.0, 1e6, -1e6, 2.0**31, 2.0**33 + 4096, -(2.0**40), INF, -INF, NAN]  # fmt: skip
    x = torch.tensor(numbers, dtype=torch.float64, device="cuda").to(dtype)
    f = lambda x: (x * 1).to(to)
    assert torch.equal(braze.compile(f)(x), f(x))


def test_denormal_numbers_are_no_zeros():
    x = torch.tensor([1e-40, -1e-40, 3e-39, -2e-45, 1.0], device="cuda")
    exact = lambda x: (x.ceil(), x.floor(), x.remainder(-2.0), torch.fmod(x + 1, 1e-39), x.rsqrt().isnan())
    for ours, theirs in zip(braze.compile(exact)(x), exact(x)):
        same(ours, theirs)
    close = lambda x: ((x.abs().log() - 1).exp(), x.sin(), x.atan2(x * 0), x.softmax(0), torch.exp(x - 95))
    for ours, theirs in zip(braze.compile(close)(x), close(x)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=3e-45)


def test_sums_of_nothing_but_negative_zeros_are_zeros():
    x = torch.full((4, 16), -0.0, device="cuda")
    one = lambda x: (x.unsqueeze(1).sum(1), x.unsqueeze(-1).mean(-1), x[:1].sum(0), x[:, :1].nansum(1))
    f = lambda x: (
        *one(x),
        x.sum(),
        x.sum(0),
        x.mean(1),
        *torch.var_mean(x, 1),
        x.softmax(1) * x.sum(1, True),
    )
    for ours, theirs in zip(braze.compile(f)(x), f(x)):
        same(ours, theirs)


def test_parts_written_one_after_the_other_are_compiled():
    """Each part doubled what the kernel has; of 33 no compile ended."""

    def f(x):
        v = x * 3
        for part in v.split(1):
            part.mul_(2)
        return v

    x = torch.randn(33, device="cuda")
    assert torch.equal(braze.compile(f)(x), f(x))
