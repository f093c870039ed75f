"""Elementwise operators whose lowering is one row: the op, the scalar operation, the promotion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from braze.graph.operators.operators import Result, operator_facts
from braze.loops import build
from braze.loops.dtypes import wrap_integer
from braze.loops.ir import DType, Node, Op
from braze.loops.scalars import SCALARS, TESTS
from braze.lower.values.lazy import Lazy
from braze.lower.values.pointwise_core import (
    Promote,
    Scalar,
    common_type,
    cost_of,
    elementwise,
    elementwise_of_own_types,
)
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, claim, lowering, overloads_of
from braze.lower.values.scalars import is_float, negative, number


def pointwise(
    target: Any,
    op: Op | Scalar,
    *,
    promote: Promote = Promote.DEFAULT,
    out: DType | None = None,
    cost: int = 0,
    floats_only: bool = False,
) -> None:
    """Register a row: every tensor and number argument is an operand of ``op``."""
    scalar: Scalar = _scalar(op) if isinstance(op, Op) else op
    price = cost or (cost_of(op) if isinstance(op, Op) else 4)
    known = operator_facts(next(overloads_of(target)))
    if known is not None and known.result is Result.FLOAT:
        promote = Promote.INT_TO_FLOAT
    if isinstance(op, Op) and op in TESTS:
        out = DType.BOOL

    def lower(g: ProgramBuilder, *args: Any, **kwargs: Any) -> Any:
        if kwargs or (floats_only and not common_type(g, args, promote).is_float):
            return NotImplemented
        return elementwise(g, scalar, args, promote=promote, cost=price, out=out)

    for overload in overloads_of(target):
        claim(overload, lower)


def _scalar(op: Op) -> Scalar:
    if SCALARS[op].arity == 1:
        return lambda x: build.unary(op, x)
    return lambda x, y: build.binary(op, x, y)


# -- one operand, floats (integers become the default float)
for _target, _op in (
    (aten.rsqrt, Op.RSQRT), (aten.sqrt, Op.SQRT), (aten.reciprocal, Op.RECIPROCAL), (aten.exp, Op.EXP),
    (aten.exp2, Op.EXP2), (aten.expm1, Op.EXPM1), (aten.log, Op.LOG), (aten.log2, Op.LOG2), (aten.log10, Op.LOG10),
    (aten.log1p, Op.LOG1P), (aten.sin, Op.SIN), (aten.cos, Op.COS), (aten.tan, Op.TAN), (aten.asin, Op.ASIN),
    (aten.acos, Op.ACOS), (aten.atan, Op.ATAN), (aten.sinh, Op.SINH), (aten.cosh, Op.COSH), (aten.tanh, Op.TANH),
    (aten.asinh, Op.ASINH), (aten.acosh, Op.ACOSH), (aten.atanh, Op.ATANH), (aten.erf, Op.ERF), (aten.erfc, Op.ERFC),
    (aten.sigmoid, Op.SIGMOID), (aten.atan2, Op.ATAN2),
):  # fmt: skip
    pointwise(_target, _op)

# -- one operand, same type
pointwise(aten.neg, Op.NEG)
pointwise(aten.abs, Op.ABS)
pointwise(aten.sign, lambda x: x if x.dtype is DType.BOOL else build.unary(Op.SIGN, x))
pointwise(aten.sgn, lambda x: x if x.dtype is DType.BOOL else build.unary(Op.SIGN, x))
pointwise(aten.floor, Op.FLOOR)
pointwise(aten.ceil, Op.CEIL)
pointwise(aten.trunc, Op.TRUNC)
pointwise(aten.round.default, Op.ROUND)
pointwise(aten.frac, lambda x: build.sub(x, build.unary(Op.TRUNC, x)))
pointwise(aten.bitwise_not, Op.NOT)
pointwise(aten.isnan, Op.ISNAN)
pointwise(aten.isinf, Op.ISINF)
pointwise(aten.logical_not, Op.NOT, promote=Promote.BOOL)
pointwise(
    aten.signbit,
    lambda x: build.unary(Op.SIGNBIT, x) if x.dtype.is_float else build.lt(x, build.const(0, x.dtype)),
    out=DType.BOOL,
)


def _of_truths(op: Op) -> Scalar:
    """Of the common type's numbers, whether they are 0: what a number without dims has lost by then (1e-40 in float16) counts for nothing."""
    return lambda x, y: build.binary(op, build.cast(x, DType.BOOL), build.cast(y, DType.BOOL))


# -- two operands
pointwise(aten.hypot, Op.HYPOT)
pointwise(aten.copysign, Op.COPYSIGN)
for _target, _op in (
    (aten.eq, Op.EQ), (aten.ne, Op.NE), (aten.lt, Op.LT), (aten.le, Op.LE), (aten.gt, Op.GT), (aten.ge, Op.GE),
):  # fmt: skip
    pointwise(_target, _op)
pointwise(aten.heaviside, lambda x, y: _heaviside(x, y))
pointwise(aten.logaddexp, lambda x, y: _logaddexp(x, y), cost=40, floats_only=True)
pointwise(aten.maximum, lambda x, y: _extremum(Op.MAXIMUM, x, y))
pointwise(aten.minimum, lambda x, y: _extremum(Op.MINIMUM, x, y))
for _target, _op in ((aten.logical_and, Op.AND), (aten.logical_or, Op.OR), (aten.logical_xor, Op.XOR)):
    pointwise(_target, _of_truths(_op), out=DType.BOOL)
pointwise(aten.bitwise_and, Op.AND)
pointwise(aten.bitwise_or, Op.OR)
pointwise(aten.bitwise_xor, Op.XOR)


def _heaviside(x: Node, at_zero: Node) -> Node:
    zero = build.const(0, x.dtype)
    return build.where(
        build.binary(Op.EQ, x, zero), at_zero, build.cast(build.binary(Op.GT, x, zero), x.dtype)
    )


def _logaddexp(x: Node, y: Node) -> Node:
    """The greater, and what the lesser adds to it; of two equal infinities, whose difference is nan, the infinity."""
    away = build.unary(Op.NEG, build.unary(Op.ABS, build.sub(x, y)))
    sum_ = build.add(build.binary(Op.MAXIMUM, x, y), build.unary(Op.LOG1P, build.unary(Op.EXP, away)))
    infinite = build.both(build.unary(Op.ISINF, x), build.binary(Op.EQ, x, y))
    return build.where(infinite, x, sum_)


def _extremum(op: Op, x: Node, y: Node) -> Node:
    if x.dtype is DType.BOOL:
        return build.binary(Op.OR if op is Op.MAXIMUM else Op.AND, x, y)
    return build.binary(op, x, y)


@lowering(aten.fmax, aten.fmin)
def extremum_ignoring_nan(g: ProgramBuilder, x: Lazy, y: Lazy) -> Any:
    """The greater (smaller); a nan only where both are."""
    op = Op.MAXIMUM if g.op_name == "fmax" else Op.MINIMUM

    def scalar(a: Node, b: Node) -> Node:
        if not a.dtype.is_float:
            return _extremum(op, a, b)
        return build.where(
            build.unary(Op.ISNAN, a), b, build.where(build.unary(Op.ISNAN, b), a, build.binary(op, a, b))
        )

    return elementwise(g, scalar, (x, y), cost=4)


# -- arithmetic with alpha, on bools as logic


@lowering(aten.add.Tensor, aten.add.Scalar, numbers=("alpha",))
def add(g: ProgramBuilder, x: Any, y: Any, alpha: Any = 1) -> Any:
    """x + alpha * y; bools add as a logical or."""
    return _sum(g, Op.ADD, x, y, alpha)


@lowering(aten.sub.Tensor, aten.sub.Scalar, numbers=("alpha",))
def sub(g: ProgramBuilder, x: Any, y: Any, alpha: Any = 1) -> Any:
    """x - alpha * y."""
    return _sum(g, Op.SUB, x, y, alpha)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar, numbers=("alpha",))
def rsub(g: ProgramBuilder, x: Any, y: Any, alpha: Any = 1) -> Any:
    """y - alpha * x."""
    return _sum(g, Op.SUB, y, x, alpha)


def _sum(g: ProgramBuilder, op: Op, x: Any, y: Any, alpha: Any) -> Any:
    """x and alpha * y; eager refuses a float beside integers, as fakes do not."""
    if (type(alpha) is float or is_float(alpha)) and not (
        g.val.dtype.is_floating_point or g.val.dtype.is_complex
    ):
        return NotImplemented
    return elementwise(g, _with_alpha(op, alpha), (x, y), cost=1, precise=_on_gpu(x, y))


def _on_gpu(*args: Any) -> bool:
    """CUDA's sums take numbers in the computation type, the CPU's round them to the tensor's."""
    return any(isinstance(a, Lazy) and a.device != "cpu" for a in args)


def _with_alpha(op: Op, alpha: Any) -> Scalar:
    def scalar(x: Node, y: Node) -> Node:
        if x.dtype is DType.BOOL:
            return build.either(x, y) if alpha else x
        if x.dtype.is_float and not (isinstance(alpha, (bool, int, float)) and alpha == 1):
            # as eager does: the product is not rounded; a whole alpha of 0 is 0 when negated too, and gives the products other signs
            return build.fma(y, number(negative(alpha) if op is Op.SUB else alpha, x.dtype), x)
        return build.binary(op, x, build.mul(y, number(alpha, x.dtype)))

    return scalar


@lowering(aten.mul.Tensor, aten.mul.Scalar)
def mul(g: ProgramBuilder, x: Any, y: Any) -> Any:
    """x * y; bools multiply as a logical and."""
    return elementwise(g, _product, (x, y), cost=1, precise=True)


def _product(x: Node, y: Node) -> Node:
    return build.both(x, y) if x.dtype is DType.BOOL else build.mul(x, y)


# -- division


@lowering(aten.div.Tensor, aten.div.Scalar)
def div(g: ProgramBuilder, x: Any, y: Any) -> Any:
    """True division."""
    return elementwise(g, build.div, (x, y), promote=Promote.INT_TO_FLOAT, cost=cost_of(Op.DIV), precise=True)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(g: ProgramBuilder, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    """Division rounded to an integer value: "floor", "trunc", or not at all."""
    if rounding_mode is None:
        return div(g, x, y)
    return whole_division(Op.FLOORDIV if rounding_mode == "floor" else Op.TRUNCDIV, g, x, y)


def whole_division(op: Op, g: ProgramBuilder, x: Any, y: Any) -> Any:
    """Integers only by a constant that can neither trap nor be zero: eager raises ZeroDivisionError."""
    common = common_type(g, (x, y), Promote.DEFAULT)
    if common is DType.BOOL:
        return NotImplemented
    if common.is_float:
        precise = op in (Op.FLOORDIV, Op.TRUNCDIV)
        return elementwise(g, lambda a, b: build.binary(op, a, b), (x, y), cost=cost_of(op), precise=precise)
    if (
        not isinstance(y, int)
        or isinstance(y, bool)
        or wrap_integer(y, common) in (0, wrap_integer(-1, common))
    ):
        return NotImplemented
    return elementwise(g, lambda a, b: build.binary(op, a, b), (x, y), cost=cost_of(op))


lowering(aten.floor_divide)(partial(whole_division, Op.FLOORDIV))
lowering(aten.remainder)(partial(whole_division, Op.REMAINDER))
lowering(aten.fmod)(partial(whole_division, Op.FMOD))


# -- powers


@lowering(aten.pow.Tensor_Scalar)
def pow_by_number(g: ProgramBuilder, x: Lazy, exponent: Any) -> Any:
    """x ** number; small exponents as eager computes them."""
    if isinstance(exponent, Lazy):
        return power(g, x, exponent)
    if isinstance(exponent, complex) or not isinstance(exponent, (int, float)):
        return NotImplemented
    common = common_type(g, (x, exponent), Promote.DEFAULT)
    if common is DType.BOOL:
        return elementwise(g, (lambda a: a) if exponent else _one, (x,), cost=1, common=common)
    if common.is_float:
        scalar = _FLOAT_POWERS.get(float(exponent))
        if scalar is not None:
            return elementwise(g, scalar, (x,), cost=4, common=common)
        return elementwise(g, lambda a, b: build.binary(Op.POW, a, b), (x, exponent), cost=cost_of(Op.POW))
    if not isinstance(exponent, int) or not 0 <= exponent <= 64:
        return NotImplemented
    return elementwise(g, lambda a: _repeated_product(a, exponent), (x,), cost=4, common=common)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(g: ProgramBuilder, x: Any, y: Any) -> Any:
    """x ** y for floats."""
    if not common_type(g, (x, y), Promote.DEFAULT).is_float:
        return NotImplemented
    return elementwise(g, lambda a, b: build.binary(Op.POW, a, b), (x, y), cost=cost_of(Op.POW))


def _repeated_product(x: Node, exponent: int) -> Node:
    out = build.const(1, x.dtype)
    while exponent:
        if exponent & 1:
            out = build.mul(out, x)
        exponent >>= 1
        if exponent:
            x = build.mul(x, x)
    return out


def _one(x: Node) -> Node:
    return build.const(1, x.dtype)


_FLOAT_POWERS: dict[float, Callable[[Node], Node]] = {
    0.0: _one,
    1.0: lambda x: x,
    2.0: lambda x: build.mul(x, x),
    3.0: lambda x: build.mul(build.mul(x, x), x),
    0.5: lambda x: build.unary(Op.SQRT, x),
    -0.5: lambda x: build.unary(Op.RSQRT, x),
    -1.0: lambda x: build.div(_one(x), x),
    -2.0: lambda x: build.div(_one(x), build.mul(x, x)),
}


# -- shifts


def shift(op: Op, g: ProgramBuilder, x: Any, y: Any) -> Any:
    """x << y, or x >> y, arithmetic for signed types, for a constant shift inside the width."""
    common = common_type(g, (x, y), Promote.DEFAULT)
    if not common.is_integer or not isinstance(y, int) or not 0 <= y < 8 * common.itemsize:
        return NotImplemented
    return elementwise(g, lambda a, b: build.binary(op, a, b), (x, y), cost=1)


lowering(aten.bitwise_left_shift, aten.__lshift__)(partial(shift, Op.SHL))
lowering(aten.bitwise_right_shift, aten.__rshift__)(partial(shift, Op.SHR))


# -- choice


@lowering(aten.where.self)
def where(g: ProgramBuilder, condition: Lazy, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    if not condition.dtype.is_computable:
        return NotImplemented
    common = common_type(g, (x, y), Promote.DEFAULT)
    return _choose(g, condition, x, y, common)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(g: ProgramBuilder, x: Lazy, mask: Lazy, value: Any) -> Any:
    """value where the mask holds, else x; of x's type."""
    if isinstance(value, Lazy) and value.sizes:
        return NotImplemented
    return _choose(g, mask, value, x, x.dtype)


def masked_choice(g: ProgramBuilder, mask: Lazy, value: Lazy, x: Lazy) -> Any:
    """The same of a value of any size that is broadcast over x."""
    return _choose(g, mask, value, x, x.dtype)


def _choose(g: ProgramBuilder, condition: Lazy, x: Any, y: Any, common: DType) -> Any:
    """A selection moves values of the result's own type: nothing is widened or rounded."""
    if not common.is_computable:
        return NotImplemented
    bits = elementwise(g, lambda c: c, (condition,), promote=Promote.BOOL, cost=0)
    if bits is NotImplemented:
        return NotImplemented
    return select_elements(g, bits, x, y, common)


def select_elements(g: ProgramBuilder, condition: Lazy, x: Any, y: Any, dtype: DType) -> Any:
    """An elementwise choice between operands of one storage type."""
    from_x, from_y = _as_type(x, dtype), _as_type(y, dtype)

    def scalar(c: Node, *rest: Node) -> Node:
        values = list(rest)
        then = from_x if isinstance(from_x, Node) else build.cast(values.pop(0), dtype)
        other = from_y if isinstance(from_y, Node) else build.cast(values.pop(0), dtype)
        return build.where(c, then, other)

    tensors = tuple(v for v in (x, y) if isinstance(v, Lazy))
    return elementwise_of_own_types(g, scalar, (condition, *tensors), dtype, cost=1)


def _as_type(value: Any, dtype: DType) -> Node | None:
    if isinstance(value, Lazy):
        return None
    if isinstance(value, (bool, int, float)):
        return build.const(value, dtype)
    return build.index(value, dtype)


# -- conversions


def convert(g: ProgramBuilder, x: Lazy, dtype: DType) -> Lazy:
    """The value in another type."""
    if x.dtype is dtype:
        return x
    return elementwise(g, lambda a: a, (x,), common=x.dtype, out=dtype, cost=0)


def narrowed(g: ProgramBuilder, x: Lazy, dtype: DType) -> Any:
    """What a composition of ours has computed, in the type of its result."""
    return elementwise_of_own_types(g, lambda v: g.rounded(v, dtype), (x,), dtype, cost=0)
