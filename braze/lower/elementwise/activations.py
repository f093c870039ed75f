"""Activation functions and other small compositions, computed as eager computes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from braze.loops import build
from braze.loops.dtypes import FLOAT_LIMITS
from braze.loops.ir import DType, Node, Op
from braze.lower.values.lazy import Lazy
from braze.lower.values.pointwise_core import Promote, common_type, elementwise
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.values.scalars import is_float, negative, number, product, quotient

_BETA = math.sqrt(2.0) * 2.0 / math.sqrt(math.pi) * 0.5
_KAPPA = 0.044715


def k(value: Any, like: Node) -> Node:
    """A number, known now or when the graph runs, of a node's type."""
    return number(value, like.dtype)


def clamp_nodes(x: Node, low: Any, high: Any) -> Node:
    """min(max(low, x), high); nan stays, and x where it equals a bound: -0.0 is no less than 0."""
    if low is not None:
        x = build.binary(Op.MAXIMUM, k(low, x), x)
    if high is not None:
        x = build.binary(Op.MINIMUM, k(high, x), x)
    return x


def logistic(x: Node) -> Node:
    return build.unary(Op.SIGMOID, x)


def _activation(target: Any, scalar: Callable[..., Node], cost: int) -> Callable[..., Any]:
    """A row: an elementwise function of one float tensor and plain number arguments."""

    def lower(g: ProgramBuilder, x: Lazy, *args: Any, **kwargs: Any) -> Any:
        if not x.dtype.is_float or not all(
            isinstance(a, (bool, int, float, str)) or is_float(a) for a in args
        ):
            return NotImplemented
        return elementwise(g, lambda v: scalar(v, *args, **kwargs), (x,), cost=cost)

    lowering(target, numbers=[a.name for a in target.default._schema.arguments[1:]])(lower)
    return lower


def _gelu(x: Node, approximate: str = "none") -> Node:
    half = build.mul(x, k(0.5, x))
    if approximate == "none":
        return build.mul(half, build.add(build.unary(Op.ERF, build.mul(x, k(math.sqrt(0.5), x))), k(1.0, x)))
    cube = build.mul(build.mul(x, x), x)
    inner = build.mul(build.add(x, build.mul(cube, k(_KAPPA, x))), k(_BETA, x))
    return build.mul(half, build.add(build.unary(Op.TANH, inner), k(1.0, x)))


def _silu(x: Node) -> Node:
    return build.div(x, build.add(build.unary(Op.EXP, build.unary(Op.NEG, x)), k(1.0, x)))


def _leaky_relu(x: Node, slope: Any = 0.01) -> Node:
    return build.where(build.binary(Op.GT, x, k(0.0, x)), x, build.mul(x, k(slope, x)))


def _elu(x: Node, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Node:
    falling = build.mul(build.unary(Op.EXPM1, build.mul(x, k(input_scale, x))), k(product(alpha, scale), x))
    return build.where(build.binary(Op.LT, x, k(0.0, x)), falling, build.mul(x, k(scale, x)))


def _softplus(x: Node, beta: Any = 1.0, threshold: Any = 20.0) -> Node:
    scaled = build.mul(x, k(beta, x))
    curve = build.div(build.unary(Op.LOG1P, build.unary(Op.EXP, scaled)), k(beta, x))
    return build.where(build.binary(Op.GT, scaled, k(threshold, x)), x, curve)


def _mish(x: Node) -> Node:
    return build.mul(x, build.unary(Op.TANH, build.unary(Op.LOG1P, build.unary(Op.EXP, x))))


def _hardsigmoid(x: Node) -> Node:
    return build.div(clamp_nodes(build.add(x, k(3.0, x)), 0.0, 6.0), k(6.0, x))


def _hardswish(x: Node) -> Node:
    return build.div(build.mul(x, clamp_nodes(build.add(x, k(3.0, x)), 0.0, 6.0)), k(6.0, x))


def _hardshrink(x: Node, lambd: Any = 0.5) -> Node:
    inside = build.both(build.binary(Op.GE, x, k(negative(lambd), x)), build.binary(Op.LE, x, k(lambd, x)))
    return build.where(inside, k(0.0, x), x)


def _softshrink(x: Node, lambd: Any = 0.5) -> Node:
    above = build.where(
        build.binary(Op.GT, x, k(lambd, x)),
        build.sub(x, k(lambd, x)),
        # nan falls through both tests: x * 0 keeps it
        build.mul(x, k(0.0, x)),
    )
    return build.where(build.binary(Op.LT, x, k(negative(lambd), x)), build.add(x, k(lambd, x)), above)


gelu = _activation(aten.gelu, _gelu, 25)
for _target, _function, _cost in (
    (aten.silu, _silu, 20),
    (aten.leaky_relu, _leaky_relu, 2),
    (aten.elu, _elu, 25),
    (aten.celu, lambda x, alpha=1.0: _elu(x, alpha, 1.0, quotient(1.0, alpha)), 25),
    (aten.softplus, _softplus, 40),
    (aten.mish, _mish, 60),
    (aten.hardsigmoid, _hardsigmoid, 5),
    (aten.hardswish, _hardswish, 5),
    (aten.hardtanh, lambda x, low=-1.0, high=1.0: clamp_nodes(x, low, high), 2),
    (aten.hardshrink, _hardshrink, 3),
    (aten.softshrink, _softshrink, 4),
):
    _activation(_target, _function, _cost)


@lowering(aten.relu)
def relu(g: ProgramBuilder, x: Lazy) -> Any:
    """max(0, x); nan stays, and the sign of a zero."""
    if x.dtype is DType.BOOL:
        return NotImplemented
    return elementwise(g, lambda v: build.binary(Op.MAXIMUM, k(0, v), v), (x,))


@lowering(aten.threshold, numbers=("threshold",))
def threshold(g: ProgramBuilder, x: Lazy, limit: Any, value: Any) -> Any:
    """x above the limit (or nan), else value."""
    return elementwise(
        g,
        lambda v: build.where(build.binary(Op.LE, v, k(limit, v)), k(value, v), v),
        (x,),
        common=x.dtype,
        cost=2,
    )


@lowering(aten.clamp, aten.clamp_min, numbers=("min", "max"))
def clamp(
    g: ProgramBuilder, x: Lazy, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> Any:
    """min(max(x, low), high); nan in any operand stays."""
    low = min if low is None else low
    high = max if high is None else high
    given = [v for v in (low, high) if v is not None]
    if common_type(g, (x, *given), Promote.DEFAULT) is DType.BOOL:
        return NotImplemented

    def scalar(v: Node, *bounds: Node) -> Node:
        rest = list(bounds)
        if low is not None:
            v = build.binary(Op.MAXIMUM, rest.pop(0), v)
        return v if high is None else build.binary(Op.MINIMUM, rest.pop(0), v)

    return elementwise(g, scalar, (x, *given), cost=2)


@lowering(aten.clamp_max, numbers=("max",))
def clamp_max(g: ProgramBuilder, x: Lazy, high: Any) -> Any:
    """min(x, high)."""
    return clamp(g, x, None, high)


@lowering(aten.lerp, numbers=("weight",))
def lerp(g: ProgramBuilder, start: Lazy, end: Lazy, weight: Any) -> Any:
    """start + weight * (end - start), from whichever end is nearer, rounded once as in eager's kernel."""

    def scalar(a: Node, b: Node, w: Node) -> Node:
        near = build.lt(build.unary(Op.ABS, w), k(0.5, w))
        share = build.where(near, w, build.sub(w, k(1.0, w)))
        return build.fma(share, build.sub(b, a), build.where(near, a, b))

    if not start.dtype.is_float:
        return NotImplemented
    return elementwise(g, scalar, (start, end, weight), cost=6, precise=True)


@lowering(aten.addcmul)
def addcmul(g: ProgramBuilder, x: Lazy, a: Lazy, b: Lazy, *, value: Any = 1) -> Any:
    """x + value * a * b; of floats the last product is not rounded, as in eager's kernel."""

    def scalar(v: Node, p: Node, q: Node) -> Node:
        scaled = p if not is_float(value) and value == 1 else build.mul(k(value, v), p)
        return build.fma(scaled, q, v) if v.dtype.is_float else build.add(v, build.mul(scaled, q))

    return elementwise(g, scalar, (x, a, b), cost=3)


@lowering(aten.addcdiv)
def addcdiv(g: ProgramBuilder, x: Lazy, a: Lazy, b: Lazy, *, value: Any = 1) -> Any:
    """x + value * a / b."""
    if not x.dtype.is_float:
        return NotImplemented
    return elementwise(
        g, lambda v, p, q: build.add(v, build.div(build.mul(k(value, v), p), q)), (x, a, b), cost=6
    )


@lowering(aten.xlogy)
def xlogy(g: ProgramBuilder, x: Any, y: Any) -> Any:
    """x * log(y), 0 where x is 0 and y is not nan."""

    def scalar(a: Node, b: Node) -> Node:
        zero = build.where(build.binary(Op.EQ, a, k(0.0, a)), k(0.0, a), build.mul(a, build.unary(Op.LOG, b)))
        return build.where(build.unary(Op.ISNAN, b), b, zero)

    return elementwise(g, scalar, (x, y), promote=Promote.INT_TO_FLOAT, cost=20)


@lowering(aten.nan_to_num, numbers=("nan", "posinf", "neginf"))
def nan_to_num(g: ProgramBuilder, x: Lazy, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    """Finite numbers for nan and the infinities."""
    if not x.dtype.is_float:
        return elementwise(g, lambda v: v, (x,), cost=0)
    from_limits = FLOAT_LIMITS[x.dtype]

    def scalar(v: Node) -> Node:
        inf = build.unary(Op.ISINF, v)
        low = k(from_limits[0] if neginf is None else neginf, v)
        high = k(from_limits[1] if posinf is None else posinf, v)
        v2 = build.where(inf, build.where(build.lt(v, k(0.0, v)), low, high), v)
        return build.where(build.unary(Op.ISNAN, v), k(0.0 if nan is None else nan, v), v2)

    return elementwise(g, scalar, (x,), cost=4)
