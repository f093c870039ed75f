"""The core operators, as data: what the lowering implements. Everything else runs through ATen."""

from __future__ import annotations

import functools

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

ELEMENTWISE = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copysign cos cosh div elu eq erf erfc exp exp2 expm1
    floor floor_divide fmax fmin fmod frac ge gelu gt hardshrink hardsigmoid hardswish hardtanh hypot isinf isnan le
    leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or logical_xor lt maximum minimum mish mul
    nan_to_num ne neg pow reciprocal relu relu6 remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinh
    softplus softshrink sqrt sub tan tanh threshold trunc where xlogy masked_fill
"""
REDUCTIONS = """
    sum mean amax amin max min argmax argmin var var_mean std std_mean prod any all linalg_vector_norm
"""
VIEWS = """
    view reshape _unsafe_view permute t transpose expand slice select squeeze unsqueeze as_strided alias detach diagonal unfold
"""
MOVES = """
    cat constant_pad_nd embedding index index_select gather slice_scatter select_scatter flip roll cumsum
"""
CREATION = """
    arange full empty empty_strided clone _to_copy copy
"""
PRODUCTS = """
    mm addmm bmm baddbmm linear convolution scaled_dot_product_attention
"""

FAMILIES: dict[str, tuple[str, ...]] = {
    "elementwise": tuple(ELEMENTWISE.split()),
    "reductions": tuple(REDUCTIONS.split()),
    "views": tuple(VIEWS.split()),
    "moves": tuple(MOVES.split()),
    "creation": tuple(CREATION.split()),
    "products": tuple(PRODUCTS.split()),
}


@functools.cache
def core_operators() -> frozenset[OpOverload]:
    """Every functional overload of the core operators."""
    found = set()
    for names in FAMILIES.values():
        for name in names:
            packet = getattr(aten, name)
            for overload in packet.overloads():
                op = getattr(packet, overload)
                if not op._schema.is_mutable:
                    found.add(op)
    found.add(aten.sym_size.int)
    return frozenset(found)


def is_core(op: OpOverload) -> bool:
    """Whether an operator is of the core set."""
    return op in core_operators()
