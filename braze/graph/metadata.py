"""Metadata of results without FakeTensorMode, for the operators that models use most.

The first operator that goes through FakeTensorMode imports SymPy and PyTorch's Python meta functions, most of a
second. Operators of ``DIRECT`` have meta kernels in C++: they run on plain meta tensors over the fakes' storages. Those of
``RULES`` have a small function here. Everything else, and every call that fails here, goes the usual way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph import torch_compat
from braze.graph.elementwise import TABLE, elementwise, where

aten = torch.ops.aten

MISS = object()

_ELEMENTWISE = """
    add sub mul div rsub pow neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan tanh sinh cosh sigmoid relu gelu silu
    erf erfc abs sign floor ceil round trunc frac clamp clamp_min clamp_max maximum minimum eq ne lt le gt ge logical_and logical_or
    logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor leaky_relu elu hardtanh hardsigmoid softplus mish
    remainder fmod atan2 addcmul addcdiv lerp isnan isinf masked_fill square
"""
_REDUCTIONS = "sum mean amax amin argmax argmin any all prod cumsum"
_PRODUCTS = "mm addmm bmm baddbmm linear"
_MOVES = "cat gather index clone where copy new_ones new_zeros new_full new_empty zeros_like ones_like full_like empty_like index_select flip"
_VIEWS = """
    view _unsafe_view transpose t permute expand slice select unsqueeze squeeze as_strided alias detach split split_with_sizes unbind
    unfold diagonal
"""

DIRECT_NAMES = " ".join([_ELEMENTWISE, _REDUCTIONS, _PRODUCTS, _MOVES, _VIEWS]).split()
FACTORIES = frozenset({aten.full.default, aten.empty.memory_format, aten.arange.start_step, aten.zeros.default, aten.ones.default, aten.arange.default, aten.arange.start, aten.empty_strided.default, aten.scalar_tensor.default})

CPU = torch.device("cpu")


def _functional_overloads() -> frozenset[Any]:
    found = set()
    for name in DIRECT_NAMES:
        packet = getattr(aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable:
                found.add(op)
    return frozenset(found)


DIRECT = _functional_overloads()


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether PyTorch defines an operator by others alone (and it has no rule here)."""
    if func.namespace != "aten" or func in DIRECT or func in RULES:
        return False
    return torch_compat.has_composite_kernel(func)


def result_of(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The fakes that ``func`` gives on these fakes, or MISS."""
    if func in FACTORIES:
        return _factory(mode, func, args, kwargs)
    rule = RULES.get(func)
    if rule is None and func in TABLE:
        rule = functools.partial(_elementwise, func)
    if rule is None and func not in DIRECT and func is not aten._to_copy.default:
        return MISS
    fakes: list[Any] = []
    _collect(args, fakes)
    _collect(kwargs.values(), fakes)
    if not fakes:
        return MISS
    device = fakes[0]._fake_device
    if any(f._fake_device != device for f in fakes):
        return MISS
    wanted = kwargs.get("device")
    if wanted is not None and (device.type != "cpu" or torch.device(wanted) != device):
        return MISS
    pairs: list[tuple[torch.Tensor, Any]] = []
    try:
        with torch_compat.outside_modes(), torch_compat.BelowAutograd():
            made = {k: _on_meta(v, pairs) for k, v in kwargs.items() if k != "device"}
            plain = _on_meta(tuple(args), pairs)
            result = rule(*plain, **made) if rule is not None else func(*plain, **made)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return MISS  # the usual way raises what the user should see
    if result is NotImplemented:
        return MISS
    return _as_fakes(mode, result, device, pairs)


def _factory(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A new tensor on the CPU."""
    wanted = kwargs.get("device") or torch.get_default_device()
    if torch.device(wanted) != CPU or kwargs.get("layout") not in (None, torch.strided) or kwargs.get("pin_memory"):
        return MISS
    try:
        with torch_compat.outside_modes(), torch_compat.BelowAutograd():
            made = func(*args, **{**kwargs, "device": torch.device("meta")})
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return MISS
    return _as_fakes(mode, made, CPU, [])


def _collect(values: Any, found: list[Any]) -> None:
    for value in values:
        if isinstance(value, FakeTensor):
            found.append(value)
        elif type(value) in (tuple, list):
            _collect(value, found)


def _on_meta(value: Any, pairs: list[tuple[torch.Tensor, Any]]) -> Any:
    """A plain meta tensor over the same storage for each fake."""
    if isinstance(value, FakeTensor):
        for known, fake in pairs:
            if fake is value:
                return known
        made = torch.empty(0, dtype=value.dtype, device="meta")
        made.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]
        pairs.append((made, value))
        return made
    if type(value) in (tuple, list):
        return type(value)(_on_meta(v, pairs) for v in value)
    return value


def _as_fakes(mode: Any, value: Any, device: torch.device, pairs: list[tuple[torch.Tensor, Any]]) -> Any:
    if isinstance(value, torch.Tensor):
        for known, fake in pairs:
            if known is value:
                return fake
        with torch_compat.outside_modes():
            return torch_compat.assemble_fake(mode, value, device, False)
    if isinstance(value, (tuple, list)):
        made = [_as_fakes(mode, v, device, pairs) for v in value]
        return made if isinstance(value, list) else tuple(made)
    return value


# -- operators without a meta kernel in C++: functions of plain meta tensors -------------------------

Tensor = torch.Tensor


def _new(sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(list(sizes), dtype=dtype, device="meta")


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    lead = x.dim() - len(shape)
    if list(x.shape[lead:]) != list(shape) or not x.is_contiguous() or lead < 1:
        return NotImplemented
    if any(p is not None and p.dtype is not x.dtype for p in (weight, bias)):
        return NotImplemented
    statistics = [*x.shape[:lead], *[1] * len(shape)]
    return _new(x.shape, x.dtype), _new(statistics, x.dtype), _new(statistics, x.dtype)


def _embedding(weight: Tensor, indices: Tensor, *rest: Any) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return _new([*indices.shape, weight.shape[1]], weight.dtype)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    if half_to_float or not x.is_contiguous() or not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return NotImplemented
    return _new(x.shape, x.dtype)


def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    mean = aten.mean.dim(x, dim, keepdim)
    return _new(mean.shape, x.dtype), mean


def _variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    made = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return made if made is NotImplemented else made[0]


def _convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Any:
    rank = weight.dim() - 2
    plain = x.is_contiguous() and weight.is_contiguous() and x.dim() == weight.dim()
    if transposed or not plain or rank not in (1, 2, 3) or x.dtype is not weight.dtype:
        return NotImplemented
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups or x.numel() == 0:
        return NotImplemented
    stride, padding, dilation = (list(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation))
    sizes = [
        (x.shape[2 + d] + 2 * padding[d] - dilation[d] * (weight.shape[2 + d] - 1) - 1) // stride[d] + 1
        for d in range(rank)
    ]
    if min(sizes) <= 0 or (bias is not None and list(bias.shape) != [weight.shape[0]]):
        return NotImplemented
    # a tensor of both layouts at once (one channel, or a 1x1 image) may come out either way
    if rank == 2 and (x.is_contiguous(memory_format=torch.channels_last) or weight.is_contiguous(memory_format=torch.channels_last)):
        return NotImplemented
    if rank == 3 and (x.is_contiguous(memory_format=torch.channels_last_3d) or weight.is_contiguous(memory_format=torch.channels_last_3d)):
        return NotImplemented
    return _new([x.shape[0], weight.shape[0], *sizes], x.dtype)


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if training or not x.is_contiguous() or x.dim() < 2 or (weight is not None and weight.dtype is not x.dtype):
        return NotImplemented
    return _new(x.shape, x.dtype), _new([0], x.dtype), _new([0], x.dtype)


def _adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Any:
    if not x.is_contiguous() or x.dim() not in (3, 4) or x.is_contiguous(memory_format=torch.channels_last):
        return NotImplemented
    return _new([*x.shape[:-2], *size], x.dtype)


def _flash_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None, scale: Any = None
) -> Any:
    """The CPU kernel: its result is laid out as the query is."""
    if q.dim() != 4 or q.shape[-1] != v.shape[-1]:
        return NotImplemented
    batch, heads, length, _ = q.shape
    narrow = q.dtype in (torch.float16, torch.bfloat16)
    statistics = _new([batch, length, heads], torch.float32 if narrow else q.dtype)
    return torch.empty_like(q), statistics.transpose(1, 2)


def _mm(a: Tensor, b: Tensor) -> Any:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.dtype is not b.dtype:
        return NotImplemented
    return _new([a.shape[0], b.shape[1]], a.dtype)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(c, _mm(a, b))


def _bmm(a: Tensor, b: Tensor) -> Any:
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1] or a.dtype is not b.dtype:
        return NotImplemented
    return _new([*a.shape[:2], b.shape[2]], a.dtype)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(c, _bmm(a, b))


def _added(c: Tensor, product: Any) -> Any:
    """The product's metadata, if ``c`` can be broadcast to it."""
    if product is NotImplemented or c.dtype is not product.dtype or c.dim() > product.dim():
        return NotImplemented
    fits = all(n in (1, m) for n, m in zip(reversed(c.shape), reversed(product.shape)))
    return product if fits else NotImplemented


def _linear(x: Tensor, weight: Tensor, bias: Any = None) -> Any:
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or x.dtype is not weight.dtype:
        return NotImplemented
    if bias is not None and (bias.dtype is not x.dtype or list(bias.shape) != [weight.shape[0]]):
        return NotImplemented
    # a batch that is no single run of rows is multiplied in its own order: leave it to PyTorch
    return _new([*x.shape[:-1], weight.shape[0]], x.dtype) if x.is_contiguous() or x.dim() == 2 else NotImplemented


def _elementwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    return elementwise(func, args, kwargs)


RULES: dict[Any, Callable[..., Any]] = {
    aten.where.self: where,
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.baddbmm.default: _baddbmm,
    aten.linear.default: _linear,
    aten.native_layer_norm.default: _layer_norm,
    aten.embedding.default: _embedding,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _variance,
    aten.std.correction: _variance,
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm,
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool2d,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention,
}
