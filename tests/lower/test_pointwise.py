"""Elementwise operators give eager's values, types, shapes and strides."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loops.interpret import interpret
from tests.lower.conftest import SPECIAL, check, lowered

UNARY_FLOAT = [
    "rsqrt", "sqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "neg", "abs", "sign",
    "floor", "ceil", "trunc", "round", "frac", "isnan", "isinf", "isfinite", "signbit", "square", "relu", "logical_not",
]  # fmt: skip
UNARY_INT = ["neg", "abs", "sign", "floor", "ceil", "round", "bitwise_not", "logical_not", "relu", "sqrt", "exp", "sin",
             "sigmoid", "reciprocal", "isnan", "square"]  # fmt: skip
BINARY_FLOAT = [
    "add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "maximum", "minimum", "fmax", "fmin", "pow",
    "atan2", "hypot", "copysign", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "xlogy",
    "heaviside", "logaddexp",
]  # fmt: skip
BINARY_INT = ["add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and",
              "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "heaviside"]  # fmt: skip
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
]  # fmt: skip


def pairs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of special values."""
    values = torch.tensor(SPECIAL, dtype=dtype)
    return values[:, None].expand(-1, len(SPECIAL)).contiguous(), values[None, :].expand(
        len(SPECIAL), -1
    ).contiguous()


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(*shape, generator=generator) * 3
    if dtype is torch.bool:
        return values > 0
    return values.abs().to(dtype) if dtype is torch.uint8 else values.to(dtype)


@pytest.mark.parametrize("name", UNARY_FLOAT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_unary_on_special_values(name: str, dtype: torch.dtype) -> None:
    """Signs, infinities and nan come out as in eager."""
    x = torch.tensor([*SPECIAL, 1e-8, 88.0, -88.0, 0.1, 2.5, -0.5], dtype=dtype)
    check(getattr(torch, name), x)


@pytest.mark.parametrize("name", UNARY_INT)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int8])
def test_unary_on_integers(name: str, dtype: torch.dtype) -> None:
    """Integers stay integers, or become floats, as in eager."""
    x = torch.tensor([0, 1, 2, 5, 100, 127], dtype=dtype)
    check(getattr(torch, name), x if dtype is torch.uint8 else torch.cat([x, -x]))


@pytest.mark.parametrize("name", BINARY_FLOAT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_binary_on_special_values(name: str, dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    if name in ("remainder", "fmod", "floor_divide"):
        # eager's vectorized fmod gives nan where the quotient overflows its integers
        keep = ~(
            (a.abs() == 1e30) | (b.abs() < 1e-20) & (b != 0) | (a.abs() > 1e20) & (b.abs() < 1e20)
        ).flatten()
        keep |= a.isinf().flatten()
        a, b = a.flatten()[keep], b.flatten()[keep]
    check(getattr(torch, name), a, b)


@pytest.mark.parametrize("name", BINARY_INT)
def test_binary_on_integers(name: str) -> None:
    a = torch.tensor([0, 1, -1, 7, -7, 2**31 - 1, -(2**31)], dtype=torch.int32)
    check(getattr(torch, name), a[:, None].contiguous(), a[None, :].contiguous())


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_promotion_of_tensors(a: torch.dtype, b: torch.dtype) -> None:
    """The common type of two tensors, one of them without dimensions, and of a number."""
    x, y = sample(a, 4), sample(b, 4)
    check(torch.add, x, y)
    check(torch.add, x, y[0])
    check(torch.eq, x[0], y[1])
    check(torch.mul, x, y)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_what_the_common_type_cannot_hold_is_no_truth(name: str) -> None:
    """A number without dims counts as what it is in the type of a tensor with some."""
    fn = getattr(torch, name)
    for number, others in (
        (torch.tensor(1e-40), sample(torch.float16, 9)),
        (torch.tensor(1e-300, dtype=torch.float64), torch.zeros(9)),
        (torch.tensor(256), sample(torch.uint8, 9)),
        (torch.tensor(0.5), sample(torch.bool, 9)),
    ):
        check(fn, number, others)
        check(fn, others, number)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [True, 2, -1, 2.5])
def test_promotion_of_numbers(dtype: torch.dtype, number: float) -> None:
    x = sample(dtype, 5)
    check(lambda v: v + number, x)
    check(lambda v: v * number, x)
    check(lambda v: v / number, x)
    check(lambda v: v > number, x)
    check(lambda v: torch.where(v > 0, v, number), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_integer_overflow_wraps(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, info.max - 1], dtype=dtype)
    check(lambda v: v + v, x)
    check(lambda v: v * 3, x)
    check(lambda v: v - 5, x)


@pytest.mark.parametrize("divisor", [3, -3, 7, 1, 2])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_integer_division_by_a_number(name: str, divisor: int) -> None:
    """Rounding follows the signs as in eager."""
    x = torch.arange(-10, 11)
    check(lambda v: getattr(torch, name)(v, divisor), x)
    check(lambda v: torch.div(v, divisor, rounding_mode="trunc"), x)
    check(lambda v: torch.div(v, divisor, rounding_mode="floor"), x)


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_division_of_floats_by_rounding_mode(dtype: torch.dtype, mode: str | None) -> None:
    """Of either sign, by zeros and infinities, by multiples and by tenths, whose quotients lie next to integers."""
    a, b = pairs(dtype)
    keep = (a.isinf() | (a.abs() < 1e20)) & ((b == 0) | (b.abs() > 1e-3))
    check(lambda a, b: torch.div(a, b, rounding_mode=mode), a[keep], b[keep])
    tenths = torch.arange(-60, 61, dtype=torch.float64).mul(0.1).to(dtype)
    for divisor in (0.1, -0.1, 0.3, 1.0, -2, 7):
        check(lambda v, by=divisor: torch.div(v, by, rounding_mode=mode), tenths)
        check(lambda v, by=divisor: torch.div(v, v.new_full((), by), rounding_mode=mode), tenths)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [torch.tensor(0.1), torch.tensor(0.1).double(), torch.tensor(2049), 0.1])
def test_numbers_that_a_half_type_would_round(dtype: torch.dtype, number: torch.Tensor | float) -> None:
    """Products and quotients take them as they are, also those in tensors, where they stand second."""
    x = sample(dtype, 300)
    rounded = [functools.partial(torch.div, rounding_mode=mode) for mode in ("trunc", "floor")]
    ops: list[Callable[..., torch.Tensor]] = [torch.mul, torch.div, torch.add, torch.sub, *rounded]
    for fn in ops:
        if isinstance(number, float):
            check(lambda v, fn=fn: fn(v, number), x, exact=True)
        else:
            check(fn, x, number, exact=True)
            check(fn, x[0], number, exact=True)
            if fn not in rounded:  # of tensors eager rounds what a half type has to round before it cuts
                check(fn, number, x, exact=True)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
@pytest.mark.parametrize("divisor", [0.1, -0.1, 0.3, -2, 7])
def test_remainders_of_tenths(name: str, divisor: float) -> None:
    """Where the quotient lies next to an integer, and where nothing is left, of either sign."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        tenths = torch.arange(-60, 61, dtype=torch.float64).mul(0.1).to(dtype)
        check(lambda v: getattr(torch, name)(v, divisor), tenths)
        check(lambda v: getattr(torch, name)(v, v.new_full((), divisor)), tenths)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_integer_division_by_the_number_zero_is_eagers_error(name: str) -> None:
    for divisor in (0, False):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            check(
                lambda v, by=divisor: getattr(torch, name)(v, by),
                torch.arange(3),
                allow=[f"aten.{name}.{'default' if name == 'floor_divide' else 'Scalar'}"],
            )


def test_integer_division_by_a_tensor_stays_eager() -> None:
    """It may have to raise ZeroDivisionError, so ATen does it."""
    x, y = torch.arange(-5, 6), torch.tensor(3)
    check(torch.floor_divide, x, y, allow=["aten.floor_divide.default"])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        check(torch.floor_divide, x, torch.tensor(0), allow=["aten.floor_divide.default"])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, -3])
def test_float_powers(exponent: float) -> None:
    check(lambda v: torch.pow(v, exponent), torch.tensor(SPECIAL))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5])
def test_integer_powers(exponent: int) -> None:
    check(lambda v: v**exponent, torch.arange(-5, 6))
    check(lambda v: v**exponent, torch.arange(-5, 6, dtype=torch.int8) * 20)


def test_number_to_the_power_of_a_tensor() -> None:
    check(lambda v: 2**v, torch.tensor(SPECIAL))


ACTIVATIONS = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "relu6": torch.nn.functional.relu6,
    "hardswish": torch.nn.functional.hardswish,
    "hardsigmoid": torch.nn.functional.hardsigmoid,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.2),
    "elu": lambda x: torch.nn.functional.elu(x, 0.7),
    "selu": torch.nn.functional.selu,
    "celu": lambda x: torch.nn.functional.celu(x, 1.3),
    "softplus": lambda x: torch.nn.functional.softplus(x, 2.0, 10.0),
    "mish": torch.nn.functional.mish,
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -2.0, 3.0),
    "hardshrink": torch.nn.functional.hardshrink,
    "softshrink": torch.nn.functional.softshrink,
    "threshold": lambda x: torch.nn.functional.threshold(x, 0.1, 20.0),
    "nan_to_num": torch.nan_to_num,
    "nan_to_num_given": lambda x: torch.nan_to_num(x, 1.5, 2.5, -3.5),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "log_sigmoid": torch.nn.functional.logsigmoid,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_activations(name: str, dtype: torch.dtype) -> None:
    values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        math.inf,
        math.nan,
        0.5,
        -2.5,
        3.5,
        1e-4,
        30.0,
        -30.0,
        *torch.linspace(-6, 6, 41).tolist(),
    ]
    if name not in ("silu", "mish", "hardswish", "gelu", "gelu_tanh"):
        values.append(-math.inf)
    if name == "gelu":
        # eager's vectorized erf makes nan of inf
        values.remove(math.inf)
    allow = ["aten.log_sigmoid_forward.default"] if name == "log_sigmoid" else []
    check(ACTIVATIONS[name], torch.tensor(values, dtype=dtype), allow=allow)


def test_clamp_by_tensors_keeps_nan() -> None:
    x = torch.tensor(SPECIAL)
    low, high = torch.tensor([0.0] * 6 + [math.nan] + [-1.0] * 5), torch.full((12,), 2.0)
    check(torch.clamp, x, low, high)


def test_bounds_of_truth_values_are_atens() -> None:
    """It refuses them, but for one tensor."""
    given = torch.tensor([True, False, True]), torch.tensor([False, False, True])
    for bounded in (
        lambda a, b: a.clamp_min(True),
        lambda a, b: a.clamp_max(False),
        lambda a, b: a.clamp(True, True),
        lambda a, b: a.clamp(b, b),
    ):
        with pytest.raises(NotImplementedError):
            interpret(lowered(bounded, given), given)
    check(lambda a, b: a.clamp(0, 1), *given, exact=True)


COMPLEX = {
    "aten.eq.Scalar": lambda x: x == 1j,
    "aten.ne.Scalar": lambda x: x != 1 + 0j,
    "aten.add.Tensor": lambda x: x + 1j,
    "aten.mul.Tensor": lambda x: x * 1j,
    "aten.any.dim": lambda x: torch.view_as_complex(x).any(0),
    "aten.all.default": lambda x: torch.view_as_complex(x).all(),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_atens(name: str) -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    made = ["aten.view_as_complex.default"] if name.startswith(("aten.any", "aten.all")) else []
    check(COMPLEX[name], x, allow=[name, *made], exact=True)


def test_chains_round_after_each_operator() -> None:
    """bfloat16 results equal eager's bit for bit: each operator rounds."""
    x, y = sample(torch.bfloat16, 64), sample(torch.bfloat16, 64)
    check(lambda a, b: ((a + b) * a - b) * 1.1 + 0.3, x, y, exact=True)
    check(lambda a, b: torch.where(a > b, a * b, a - b).float() * b, x, y, exact=True)


def test_where_moves_values_of_any_type() -> None:
    c = torch.tensor([True, False, True])
    for dtype in DTYPES:
        check(torch.where, c, sample(dtype, 3), sample(dtype, 3).flip(0), exact=True)
    check(lambda a, b: a.masked_fill(b, -math.inf), sample(torch.bfloat16, 3), c)


def test_lerp_and_addcmul() -> None:
    a, b, c = sample(torch.float32, 3, 4), sample(torch.float32, 3, 4).flip(0), sample(torch.float32, 4)
    check(lambda x, y: torch.lerp(x, y, 0.3), a, b)
    check(torch.lerp, a, b, c)
    check(lambda x, y, z: torch.addcmul(x, y, z, value=0.5), a, b, c)
    check(lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), a, b, c)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_number_to_go_by_between_halves_is_not_rounded_to_one(dtype: torch.dtype) -> None:
    x, y = sample(dtype, 64), sample(dtype, 64).flip(0)
    check(lambda a, b: torch.lerp(a, b, 0.3), x, y, exact=True)
    check(lambda a, b: torch.lerp(a, b, 0.9), x, y, exact=True)
    check(torch.lerp, x, y, torch.tensor(0.3, dtype=dtype), exact=True)


def test_shifts() -> None:
    x = torch.arange(-8, 8, dtype=torch.int32)
    check(lambda v: (v << 3) + (v >> 1), x)


@st.composite
def broadcastable(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    other = [n if draw(st.booleans()) else 1 for n in shape][draw(st.integers(0, len(shape) - 1)) :]
    a, b = torch.randn(shape), torch.randn(other)
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        a = torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
    if draw(st.booleans()) and shape[-1]:
        a = torch.randn([*shape[:-1], shape[-1] * 2 + 1])[..., 1::2]
    return a, b


@settings(max_examples=60, deadline=None)
@given(broadcastable())
def test_broadcasting_and_layouts(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Any strides in, eager's strides out."""
    check(lambda a, b: (a + b) * a, *tensors)


def test_expanded_and_offset_inputs() -> None:
    """Stride 0 and data that starts inside its storage."""
    base = torch.randn(10)
    check(lambda a, b: a * b, base[3:7].expand(3, 4), base[1:2].expand(3, 4))


def test_channels_last_stays() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda a: a.relu() + 1, x)


def test_same_value_read_by_two_is_stored_once() -> None:
    program = check(lambda a: (a.exp().sum(0), a.exp() * 2), torch.randn(3, 4))
    assert len(program.steps) == 2
    program = check(lambda a: (lambda e: (e.sum(0), e * 2))(a.exp()), torch.randn(3, 4))
    assert len(program.steps) == 3


def test_long_chains_are_cut() -> None:
    """A chain longer than Python's stack is stored in between."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(400):
            x = x + 1
        return x

    def views(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        for _ in range(401):
            x = x.t()
        return x * 2

    assert len(check(chain, torch.randn(3), exact=True).steps) == 10
    assert len(check(views, torch.randn(3, 4), exact=True).steps) == 2


def test_a_value_one_step_from_memory_is_not_stored_for_its_readers() -> None:
    """x - m is read by two sums of other shapes: each computes it; x - y, which reads two large values, is stored."""
    x, m = torch.randn(8, 64), torch.randn(8, 1)

    def readers(centred: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return centred.sum(0), (centred * centred).sum(1)

    near = check(lambda x, m: readers(x - m), x, m)
    assert not [b for b in near.buffers if len(b.sizes) == 2 and b.name.startswith("buf")]
    far = check(lambda x, y: readers(x - y), x, torch.randn(8, 64))
    assert [b for b in far.buffers if len(b.sizes) == 2 and b.name.startswith("buf")]
