"""Metadata of results without FakeTensorMode, for the operators that models use most.

The first operator that goes through FakeTensorMode imports SymPy and PyTorch's Python meta functions, most of a
second. Operators of ``DIRECT`` have meta kernels in C++: they run on plain meta tensors over the fakes' storages. Those of
``RULES`` have a small function here. Everything else, and every call that fails here, goes the usual way.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph import torch_compat
from braze.graph.elementwise import elementwise, entry_of
from braze.graph.rules import CPU_ONLY, FACTORIES, RULES

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

DIRECT = frozenset(" ".join([_ELEMENTWISE, _REDUCTIONS, _PRODUCTS, _MOVES, _VIEWS]).split())

CPU = torch.device("cpu")


@functools.cache
def is_direct(func: Any) -> bool:
    """Whether an operator's own meta kernel is asked."""
    schema = func._schema
    return func.namespace == "aten" and not schema.is_mutable and schema.name.removeprefix("aten::") in DIRECT


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether PyTorch defines an operator by others alone (and it has no rule here)."""
    if func.namespace != "aten" or is_direct(func) or func in RULES:
        return False
    return torch_compat.has_composite_kernel(func)


def result_of(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The fakes that ``func`` gives on these fakes, or MISS."""
    if func in FACTORIES:
        return _factory(mode, func, args, kwargs)
    if func._schema.is_mutable:
        return _written(mode, func, args, kwargs)
    rule = RULES.get(func)
    if rule is None and entry_of(func) is not None:
        rule = functools.partial(_elementwise, func)
    if rule is None and not is_direct(func) and func is not aten._to_copy.default:
        return MISS
    fakes: list[Any] = []
    _collect(args, fakes)
    _collect(kwargs.values(), fakes)
    if not fakes:
        return MISS
    device = torch_compat.device_of_fake(fakes[0])
    if any(torch_compat.device_of_fake(f) != device for f in fakes):
        return MISS
    if func in CPU_ONLY and device.type != "cpu":
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


def _written(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The target of an elementwise in-place operator, where the operator is right for it."""
    functional = _functional_form(func)
    target = args[0] if args else None
    fakes: list[Any] = []
    _collect(args, fakes)
    if functional is None or type(target) is not FakeTensor or any(f.constant is not None for f in fakes):
        return MISS
    if any(s == 0 and n > 1 for n, s in zip(target.shape, target.stride(), strict=True)):
        return MISS
    if functional is _FILL:
        return target if len(fakes) == 1 else MISS
    if functional is _COPY:
        fits = len(fakes) == 2 and target.dim() >= fakes[1].dim()
        fits = fits and all(
            n in (1, m) for n, m in zip(reversed(fakes[1].shape), reversed(target.shape), strict=False)
        )
        return target if fits else MISS
    result = result_of(mode, functional, args, kwargs)
    if result is MISS or result.shape != target.shape or not torch.can_cast(result.dtype, target.dtype):
        return MISS
    return target


_FILL, _COPY = "fill", "copy"


@functools.cache
def _functional_form(func: Any) -> Any:
    if func in (aten.zero_.default, aten.fill_.Scalar):
        return _FILL
    if func is aten.copy_.default:
        return _COPY
    name = func._schema.name.removeprefix("aten::")
    if not name.endswith("_") or func.namespace != "aten":
        return None
    packet = getattr(aten, name.removesuffix("_"), None)
    found = getattr(packet, func._overloadname, None)
    return found if found is not None and entry_of(found) is not None else None


def _factory(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A new tensor on the CPU."""
    wanted = kwargs.get("device") or torch.get_default_device()
    if (
        torch.device(wanted) != CPU
        or kwargs.get("layout") not in (None, torch.strided)
        or kwargs.get("pin_memory")
    ):
        return MISS
    try:
        with torch_compat.outside_modes(), torch_compat.BelowAutograd():
            made = FACTORIES[func](
                *args, **{k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
            )
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return MISS
    if made is NotImplemented:
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


def _elementwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    return elementwise(func, args, kwargs)
