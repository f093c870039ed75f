"""Gradients of activation functions: elementwise, computed as eager's kernels compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.ir import DType, Node, Op
from braze.lower.elementwise.activations import k, logistic
from braze.lower.values.lazy import Lazy
from braze.lower.values.pointwise_core import elementwise
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.values.scalars import is_float, negative, product
from braze.lower.views.shape import cat
from braze.lower.views.views import slice_value
from braze.symbolic.expr import ZERO

#: the exponential of this is a normal float, just
_LEAST = -87.3125
_SQRT_HALF = math.sqrt(0.5)
_GAUSS = 1.0 / math.sqrt(2.0 * math.pi)
_BETA = math.sqrt(2.0 / math.pi)
_KAPPA = 0.044715

#: arguments that are neither operands nor numbers
_SWITCHES = (bool, int, float, str, type(None))


def gradient(
    target: Any, tensors: Sequence[int], cost: int, known: bool = False, flushes: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """A row: the arguments at ``tensors`` are operands, all others are handed on as they are; ``known``: numbers must be known now;
    ``flushes``: the function is told whether denormal numbers are to be avoided, each of which takes a processor a hundred cycles.

    The function gets nodes for the operands, in the order of the arguments. It returns the gradient's node.
    """

    def enter(scalar: Callable[..., Node]) -> Callable[..., Node]:
        def lower(g: ProgramBuilder, *args: Any, **kwargs: Any) -> Any:
            if flushes:
                kwargs["flush"] = g.ctx.target.kind == "cpu"
            operands = [args[i] for i in tensors]
            rest = [a for i, a in enumerate(args) if i not in tensors]
            if not all(isinstance(a, Lazy) and a.dtype.is_float for a in operands):
                return NotImplemented
            if len({a.dtype for a in operands}) > 1:  # eager's kernel promotes them, or refuses
                return NotImplemented
            if not all(isinstance(a, _SWITCHES) or is_float(a) for a in (*rest, *kwargs.values())):
                return NotImplemented

            def applied(*nodes: Node) -> Node:
                given = iter(nodes)
                full = [next(given) if i in tensors else a for i, a in enumerate(args)]
                return scalar(*full, **kwargs)

            return elementwise(g, applied, operands, cost=cost)

        names = [a.name for i, a in enumerate(target._schema.arguments) if i not in tensors]
        lowering(target, numbers=() if known else names)(lower)
        return scalar

    return enter


def _one_minus(x: Node) -> Node:
    return build.sub(k(1.0, x), x)


def _square(x: Node) -> Node:
    return build.mul(x, x)


def _normal_exp(x: Node) -> Node:
    """exp(x), or 0 where that would be no normal float: eager's vectors have 0 there, too, and above."""
    if x.dtype is DType.F64:
        return build.unary(Op.EXP, x)
    least = k(_LEAST, x)
    small = build.lt(x, least)
    return build.where(small, k(0.0, x), build.unary(Op.EXP, build.where(small, least, x)))


def _within(x: Node, low: Any, high: Any) -> Node:
    """low < x < high; a nan is outside."""
    return build.both(build.binary(Op.GT, x, k(low, x)), build.lt(x, k(high, x)))


@gradient(aten.threshold_backward.default, (0, 1), 1)
def threshold_backward(grad: Node, x: Node, limit: Any) -> Node:
    """Nothing at or below the limit."""
    return build.where(build.binary(Op.LE, x, k(limit, x)), k(0.0, grad), grad)


@gradient(aten.sigmoid_backward.default, (0, 1), 3)
def sigmoid_backward(grad: Node, y: Node) -> Node:
    """grad · (1 - y) · y."""
    return build.mul(build.mul(grad, _one_minus(y)), y)


@gradient(aten.tanh_backward.default, (0, 1), 3)
def tanh_backward(grad: Node, y: Node) -> Node:
    """grad · (1 - y²)."""
    return build.mul(grad, _one_minus(_square(y)))


@gradient(aten.gelu_backward.default, (0, 1), 45, flushes=True)
def gelu_backward(grad: Node, x: Node, approximate: str = "none", flush: bool = False) -> Node:
    """Of x·Φ(x), or of its approximation by tanh."""
    if approximate == "none":
        inside = build.add(build.unary(Op.ERF, build.mul(x, k(_SQRT_HALF, x))), k(1.0, x))
        power = build.mul(_square(x), k(-0.5, x))
        bell = build.mul(_normal_exp(power) if flush else build.unary(Op.EXP, power), k(_GAUSS, x))
        return build.mul(grad, build.add(build.mul(k(0.5, x), inside), build.mul(x, bell)))
    square = _square(x)
    inner = build.mul(build.add(x, build.mul(build.mul(square, x), k(_KAPPA, x))), k(_BETA, x))
    slope = build.mul(build.add(build.mul(square, k(3.0 * _KAPPA, x)), k(1.0, x)), k(_BETA, x))
    y = build.unary(Op.TANH, inner)
    level = build.mul(build.add(y, k(1.0, x)), k(0.5, x))
    rise = build.mul(build.mul(build.mul(x, k(0.5, x)), _one_minus(_square(y))), slope)
    return build.mul(grad, build.add(level, rise))


@gradient(aten.silu_backward.default, (0, 1), 25)
def silu_backward(grad: Node, x: Node) -> Node:
    """grad · σ(x) · (1 + x · (1 - σ(x)))."""
    y = logistic(x)
    return build.mul(build.mul(grad, y), build.add(build.mul(x, _one_minus(y)), k(1.0, x)))


@gradient(aten.mish_backward.default, (0, 1), 80)
def mish_backward(grad: Node, x: Node) -> Node:
    """Of x · tanh(softplus(x))."""
    y = build.unary(Op.TANH, build.unary(Op.LOG1P, build.unary(Op.EXP, x)))
    rise = build.mul(build.mul(x, logistic(x)), _one_minus(_square(y)))
    return build.mul(grad, build.add(y, rise))


@gradient(aten.elu_backward.default, (0, 5), 22)
def elu_backward(grad: Node, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Node) -> Node:
    """Of elu, from its argument or from its result."""
    factor = product(alpha, scale)
    if is_result:
        low = build.mul(build.mul(grad, k(input_scale, x)), build.add(x, k(factor, x)))
    else:
        curve = build.unary(Op.EXP, build.mul(x, k(input_scale, x)))
        low = build.mul(build.mul(build.mul(grad, k(input_scale, x)), k(factor, x)), curve)
    return build.where(build.binary(Op.LE, x, k(0.0, x)), low, build.mul(grad, k(scale, x)))


@gradient(aten.hardswish_backward.default, (0, 1), 6)
def hardswish_backward(grad: Node, x: Node) -> Node:
    """0 up to -3, grad from 3, and grad · (x / 3 + 1/2) between."""
    between = build.mul(grad, build.add(build.div(x, k(3.0, x)), k(0.5, x)))
    high = build.where(build.lt(x, k(3.0, x)), between, grad)
    return build.where(build.binary(Op.LE, x, k(-3.0, x)), k(0.0, grad), high)


@gradient(aten.hardsigmoid_backward.default, (0, 1), 3)
def hardsigmoid_backward(grad: Node, x: Node) -> Node:
    """A sixth between -3 and 3."""
    return build.where(_within(x, -3.0, 3.0), build.mul(grad, k(1.0 / 6.0, x)), k(0.0, grad))


@gradient(aten.hardtanh_backward.default, (0, 1), 2)
def hardtanh_backward(grad: Node, x: Node, low: Any, high: Any) -> Node:
    """Nothing at the limits and beyond; nan counts as inside."""
    beyond = build.either(build.binary(Op.LE, x, k(low, x)), build.binary(Op.GE, x, k(high, x)))
    return build.where(beyond, k(0.0, grad), grad)


@gradient(aten.leaky_relu_backward.default, (0, 1), 2)
def leaky_relu_backward(grad: Node, x: Node, slope: Any, is_result: bool = False) -> Node:
    """grad where x is positive, else slope · grad."""
    return build.where(build.binary(Op.GT, x, k(0.0, x)), grad, build.mul(grad, k(slope, x)))


@gradient(aten.rrelu_with_noise_backward.default, (0, 1, 2), 2, known=True)
def rrelu_with_noise_backward(
    grad: Node, x: Node, noise: Node, low: float, high: float, training: bool, is_result: bool
) -> Node:
    """The slopes that were drawn; outside training the middle one."""
    if training and high - low > 1e-6:
        return build.mul(noise, grad)
    return leaky_relu_backward(grad, x, (low + high) / 2, is_result)


@gradient(aten.softplus_backward.default, (0, 1), 22)
def softplus_backward(grad: Node, x: Node, beta: Any, threshold: Any) -> Node:
    """grad · σ(beta · x), grad itself above the threshold."""
    scaled = build.mul(x, k(beta, x))
    z = build.unary(Op.EXP, scaled)
    curve = build.div(build.mul(grad, z), build.add(z, k(1.0, x)))
    return build.where(build.binary(Op.GT, scaled, k(threshold, x)), grad, curve)


@gradient(aten.softshrink_backward.default, (0, 1), 3)
@gradient(aten.hardshrink_backward.default, (0, 1), 3)
def hardshrink_backward(grad: Node, x: Node, lambd: Any) -> Node:
    """Nothing within lambd of 0."""
    inside = build.both(build.binary(Op.GE, x, k(negative(lambd), x)), build.binary(Op.LE, x, k(lambd, x)))
    return build.where(inside, k(0.0, grad), grad)


@lowering(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(g: ProgramBuilder, grad: Any, x: Any, buffer: Any = None) -> Any:
    """grad · (1 - σ(x)), from exp(-|x|), which cannot overflow: the forward's on the CPU, where x may have been written since."""
    operands = [grad, x]
    if isinstance(buffer, Lazy) and buffer.sizes == x.sizes:
        operands.append(buffer)
    if not all(isinstance(a, Lazy) and a.dtype.is_float for a in operands):
        return NotImplemented
    if len({a.dtype for a in operands}) > 1:
        return NotImplemented

    def scalar(grad: Node, x: Node, z: Node | None = None) -> Node:
        if z is None:
            z = build.unary(Op.EXP, build.unary(Op.NEG, build.unary(Op.ABS, x)))
        part = build.div(z, build.add(z, k(1.0, x)))
        return build.mul(grad, build.where(build.lt(x, k(0.0, x)), _one_minus(part), part))

    return elementwise(g, scalar, operands, cost=25)


@gradient(aten.logit_backward.default, (0, 1), 8, known=True)
def logit_backward(grad: Node, x: Node, eps: float | None = None) -> Node:
    """grad / (x · (1 - x)) within the limits; beyond them nan, or 0 where they were clamped to."""
    clamped = eps is not None and eps >= 0
    low, high = (eps, 1.0 - eps) if eps is not None and clamped else (0.0, 1.0)
    outside = build.either(build.lt(x, k(low, x)), build.binary(Op.GT, x, k(high, x)))
    beyond = k(0.0 if clamped else math.nan, grad)
    pole = build.either(
        build.binary(Op.EQ, x, k(0.0, x)),
        build.binary(Op.EQ, x, k(1.0, x)),
    )
    inside = build.div(grad, build.mul(x, _one_minus(x)))
    return build.where(outside, beyond, build.where(pole, build.mul(grad, k(math.inf, x)), inside))


@lowering(aten._prelu_kernel_backward.default)
def prelu_backward(g: ProgramBuilder, grad: Lazy, x: Lazy, weight: Lazy) -> Any:
    """(grad where x is positive, else weight · grad), (0 where x is positive, else x · grad)."""

    def of_x(dy: Node, v: Node, w: Node) -> Node:
        return build.where(build.binary(Op.GT, v, k(0.0, v)), dy, build.mul(w, dy))

    def of_weight(dy: Node, v: Node) -> Node:
        return build.where(build.binary(Op.GT, v, k(0.0, v)), k(0.0, v), build.mul(v, dy))

    first = elementwise(g, of_x, (grad, x, weight), cost=2)
    second = elementwise(g, of_weight, (grad, x), cost=2)
    return NotImplemented if NotImplemented in (first, second) else (first, second)


@lowering(aten.glu_backward.default)
def glu_backward(g: ProgramBuilder, grad: Lazy, x: Lazy, dim: int) -> Any:
    """σ(b) · grad for the first half, σ(b) · (1 - σ(b)) · a · grad for the second."""
    dim = dim % x.rank
    half = grad.sizes[dim]
    if not x.dtype.is_float or grad.dtype is not x.dtype:
        return NotImplemented
    first = slice_value(g, x, dim, ZERO, half)
    second = slice_value(g, x, dim, half, half)

    def of_second(dy: Node, a: Node, b: Node) -> Node:
        gate = logistic(b)
        return build.mul(build.mul(build.mul(_one_minus(gate), gate), a), dy)

    from_first = elementwise(g, lambda dy, b: build.mul(logistic(b), dy), (grad, second), cost=21)
    from_second = elementwise(g, of_second, (grad, first, second), cost=24)
    if NotImplemented in (from_first, from_second):
        return NotImplemented
    return cat(g, [from_first, from_second], dim)
