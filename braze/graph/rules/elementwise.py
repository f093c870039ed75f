"""What an elementwise operator's result looks like: type promotion, broadcasting, and the strides that eager picks.

Facts about eager: the result takes the dims' order from its operands' strides, the first operand that tells two dims apart
deciding, and is dense in that order; operands that agree in dense strides pass them on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from braze.graph.operators.operators import Result, Takes, name_of, operands, operator_facts
from braze.graph.sizes import extents
from braze.graph.sizes.extents import TENSORS, Extent, Geometry, Undecided, is_symbolic

aten = torch.ops.aten
Tensor = torch.Tensor

_TAKE_SCALE = frozenset({"add", "sub", "rsub"})
#: of those of floats alone, the ones that take two types
_JOIN_FLOATS = frozenset({"hypot", "logaddexp", "logaddexp2"})
_COMPLEX = """
acos acosh add addcmul asin asinh atan atanh cos cosh div eq exp exp2 expm1 isnan log log10 log1p log2 logical_and logical_not logical_or
logical_xor mul ne neg pow reciprocal rsqrt rsub sgn sigmoid sin sinh sqrt square sub tan tanh
"""
#: whose kernels for complex numbers are one loop, too, of which PyTorch's fakes say another order where operands leave it open
_TAKE_COMPLEX = frozenset(_COMPLEX.split())


@functools.cache
def has_rule(op: Any) -> bool:
    """Whether the metadata of what an operator gives are told here."""
    known = operator_facts(op)
    return known is not None and known.result is not None and op._overloadname != "decimals"


def elementwise(func: Any, args: Any, kwargs: dict[str, Any], casts_first: bool = True) -> Any:
    """The result's metadata as a meta tensor, or NotImplemented; ``args`` are plain meta tensors and numbers.

    ``casts_first``: whether operands of another type than the loop's are copied to that before it, as on a processor.
    """
    known, name, count = operator_facts(func), name_of(func), operands(func)
    assert known is not None
    if name.startswith("clamp") and func._overloadname == "Tensor":
        return _clamped_by_tensors(*args, **kwargs, casts_first=casts_first)
    rule = known.result
    given = list(args[:count])
    if len(given) < count or (kwargs and not (name in _TAKE_SCALE and set(kwargs) <= {"alpha"})):
        if set(kwargs) - {"alpha", "approximate", "value", "rounding_mode"}:
            return NotImplemented
    if kwargs.get("approximate", "none") not in ("none", "tanh"):
        return NotImplemented
    tensors = [a for a in given if isinstance(a, TENSORS)]
    if not tensors:
        return NotImplemented
    dtype = _promoted(given)
    if dtype.is_complex and not _takes_complex(name, given, dtype, kwargs):
        return NotImplemented
    if known.takes is Takes.NUMBERS and dtype is torch.bool:
        return NotImplemented
    if name in ("sub", "rsub") and any(
        a.dtype is torch.bool if isinstance(a, TENSORS) else type(a) is bool for a in given
    ):
        return NotImplemented
    if name.startswith("bitwise") and dtype.is_floating_point:
        return NotImplemented
    if known.takes is Takes.FLOATS and (
        not dtype.is_floating_point
        or (name not in _JOIN_FLOATS and any(t.dtype is not dtype for t in tensors))
    ):
        return NotImplemented
    if name.startswith("clamp") or name == "hardtanh":
        limits = [a for a in (*args[1:], *kwargs.values()) if a is not None]
        if not dtype.is_floating_point and any(type(a) is not int for a in limits):
            if name == "hardtanh" or any(type(a) not in (int, float) for a in limits):
                return NotImplemented
            dtype = torch.get_default_dtype()  # to which the operand is cast
    if (mode := kwargs.get("rounding_mode")) is not None:
        if mode not in ("floor", "trunc") or dtype is torch.bool:
            return NotImplemented
        rule = Result.KEEP
    if rule is Result.FLOAT and not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    if casts_first:
        given = _cast(given, dtype)
        tensors = [a for a in given if isinstance(a, TENSORS)]
    if rule is Result.BOOL:
        dtype = torch.bool
    if name == "rsub":  # eager subtracts the first from the second, which decides the order of dims
        given.reverse()
    if name == "hardtanh" or (name == "isinf" and not tensors[0].dtype.is_floating_point):
        return laid_like(tensors[0], dtype)  # made before the loop
    # a number is a tensor without dims, but for an exponent
    return allocated(tensors if name == "pow" else given, dtype)


def _takes_complex(name: str, given: list[Any], dtype: torch.dtype, options: dict[str, Any]) -> bool:
    """Whether a call with complex numbers is one loop, whose result is of the common type."""
    if dtype is torch.complex32 or options.get("rounding_mode") is not None:
        return False  # most kernels do not know pairs of halves
    return name in _TAKE_COMPLEX and (name != "pow" or isinstance(given[0], TENSORS))


def where(condition: Tensor, x: Tensor, y: Tensor) -> Any:
    """``where`` with tensors."""
    if condition.dtype is not torch.bool:
        return NotImplemented
    dtype = _promoted([x, y])
    return allocated([condition, *_cast([x, y], dtype)], dtype)  # by calls before its loop, on every device


def _clamped_by_tensors(x: Any, low: Any = None, high: Any = None, *, casts_first: bool) -> Any:
    """One loop over the bounds that there are, of truth values over one."""
    operands = [t for t in (x, low, high) if t is not None]
    dtypes = [t.dtype for t in operands]
    if len(set(dtypes)) > 1 and not all(t.dim() for t in operands):
        return NotImplemented  # a tensor without dims does not decide the type
    dtype = functools.reduce(torch.promote_types, dtypes)
    if len(operands) == 1 or dtype.is_complex or (dtype is torch.bool and len(operands) == 3):
        return NotImplemented  # an error
    return allocated(_cast(operands, dtype) if casts_first else operands, dtype)


def _cast(operands: list[Any], dtype: torch.dtype) -> list[Any]:
    """Operands as copies to one type lie: what is repeated has memory of its own then, so that its strides tell of an order."""
    return [laid_like(a, dtype) if isinstance(a, TENSORS) and a.dtype is not dtype else a for a in operands]


def _promoted(operands: list[Any]) -> torch.dtype:
    """The common type; a third operand joins the first two's as a tensor would."""
    dtype = operands[0].dtype if isinstance(operands[0], TENSORS) else None
    if len(operands) == 1:
        return dtype  # type: ignore[return-value]
    operands = [a.stand_in() if type(a) is Geometry else 1 if type(a) is Extent else a for a in operands]
    dtype = torch.result_type(operands[0], operands[1])
    if len(operands) == 3:
        pair = torch.result_type(operands[1], operands[2])
        if pair is not dtype:
            raise NotImplementedError("three different types")
    return dtype


def allocated(operands: Sequence[Any], dtype: torch.dtype) -> Any:
    """A new meta tensor of the broadcast shape, in the order of dims that eager's iterator picks for a loop over tensors and numbers.

    Where all have one shape, which a number has not, eager looks for row-major operands, for pictures with their channels innermost and
    for equal strides, and goes by the order of strides only then: dims of one element have a part in that.
    """
    tensors: list[Any] = [t for t in operands if isinstance(t, TENSORS)]
    shape = tensors[0].shape if len(tensors) == 1 else broadcast([t.shape for t in tensors])
    alone = len(tensors) == len(operands) and all(len(t.shape) == len(shape) for t in tensors)
    if any(type(t) is Geometry for t in tensors):
        # what a rule has made of sizes that are no symbols is a tensor
        told = [t if type(t) is Geometry else Geometry(t.dtype, t.shape, t.stride()) for t in tensors]
        return _allocated_symbolic(told, shape, dtype, alone)
    if alone and all(t.shape == shape for t in tensors):
        if all(t.is_contiguous() for t in tensors):
            return torch.empty(shape, dtype=dtype, device="meta")
        if _pictures(tensors, shape):
            return torch.empty_strided(shape, _channels_last(shape), dtype=dtype, device="meta")
        if is_dense(tensors[0]) and all(t.stride() == tensors[0].stride() for t in tensors):
            return torch.empty_strided(shape, tensors[0].stride(), dtype=dtype, device="meta")
    return torch.empty_strided(shape, _ordered_strides(tensors, shape), dtype=dtype, device="meta")


def _allocated_symbolic(tensors: list[Any], shape: Sequence[Any], dtype: torch.dtype, alone: bool) -> Any:
    """As ``allocated``, told for all sizes or asked. ``alone``: whether no operand is a number or is without some dims."""
    try:
        if alone and any(type(n) is int and n == 0 for n in shape) and _of_one_shape(tensors, shape):
            return Geometry(dtype, shape, None)  # what has no elements lies row by row, whatever its strides
        if any(points_elsewhere(t, shape) for t in tensors) and not (alone and _of_one_shape(tensors, shape)):
            raise Undecided("the order of dims of one element")
        return extents.allocated(tensors, shape, dtype)
    except Undecided:
        # PyTorch's fakes are right of operators that are one loop to them, and wrong of those that they make of others
        if not extents.may_ask(tensors):
            raise
    if alone and _pictures(tensors, shape):
        return Geometry(dtype, shape, _channels_last(shape))
    return Geometry(dtype, shape, _ordered_strides(tensors, shape))


def _of_one_shape(tensors: list[Any], shape: Sequence[Any]) -> bool:
    return all(n == m for t in tensors for n, m in zip(t.shape, shape, strict=True))


def points_elsewhere(t: Geometry, shape: Sequence[Any]) -> bool:
    """Whether a dim of one element has another stride than it has row by row, where that tells an order of dims."""
    plain = extents.row_major(t.shape)
    dims = zip(t.shape, t.strides, plain, shape[len(shape) - t.dim() :], strict=True)
    return any(
        type(n) is int and n == 1 and type(m) is int and m == 1 and not extents.same(stride, usual)
        for n, stride, usual, m in dims
    )


def laid_like(x: Any, dtype: torch.dtype) -> Any:
    """A new meta tensor that lies as another does, as far as that fills its memory (``empty_like``): without elements all of it."""
    if isinstance(x, Geometry):
        empty = any(type(n) is int and n == 0 for n in x.shape)
        kept = empty or (points_elsewhere(x, x.shape) and fill_memory(x.shape, x.strides))
        return Geometry(dtype, x.shape, x.strides) if kept else allocated([x], dtype)
    if x.numel() and not is_dense(x):
        return allocated([x], dtype)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype, device="meta")


def _pictures(tensors: list[Any], shape: Any) -> bool:
    """Whether all are of this shape, with their channels innermost as far as dims of more than one element tell."""
    return len(shape) == 4 and all(
        len(t.shape) == 4
        and all(n == m for n, m in zip(t.shape, shape, strict=True))
        and t.is_contiguous(memory_format=torch.channels_last)
        for t in tensors
    )


def _channels_last(shape: Any) -> tuple[Any, ...]:
    _, channels, height, width = shape
    return (height * width * channels, 1, width * channels, channels)


def _ordered_strides(tensors: list[Any], shape: Any) -> list[Any]:
    """The strides of a dense tensor whose dims lie as eager's iterator orders them."""
    order = _order(shape, [_broadcast_strides(t, shape) for t in tensors])
    row_by_row = order == [*reversed(range(len(shape)))]
    made: list[Any] = [0] * len(shape)
    step: Any = 1
    for dim in order:
        made[dim] = step
        # of what lies row by row dims without elements count for one; otherwise what is around them lies 0 apart
        step = step * (shape[dim] if not row_by_row or shape[dim] > 0 else 1)
    return made


def broadcast(shapes: list[Any]) -> Any:
    """The common shape (torch.broadcast_shapes imports SymPy)."""
    if any(map(is_symbolic, shapes)):
        return extents.broadcast(shapes)
    made = [1] * max(map(len, shapes))
    for shape in shapes:
        for d in range(1, len(shape) + 1):
            if shape[-d] != 1:
                if made[-d] not in (1, shape[-d]):
                    raise ValueError("shapes do not fit")
                made[-d] = shape[-d]
    return torch.Size(made)


def fits_into(given: Any, whole: Any) -> bool:
    """Whether a shape broadcasts with another to that one."""
    return list(broadcast([whole, given])) == list(whole)


def is_dense(t: Tensor) -> bool:
    """Whether every place of the memory that t spans holds exactly one element."""
    return fill_memory(t.shape, t.stride())


def fill_memory(sizes: Iterable[Any], strides: Iterable[Any]) -> bool:
    """Whether elements that lie so leave no place between the first and the last, in whatever order."""
    step: Any = 1
    # of dims of one element nobody asks which stride is the smaller one
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


def _broadcast_strides(t: Any, shape: Any) -> list[Any]:
    """Bytes between neighbours along each dim of the result; 0 along broadcast dims."""
    lead = len(shape) - t.dim()
    wide: list[Any] = [0] * lead
    for d in range(t.dim()):
        one = t.shape[d] == 1 and shape[lead + d] != 1
        wide.append(0 if one else t.stride(d) * t.element_size())
    return wide


def _order(shape: Any, strides: list[list[Any]]) -> list[int]:
    """Dims from innermost to outermost: an insertion sort that starts from the row-major order."""
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        moving = i
        for j in range(i - 1, -1, -1):
            verdict = _compare(order[j], order[moving], shape, strides)
            if verdict > 0:
                order[j], order[moving] = order[moving], order[j]
                moving = j
            elif verdict < 0:
                break
    return order


def _compare(a: int, b: int, shape: Any, strides: list[list[Any]]) -> int:
    """1 where dim a should lie outside dim b, -1 where inside, 0 where no operand tells."""
    for each in strides:
        if each[a] == 0 or each[b] == 0:
            continue
        if each[a] != each[b]:
            return 1 if each[a] > each[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0
