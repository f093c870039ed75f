"""Metadata of calls of torch functions that come down to one operator, without the dispatcher.

A call on fakes goes through the argument parser, autograd's keys and back into Python, once per operator and once for each
question about a device: 0.1 to 0.4 ms. Where the function and the kinds of its arguments say which operator it ends in, that operator's
rule is asked at once; functions that give views run on plain meta tensors over the fakes' storages. Static sizes, no autograd,
no autocast: whoever calls has seen to that. What is not known here, or wrong, goes the usual way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.private import torch_compat
from braze.graph.rules import metadata
from braze.graph.rules.metadata import CPU, MISS

aten = torch.ops.aten
Tensor = torch.Tensor
_NUMBERS = frozenset({int, float, bool})

#: (operator, its arguments, its keyword arguments, which of its results is the function's or None for all)
Plan = tuple[Any, tuple[Any, ...], dict[str, Any], int | None]
_NOTHING: dict[str, Any] = {}


def result_of(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives on these fakes, or MISS."""
    rule = RULES.get(func)
    if rule is not None:
        try:
            plan = rule(*args, **kwargs)
        except (TypeError, IndexError):  # called in a way that is not known here
            return MISS
        if plan is None:
            return MISS
        if plan is ON_PLAIN:
            return metadata.on_meta(mode, func, args, kwargs)
        if type(plan) is not tuple:
            return plan
        op, args, kwargs, index = plan
        result = metadata.result_of(mode, op, args, kwargs)
        if result is MISS or result is NotImplemented:
            return MISS
        if op._schema.is_mutable:
            mode.writes += 1
            torch.autograd.graph.increment_version(result)
        return result if index is None else result[index]
    if func in ON_META and args and type(args[0]) is FakeTensor:
        return metadata.on_meta(mode, func, args, kwargs)
    return MISS


# -- elementwise -----------------------------------------------------------------------------------


def _named(*names: str) -> list[Any]:
    """The functions and methods of these names."""
    homes = (torch, Tensor)
    return [getattr(home, name) for name in names for home in homes if hasattr(home, name)]


def _binary(op: Any, numbers_first: bool) -> Callable[..., Any]:
    def rule(a: Any, b: Any, **options: Any) -> Plan | None:
        if type(a) is FakeTensor:
            if type(b) is FakeTensor or type(b) in _NUMBERS:
                return op, (a, b), options, None
        elif numbers_first and type(a) in _NUMBERS and type(b) is FakeTensor:
            return op, (a, b), options, None
        return None

    return rule


def _unary(op: Any) -> Callable[..., Any]:
    def rule(x: Any) -> Plan | None:
        return (op, (x,), _NOTHING, None) if type(x) is FakeTensor else None

    return rule


def _activation(op: Any, written: Any) -> Callable[..., Any]:
    """A function of ``torch.nn.functional`` with a flag that has it write into its argument."""

    def rule(input: Any, inplace: bool = False) -> Plan | None:
        return (written if inplace else op, (input,), _NOTHING, None) if type(input) is FakeTensor else None

    return rule


def _gelu(input: Any, approximate: str = "none") -> Plan:
    return aten.gelu.default, (input,), {"approximate": approximate}, None


def _power(a: Any, b: Any) -> Plan | None:
    if type(a) is not FakeTensor:
        return None
    if type(b) is FakeTensor:
        return aten.pow.Tensor_Tensor, (a, b), _NOTHING, None
    return (aten.pow.Tensor_Scalar, (a, b), _NOTHING, None) if type(b) in _NUMBERS else None


def _masked_fill(x: Any, mask: Any, value: Any) -> Plan | None:
    if type(value) not in _NUMBERS or mask.dtype is not torch.bool:
        return None
    return aten.masked_fill.Scalar, (x, mask, value), _NOTHING, None


def _where(condition: Any, input: Any, other: Any) -> Plan | None:
    if any(type(x) is not FakeTensor for x in (condition, input, other)):
        return None
    return aten.where.self, (condition, input, other), _NOTHING, None


# -- casts -----------------------------------------------------------------------------------------


def _cast(dtype: torch.dtype) -> Callable[..., Any]:
    def rule(x: Any) -> Any:
        return x if x.dtype is dtype else (aten._to_copy.default, (x,), {"dtype": dtype}, None)

    return rule


def _to(x: Any, *given: Any, device: Any = None, dtype: Any = None) -> Any:
    for value in given:
        if type(value) is FakeTensor:
            device, dtype = torch_compat.device_of_fake(value), value.dtype
        elif type(value) is torch.dtype:
            dtype = value
        elif type(value) is torch.device or type(value) is str:
            device = value
        else:
            return None
    here = torch_compat.device_of_fake(x)
    if device is not None and (here != CPU or torch.device(device) != CPU):
        return None
    return x if dtype is None else _cast(dtype)(x)


# -- layers ----------------------------------------------------------------------------------------


def _linear(input: Any, weight: Any, bias: Any = None) -> Plan:
    return aten.linear.default, (input, weight, bias), _NOTHING, None


def _product(op: Any) -> Callable[..., Any]:
    return lambda *operands: (op, operands, _NOTHING, None)


def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Plan:
    return aten.native_layer_norm.default, (input, normalized_shape, weight, bias, eps), _NOTHING, 0


def _embedding(input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *rest: Any) -> Any:
    rows = weight.shape[0]
    padded = padding_idx is None or (type(rows) is int and -rows <= padding_idx < rows)
    return (aten.embedding.default, (weight, input), _NOTHING, None) if padded and max_norm is None else None


def _convolution(rank: int) -> Callable[..., Any]:
    def rule(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Plan | None:
        if input.dim() != rank + 2 or type(padding) is str:
            return None
        each = [list(n) if type(n) is not int else [n] * rank for n in (stride, padding, dilation)]
        return (
            aten.convolution.default,
            (input, weight, bias, *each, False, [0] * rank, groups),
            _NOTHING,
            None,
        )

    return rule


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Plan | None:
    if training or type(running_mean) is not FakeTensor or type(running_var) is not FakeTensor:
        return None
    channels = (input.shape[1],)
    if running_mean.dtype is not input.dtype:
        return None
    if any(t is not None and t.shape != channels for t in (running_mean, running_var, weight, bias)):
        return None  # which is refused
    own = (input, weight, bias, running_mean, running_var, False, momentum, eps)
    return aten.native_batch_norm.default, own, _NOTHING, 0


def _cat(tensors: Any, dim: int = 0) -> Plan:
    return aten.cat.default, (list(tensors), dim), _NOTHING, None


def _mean(input: Any, dim: Any = None, keepdim: bool = False) -> Plan | None:
    if type(dim) is int:
        dim = [dim]
    return (aten.mean.dim, (input, list(dim), keepdim), _NOTHING, None) if dim else None


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Plan | None:
    if type(dim) is not int or dtype is not None or not input.dtype.is_floating_point:
        return None
    return aten._softmax.default, (input, dim, False), _NOTHING, None


def _cumsum(input: Any, dim: Any, *, dtype: Any = None) -> Plan | None:
    options = {"dtype": dtype} if dtype is not None else _NOTHING
    return (aten.cumsum.default, (input, dim), options, None) if type(dim) is int else None


def _item(x: Any, key: Any) -> Any:
    """An index: integers, slices and the like give views; tensors of integers at every place a copy.

    A tensor of no dimensions names a place by the number that it holds, which has to be read: a view.
    """
    if type(x) is not FakeTensor:
        return None
    keys = key if type(key) is tuple else (key,)
    if all(type(k) is FakeTensor and k.dtype is torch.int64 and k.dim() for k in keys):
        return (aten.index.Tensor, (x, list(keys)), _NOTHING, None) if keys else None
    return ON_PLAIN if all(map(_is_index, keys)) else None


def _is_index(key: Any) -> bool:
    kind = type(key)
    if kind is slice:
        return all(type(n) is int or n is None for n in (key.start, key.stop, key.step))
    return kind is int or key is None or key is ...


def _arange(*limits: Any, dtype: Any = None, device: Any = None) -> Plan | None:
    if any(type(n) is not int for n in limits):
        return None
    op = (aten.arange.default, aten.arange.start, aten.arange.start_step)[len(limits) - 1]
    return op, limits, {"dtype": dtype, "device": device}, None


def _filled(op: Any) -> Callable[..., Any]:
    def rule(*size: Any, dtype: Any = None, device: Any = None) -> Plan | None:
        if len(size) == 1 and type(size[0]) is not int:
            size = tuple(size[0])
        if any(type(n) is not int for n in size):
            return None
        return op, (list(size),), {"dtype": dtype, "device": device}, None

    return rule


#: what a rule answers to have the call itself made on plain meta tensors
ON_PLAIN = object()

RULES: dict[Any, Callable[..., Any]] = {
    operator.getitem: _item,
    torch.where: _where,
    torch.arange: _arange,
    torch.ones: _filled(aten.ones.default),
    torch.zeros: _filled(aten.zeros.default),
    torch.cumsum: _cumsum,
    Tensor.cumsum: _cumsum,
    torch.pow: _power,
    Tensor.pow: _power,
    operator.pow: _power,
    F.gelu: _gelu,
    F.linear: _linear,
    F.layer_norm: _layer_norm,
    F.embedding: _embedding,
    F.batch_norm: _batch_norm,
    F.softmax: _softmax,
    torch.addmm: _product(aten.addmm.default),
    torch.bmm: _product(aten.bmm.default),
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    torch.cat: _cat,
    torch.mean: _mean,
    Tensor.mean: _mean,
    Tensor.masked_fill: _masked_fill,
    Tensor.to: _to,
    Tensor.float: _cast(torch.float32),
    Tensor.half: _cast(torch.float16),
    Tensor.bfloat16: _cast(torch.bfloat16),
    Tensor.double: _cast(torch.float64),
    Tensor.long: _cast(torch.int64),
    Tensor.int: _cast(torch.int32),
    Tensor.bool: _cast(torch.bool),
    F.relu: _activation(aten.relu.default, aten.relu_.default),
    F.silu: _activation(aten.silu.default, aten.silu_.default),
    F.hardswish: _activation(aten.hardswish.default, aten.hardswish_.default),
    F.hardsigmoid: _activation(aten.hardsigmoid.default, aten.hardsigmoid_.default),
}
_UNARY = "neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid relu erf square"
_ARITHMETIC = "add mul sub truediv"
_COMPARISONS = "eq ne lt le gt ge"
_MOVES = "transpose permute unsqueeze squeeze reshape flatten unflatten select narrow chunk split unbind t swapaxes swapdims movedim diff"

for _name in _UNARY.split():
    _rule = _unary(getattr(aten, _name).default)
    RULES |= dict.fromkeys(_named(_name), _rule)
RULES[operator.neg] = RULES[torch.neg]
for _name in _ARITHMETIC.split():
    _op = aten.div.Tensor if _name == "truediv" else getattr(aten, _name).Tensor
    RULES[getattr(operator, _name)] = _binary(_op, True)
    RULES |= dict.fromkeys(_named("div" if _name == "truediv" else _name), _binary(_op, False))
    _written = aten.div_.Tensor if _name == "truediv" else getattr(aten, f"{_name}_").Tensor
    RULES[getattr(operator, f"i{_name}")] = _binary(_written, False)
    RULES |= dict.fromkeys(_named("div_" if _name == "truediv" else f"{_name}_"), _binary(_written, False))
for _name in _COMPARISONS.split():
    _rule = _binary(getattr(aten, _name).Tensor, False)
    RULES |= dict.fromkeys([getattr(operator, _name), *_named(_name)], _rule)
for _name in ("and", "or"):
    RULES[getattr(operator, f"{_name}_")] = _binary(getattr(aten, f"bitwise_{_name}").Tensor, False)

#: functions whose results are views of the first argument, it itself, or copies by kernels that lay out a meta tensor as any other
ON_META = frozenset([*_named(*_MOVES.split()), Tensor.view, Tensor.expand, Tensor.contiguous])
