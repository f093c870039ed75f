"""What ATen's operators are, in one table for all stages.

PyTorch is asked where it tells: the schema says what an operator writes and gives back, its tags whether it draws numbers
(``runtime/operators/purity.py``), whether the data tell the sizes of what it gives, and of most whether they go element by element. The rows below say
the rest. To add an operator is to add its name to the row that is true of it, or a new row.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

import torch
from torch._ops import OpOverload

from braze.support.record import record

aten = torch.ops.aten


class Family(enum.Enum):
    """What kind of work an operator does."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    VIEW = "view"  # gives memory that it was given
    COPY = "copy"  # gives new memory with the elements of one tensor
    MOVE = "move"  # gives new memory with elements of its tensors, elsewhere
    CREATION = "creation"  # makes elements of no tensor
    PRODUCT = "product"


class Result(enum.Enum):
    """The type of what an elementwise operator gives."""

    KEEP = "keep"  # the operands' common type
    FLOAT = "float"  # that, or the default float where that is an integer
    BOOL = "bool"


class Takes(enum.Enum):
    """The common types of operands for which ``Result`` holds."""

    ANY = "any"
    NUMBERS = "numbers"  # not bool
    FLOATS = "floats"  # floating-point numbers of one type


@record
class Facts:
    """What is said of an operator, by its name, beside its schema and tags.

    ``result``: an elementwise operator's type, where its metadata follow from type, shapes and strides of its operands alone.
    ``meta``: its kernel for meta tensors, in C++, tells what the CPU's kernel gives. ``cheap``: done again sooner than kept, as
    elementwise operators are. ``unwritten``: gives memory as it is found. ``divides``: an integer divided by zero is an error.
    """

    family: Family
    result: Result | None = None
    takes: Takes = Takes.ANY
    meta: bool = False
    cheap: bool = False
    unwritten: bool = False
    divides: bool = False


def _elementwise(result: Result | None = None, takes: Takes = Takes.ANY, **more: bool) -> Facts:
    return Facts(Family.ELEMENTWISE, result, takes, meta=more.pop("meta", result is not None), **more)


_ROWS: tuple[tuple[Facts, str], ...] = (
    (
        _elementwise(Result.KEEP),
        "add addcmul bitwise_and bitwise_not bitwise_or bitwise_xor fmax fmin frac maximum minimum mul sgn sign",
    ),
    (
        _elementwise(Result.KEEP, Takes.NUMBERS),
        "abs ceil clamp clamp_max clamp_min floor hardtanh neg pow relu round rsub square sub trunc",
    ),
    (_elementwise(Result.KEEP, Takes.NUMBERS, divides=True), "floor_divide fmod remainder"),
    (
        _elementwise(Result.KEEP, Takes.FLOATS),
        "addcdiv elu gelu hardsigmoid hardswish hypot leaky_relu lerp logaddexp logaddexp2 mish silu softplus",
    ),
    (
        _elementwise(Result.FLOAT),
        """acos acosh asin asinh atan atan2 atanh copysign cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 reciprocal
        rsqrt sigmoid sin sinh special_xlog1py sqrt tan tanh xlogy""",
    ),
    (
        _elementwise(Result.FLOAT, meta=False),
        """digamma erfinv i0 lgamma logit sinc special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e special_i1 special_i1e
        special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
        special_spherical_bessel_j0 special_zeta""",
    ),
    (_elementwise(Result.FLOAT, divides=True), "div"),  # where it is told how to round
    (
        _elementwise(Result.BOOL),
        "eq ge gt isinf isnan le logical_and logical_not logical_or logical_xor lt ne",
    ),
    (_elementwise(Result.BOOL, meta=False), "isneginf isposinf signbit"),
    (_elementwise(meta=True), "masked_fill where"),
    (
        _elementwise(),
        "bitwise_left_shift bitwise_right_shift hardshrink heaviside nan_to_num relu6 softshrink threshold",
    ),
    (Facts(Family.REDUCTION, meta=True), "all amax amin any argmax argmin mean prod sum"),
    (Facts(Family.REDUCTION), "linalg_vector_norm max min std std_mean var var_mean"),
    (
        Facts(Family.VIEW, meta=True),
        """alias as_strided detach expand permute select slice split split_with_sizes squeeze t transpose unbind
        unfold unsqueeze view view_as_complex view_as_real _unsafe_view""",
    ),
    # PyTorch's fakes of a diagonal without elements begin beyond it before 2.12: graph/rules/dynamic_ops.py
    (Facts(Family.VIEW), "diagonal reshape"),
    (Facts(Family.COPY, meta=True, cheap=True), "clone copy"),
    (Facts(Family.COPY, cheap=True), "_to_copy"),
    (Facts(Family.MOVE, meta=True, cheap=True), "cat"),
    (Facts(Family.MOVE, cheap=True), "constant_pad_nd"),
    (Facts(Family.MOVE, meta=True), "cumsum flip gather index index_select"),
    (Facts(Family.MOVE), "embedding roll select_scatter slice_scatter diagonal_scatter as_strided_scatter"),
    (
        Facts(Family.CREATION, meta=True, cheap=True),
        "full_like new_full new_ones new_zeros ones_like zeros_like",
    ),
    (Facts(Family.CREATION, cheap=True), "arange full ones scalar_tensor zeros"),
    (Facts(Family.CREATION, meta=True, cheap=True, unwritten=True), "empty_like new_empty"),
    (
        Facts(Family.CREATION, cheap=True, unwritten=True),
        "empty empty_permuted empty_quantized empty_strided new_empty_strided resize resize_as",
    ),
    (Facts(Family.PRODUCT, meta=True), "addmm baddbmm bmm linear mm"),
    (Facts(Family.PRODUCT), "convolution scaled_dot_product_attention"),
)

#: name -> what is known of the operators of ATen's that bear it
OPERATORS: dict[str, Facts] = {name: facts for facts, names in _ROWS for name in names.split()}

#: what an element of a costly one takes beyond an addition, as scalar operations are counted (``loops/scalars.py``)
_COSTS: dict[int, str] = {
    8: "exp exp2",
    12: "elu expm1 sigmoid silu",
    16: "acos asin atan atan2 cosh hypot sinh",
    20: "cos log log10 log2 logit sin sinc special_entr tan tanh xlogy",
    25: "atanh erf erfc gelu log1p special_xlog1py",
    33: "logaddexp logaddexp2 softplus",
    40: "acosh asinh",
    60: """digamma erfinv i0 lgamma mish pow special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri
    special_zeta""",
}
COSTS: dict[str, int] = {name: cost for cost, names in _COSTS.items() for name in names.split()}

_REFUSING = """
_ctc_loss _embedding_bag _embedding_bag_forward_only _linalg_eigh _linalg_svd binary_cross_entropy cholesky embedding gather histc index
index_add index_copy index_fill index_put index_reduce index_select linalg_eig linalg_lstsq linalg_pinv lu_unpack masked_scatter
max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss_forward nll_loss2d_forward nll_loss_forward put scatter scatter_add
scatter_reduce searchsorted take
"""
#: names of operators that refuse what their tensors hold: places that do not exist, too few elements, what has no factors or no end
REFUSING = frozenset(_REFUSING.split())

#: view of a part -> what gives the whole with that part replaced
SCATTERS: dict[OpOverload, OpOverload] = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.select.int: aten.select_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
    aten.as_strided.default: aten.as_strided_scatter.default,
}


def name_of(op: OpOverload) -> str:
    """``add`` for all overloads of ``aten.add``."""
    return op._schema.name.partition("::")[2]


def operator_facts(op: object) -> Facts | None:
    """The row of one of ATen's operators that writes nothing."""
    return _row(op) if isinstance(op, OpOverload) else None


@functools.cache
def _row(op: OpOverload) -> Facts | None:
    return OPERATORS.get(name_of(op)) if op.namespace == "aten" and not op._schema.is_mutable else None


# PyTorch makes lists of tags and of parameters anew each time they are asked for: five microseconds and eleven, several times a node


@functools.cache
def tags_of(op: OpOverload) -> frozenset[torch.Tag]:
    """What PyTorch has noted of an operator."""
    return frozenset(op.tags)


@functools.cache
def names_of_parameters(op: OpOverload) -> tuple[str, ...]:
    """An operator's parameters in order."""
    return tuple(p.name for p in op._schema.arguments)


@functools.cache
def says_whose_memory(op: OpOverload) -> bool:
    """Whether an operator's schema names an argument whose memory a result has."""
    return any(r.alias_info is not None for r in op._schema.returns)


def is_elementwise(op: object) -> bool:
    """Whether each element of the result is made of the elements in its place."""
    if not isinstance(op, OpOverload):
        return False
    return torch.Tag.pointwise in tags_of(op) or _is_of(op, Family.ELEMENTWISE)


def is_reduction(op: object) -> bool:
    """Whether an operator combines the elements along dimensions."""
    return _is_of(op, Family.REDUCTION)


def is_view(op: object) -> bool:
    """Whether an operator gives one view of its first argument."""
    return _is_of(op, Family.VIEW) and op not in _SEVERAL


def is_cheap(op: object) -> bool:
    """Whether what an operator gives is sooner made again than kept, or read from where its parts lie."""
    found = operator_facts(op)
    return is_elementwise(op) or (found is not None and found.cheap)


def cost_of(op: object) -> int:
    """What an elementwise operator takes beyond an addition, an element."""
    return COSTS.get(name_of(op), 0) if is_elementwise(op) and isinstance(op, OpOverload) else 0


#: they give lists
_SEVERAL = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)


def _is_of(op: object, family: Family) -> bool:
    found = operator_facts(op)
    return found is not None and found.family is family


@functools.cache
def operands(op: OpOverload) -> int:
    """How many of an elementwise operator's first arguments its result's type depends on."""
    numbers = ("self", "other", "exponent", "x", "n")
    taken = [p for p in op._schema.arguments if not p.kwarg_only]
    return sum(str(p.type) == "Tensor" or p.name in numbers for p in taken)


def written_parameters(op: OpOverload) -> list[tuple[int, Any]]:
    """(position, parameter) of those that an operator writes."""
    return [
        (i, p)
        for i, p in enumerate(op._schema.arguments)
        if p.alias_info is not None and p.alias_info.is_write
    ]


#: in-place operators whose functional form has another name
_OTHER_NAME: dict[OpOverload, OpOverload | None] = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
    aten.copy_.default: None,
    aten.fill_.Scalar: None,
    aten.fill_.Tensor: None,
    aten.zero_.default: None,
}


@functools.cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """The overload that computes what ``op`` writes: ``add.Tensor`` for ``add_.Tensor`` and ``add.out``."""
    if op in _OTHER_NAME:
        return _OTHER_NAME[op]
    wanted = [(p.name, str(p.type)) for p in op._schema.arguments if not p.is_out]
    packet = getattr(getattr(torch.ops, op.namespace), name_of(op).removesuffix("_"), None)
    if packet is None:
        return None
    for overload in (op._overloadname, *packet.overloads()):
        candidate = getattr(packet, overload, None)
        if candidate is None or candidate._schema.is_mutable:
            continue
        if [(p.name, str(p.type)) for p in candidate._schema.arguments] == wanted:
            return candidate  # type: ignore[no-any-return]
    return None
