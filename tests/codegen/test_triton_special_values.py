"""Operations in Triton kernels on special values: signs of zeros, infinities, huge quotients, odd shifts, doubles; as eager's."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from braze.loops.ir import Axis, BufferKind, DType, LoopNest, Node, Op, ReduceKind, Store
from braze.schedule.facts.records import Group, GroupKind
from braze.symbolic.expr import as_expr, axis_symbol
from tests.codegen.libdevice import libdevice  # noqa: F401
from tests.codegen.test_triton import row_kernel, run
from tests.codegen.triton_groups import F32, buffer

pytestmark = pytest.mark.usefixtures("libdevice")

INF, NAN = torch.inf, torch.nan
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.4, -0.4, -0.5, 2.5, 7.0, -7.0, 1e-8, -1e-30, 1e30, -3e38, INF, -INF, NAN]
)
TORCH = {
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.I64: torch.int64,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.U8: torch.uint8,
}


def pointwise(body, dtype, tmp_path, *inputs):
    """out[i] = body(a[i], b[i], ...) in one kernel."""
    n = inputs[0].numel()
    i = axis_symbol("i", n)
    reads = [Node(Op.LOAD, dtype, (), (name, i)) for name, _ in zip("abc", inputs)]
    value = body(*reads)
    axes = (Axis(i, as_expr(n)),)
    nest = LoopNest("n", axes, (), (), (Store("out", i, value),), "cuda:0", ("f",))
    out = torch.zeros(n, dtype=TORCH[value.dtype])
    buffers = [buffer(name, (n,), dtype) for name, _ in zip("abc", inputs)]
    buffers.append(buffer("out", (n,), value.dtype, BufferKind.OUTPUT))
    group = Group("triton_poi_g", GroupKind.POINTWISE, (nest,), axes, device="cuda:0")
    run(group, buffers, {**dict(zip("abc", inputs)), "out": out}, tmp_path)
    return out


def same(ours, theirs):
    """Equal to the bit, but for the kind of nan."""
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
    assert torch.equal(ours.signbit() & ~ours.isnan(), theirs.signbit() & ~theirs.isnan())


@pytest.mark.parametrize(
    ("op", "eager"),
    [
        (Op.NEG, torch.neg),
        (Op.ROUND, torch.round),
        (Op.TRUNC, torch.trunc),
        (Op.RECIPROCAL, torch.reciprocal),
        (Op.ABS, torch.abs),
    ],
)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_one_operand_to_the_bit(op, eager, dtype, tmp_path):
    x = SPECIAL.to(TORCH[dtype])
    same(pointwise(lambda a: Node(op, dtype, (a,)), dtype, tmp_path, x), eager(x))


@pytest.mark.parametrize("to", [DType.U8, DType.I8, DType.I16])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_floats_as_narrow_integers_keep_the_low_bits(to, dtype, tmp_path):
    """The nearest number that there is, as the conversion by itself gives on a GPU, is another one."""
    x = torch.tensor(
        [-1.5, -128.5, -129.0, 200.0, 255.0, 256.0, 300.0, 32768.0, -32769.0, 65537.0, 1e6, -1e6, -0.4]
    ).to(TORCH[dtype])
    same(pointwise(lambda a: Node(Op.CAST, to, (a,)), dtype, tmp_path, x).double(), x.to(TORCH[to]).double())


def remainder(a, b):
    """With the divisor's sign; a zero has the dividend's, as in ATen."""
    left = np.fmod(a, b)
    return np.where((left != 0) & ((left < 0) != (b < 0)), left + b, left)


def by_numpy(function):
    """A function of numpy's: ATen's vectors give nan where a quotient is huge."""
    return lambda a, b: torch.from_numpy(function(a.numpy(), b.numpy()))


@pytest.mark.parametrize(
    ("op", "eager"),
    [
        (Op.REMAINDER, by_numpy(remainder)),
        (Op.FMOD, by_numpy(np.fmod)),
        (Op.TRUNCDIV, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
        (Op.FLOORDIV, by_numpy(np.floor_divide)),
        (Op.DIV, torch.div),
    ],
)
def test_quotients_to_the_bit(op, eager, tmp_path):
    a, b = (t.reshape(-1) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    if op is not Op.DIV:  # what is not finite differs between eager's own devices
        kept = a.isfinite() & b.isfinite() & (b != 0)
        a, b = a[kept].contiguous(), b[kept].contiguous()
    same(pointwise(lambda x, y: Node(op, F32, (x, y)), F32, tmp_path, a, b), eager(a, b))


@pytest.mark.parametrize(
    ("op", "eager"), [(Op.EXP, torch.exp), (Op.LOG1P, torch.log1p), (Op.TANH, torch.tanh)]
)
def test_singles_keep_their_digits_where_they_are_large_or_small(op, eager, tmp_path):
    x = torch.cat([SPECIAL, torch.linspace(-87, 88, 40)])
    x = x.abs() if op is Op.LOG1P else x
    ours = pointwise(lambda a: Node(op, F32, (a,)), F32, tmp_path, x)
    # the interpreter of Triton 3.6 rounds a fused product and sum twice; tests/gpu looks at what a GPU gives
    torch.testing.assert_close(ours, eager(x), rtol=5e-6 if op is Op.EXP else 2e-6, atol=0, equal_nan=True)
    same(ours[:2], eager(x)[:2])


def test_a_negative_zero_stays_one(tmp_path):
    minus = pointwise(lambda a: Node(Op.MUL, F32, (a, Node(Op.CONST, F32, (), -0.0))), F32, tmp_path, SPECIAL)
    same(minus, SPECIAL * -0.0)


@pytest.mark.parametrize("op", [Op.TANH, Op.EXPM1, Op.LOG1P, Op.SIGMOID])
def test_doubles_have_the_digits_of_doubles(op, tmp_path):
    x = torch.linspace(-0.9, 3, 50, dtype=torch.float64)
    eager = {Op.TANH: torch.tanh, Op.EXPM1: torch.expm1, Op.LOG1P: torch.log1p, Op.SIGMOID: torch.sigmoid}[op]
    ours = pointwise(lambda a: Node(op, DType.F64, (a,)), DType.F64, tmp_path, x)
    torch.testing.assert_close(ours, eager(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("op", "eager"), [(Op.SHL, torch.bitwise_left_shift), (Op.SHR, torch.bitwise_right_shift)]
)
@pytest.mark.parametrize("dtype", [DType.I64, DType.I8, DType.U8])
def test_shifts_by_more_than_a_number_has_bits(op, eager, dtype, tmp_path):
    a = torch.tensor([-128, -7, -1, 0, 1, 2, 3, 100, 127]).to(TORCH[dtype]).repeat(6)
    b = torch.tensor([0, 1, 3, 7, 8, 64]).to(TORCH[dtype]).repeat_interleave(9)
    assert torch.equal(pointwise(lambda x, y: Node(op, dtype, (x, y)), dtype, tmp_path, a, b), eager(a, b))


def test_equal_numbers_have_no_variance(tmp_path):
    x = torch.tensor([0.25, -2.75, 3.5]).repeat_interleave(7).view(3, 7)
    for out in row_kernel(ReduceKind.WELFORD, 3, 7, lambda n: n, tmp_path, x).values():
        assert torch.equal(out, x[:, 0])


def test_a_sum_of_nothing_but_negative_zeros_is_zero(tmp_path):
    """As eager's, which begins at 0. The interpreter's sum of a tile does so, too, but a GPU's begins with its first number."""
    x = torch.full((3, 16), -0.0)
    for kind in (ReduceKind.SUM, ReduceKind.WELFORD):
        (folder := tmp_path / kind.value).mkdir()
        out = row_kernel(kind, 3, 16, lambda n: n, folder, x)
        for found in out.values():
            same(found, torch.zeros(3))
        (text,) = folder.glob(f"*_{GroupKind.PERSISTENT.value}.py")
        assert re.search(r"tl\.sum\(.*\[:, None\] \+ 0\.0", text.read_text())


@pytest.mark.parametrize("kind", [ReduceKind.ARGMAX, ReduceKind.ARGMIN])
def test_the_largest_of_whole_numbers_that_floats_do_not_tell_apart(kind, tmp_path):
    i, j = axis_symbol("i", 2), axis_symbol("j", 5)
    x = torch.tensor([[2**53, 2**53 + 1, 2**53, 0, 1], [-(2**60), 1 - 2**60, -(2**60) - 1, -5, 2]])
    eager = x.argmax(1) if kind is ReduceKind.ARGMAX else x.argmin(1)
    body = lambda _: Node(Op.LOAD, DType.I64, (), ("x", i * 5 + j))
    for out in row_kernel(kind, 2, 5, body, tmp_path, x, DType.I64, DType.I64).values():
        assert torch.equal(out, eager)
