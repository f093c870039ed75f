"""Gradients of elementwise losses: one row each, as eager's kernels compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.loops import build
from braze.loops.dtypes import compute_type
from braze.loops.ir import DType, Node, Op
from braze.lower.elementwise.activations import k
from braze.lower.values.lazy import Lazy, numel
from braze.lower.values.pointwise_core import elementwise
from braze.lower.values.realize import ProgramBuilder
from braze.lower.values.registry import aten, lowering
from braze.lower.values.scalars import negative

MEAN = 1


def share(g: ProgramBuilder, x: Lazy, reduction: int, of: float = 1.0) -> Node:
    """What one element counts for in the loss: ``of``, divided by their number where the mean is taken."""
    dtype = compute_type(x.dtype)
    if reduction != MEAN:
        return build.const(of, dtype)
    size = numel(x.sizes)
    if size.value is not None:
        return build.const(of / size.value if size.value else float("nan"), dtype)
    ratio = build.div(build.const(of, DType.F64), g.index_node(size, DType.F64))
    return build.cast(ratio, dtype)


def _apply(g: ProgramBuilder, scalar: Callable[..., Node], operands: Sequence[Any], cost: int) -> Any:
    """The loop, of operands of one type; of several some of eager's kernels make one, and others refuse them."""
    if not all(isinstance(a, Lazy) and a.dtype.is_float and a.dtype is operands[0].dtype for a in operands):
        return NotImplemented
    return elementwise(g, scalar, operands, cost=cost)


def _bent(d: Node, limit: Any, inner: Node, outer: Node) -> Node:
    """``inner`` where the difference is within the limit, else ``outer`` with its sign."""
    high = build.where(build.binary(Op.GE, d, k(limit, d)), outer, inner)
    return build.where(build.binary(Op.LE, d, k(negative(limit), d)), build.unary(Op.NEG, outer), high)


@lowering(aten.mse_loss_backward.default)
def mse_loss_backward(g: ProgramBuilder, grad: Lazy, x: Lazy, target: Lazy, reduction: int) -> Any:
    """2 · (x - target) · grad."""
    norm = share(g, x, reduction, 2.0)
    return _apply(g, lambda dy, a, b: build.mul(build.mul(norm, build.sub(a, b)), dy), (grad, x, target), 3)


@lowering(aten.huber_loss_backward.default, numbers=("delta",))
def huber_loss_backward(
    g: ProgramBuilder, grad: Lazy, x: Lazy, target: Lazy, reduction: int, delta: float
) -> Any:
    """(x - target) · grad, with the difference kept within delta."""
    norm = share(g, x, reduction)

    def scalar(dy: Node, a: Node, b: Node) -> Node:
        d = build.sub(a, b)
        outer = build.mul(build.mul(norm, dy), k(delta, d))
        return _bent(d, delta, build.mul(build.mul(norm, d), dy), outer)

    return _apply(g, scalar, (grad, x, target), 7)


@lowering(aten.smooth_l1_loss_backward.default, numbers=("beta",))
def smooth_l1_loss_backward(
    g: ProgramBuilder, grad: Lazy, x: Lazy, target: Lazy, reduction: int, beta: float
) -> Any:
    """grad with the sign of the difference, in proportion to it below beta."""
    norm = share(g, x, reduction)

    def scalar(dy: Node, a: Node, b: Node) -> Node:
        d = build.sub(a, b)
        inner = build.div(build.mul(build.mul(norm, d), dy), k(beta, d))
        return _bent(d, beta, inner, build.mul(norm, dy))

    return _apply(g, scalar, (grad, x, target), 10)


@lowering(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    g: ProgramBuilder, grad: Lazy, x: Lazy, target: Lazy, weight: Lazy | None = None, reduction: int = 1
) -> Any:
    """grad · (x - target) / (x · (1 - x)), the divisor at least 1e-12."""
    norm = share(g, x, reduction)

    def scalar(dy: Node, a: Node, b: Node, *weights: Node) -> Node:
        spread = build.mul(build.sub(k(1.0, a), a), a)
        divisor = build.binary(Op.MAXIMUM, spread, k(1e-12, a))
        out = build.div(build.mul(dy, build.sub(a, b)), divisor)
        for w in weights:
            out = build.mul(out, w)
        return build.mul(out, norm)

    return _apply(g, scalar, (grad, x, target, *([] if weight is None else [weight])), 12)


@lowering(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(g: ProgramBuilder, grad: Lazy, x: Lazy, target: Lazy, reduction: int) -> Any:
    """-target · z / (1 + z) · grad with z = exp(-target · x)."""
    norm = share(g, x, reduction, -1.0)

    def scalar(dy: Node, a: Node, b: Node) -> Node:
        z = build.unary(Op.EXP, build.unary(Op.NEG, build.mul(b, a)))
        return build.mul(build.div(build.mul(build.mul(norm, b), z), build.add(z, k(1.0, z))), dy)

    return _apply(g, scalar, (grad, x, target), 25)
