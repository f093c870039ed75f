"""Which operators have no kernel for the types of a call: meta functions and kernels of ours compute what eager refuses.

``torch.addcmul`` of truth values is an error on the CPU ("not implemented for 'Bool'"). No table says of which: the call is made
on tensors of at most two elements a dimension, once for each operator and types. Only what reads the elements of its tensors in
their places, or along a dim, is tried so: kernels that follow indices, lengths or weights may read beyond small tensors (`lstm`).
"""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from braze.graph.fakes.probe import eager_error, heard, is_doubtful, several_types
from braze.graph.operators.operators import OPERATORS, Family
from braze.graph.private.torch_compat import disable_functions, outside_modes, transforming
from braze.runtime.operators.purity import added_kernels
from braze.support.caches import remembered
from braze.support.nested import every

#: whose functions in Python compute with their arguments alone
_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor"})
#: whose functions in C do
_C_MODULES = frozenset(
    {f"torch._C.{part}" for part in ("_nn", "_special", "_linalg", "_fft")} | {"_operator"}
)
#: what reads elements along dims, and losses, which are loops over elements
_ALONG_DIMS = frozenset(
    [
        "softmax",
        "log_softmax",
        "softmin",
        "logsumexp",
        "logcumsumexp",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "cross",
        "glu",
        "prelu",
        "max_pool1d",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
        "multilabel_soft_margin_loss",
        "kl_div",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "poisson_nll_loss",
        "gaussian_nll_loss",
        "hinge_embedding_loss",
        "margin_ranking_loss",
        "cosine_similarity",
        "pairwise_distance",
        "triplet_margin_loss",
        "normalize",
    ]
)
#: Python's names of operators -> ATen's
_PYTHONS = {
    "mod": "remainder", "imod": "remainder", "rmod": "remainder", "truediv": "div", "floordiv": "floor_divide",
    "rfloordiv": "floor_divide", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not",
}  # fmt: skip
#: kinds of functions of PyTorch's
_FUNCTIONS = frozenset(
    [torch._ops.OpOverload, torch._ops.OpOverloadPacket, types.FunctionType, types.BuiltinFunctionType]
    + [types.MethodDescriptorType, types.WrapperDescriptorType]
)
#: what is told of an argument by its value; of others by their type
_PLAIN = frozenset(
    {int, float, complex, bool, str, type(None), torch.dtype, torch.memory_format, torch.layout}
)
_SYMBOLS = {torch.SymInt: (int, 2), torch.SymFloat: (float, 2.0), torch.SymBool: (bool, True)}
_SEQUENCES = frozenset({list, tuple, torch.Size})


@functools.cache
def _stays_in_place(name: str) -> bool:
    """Whether a function of PyTorch's of that name reads its tensors' elements in their places, or along a dim."""
    name = name.strip("_").removeprefix("foreach_")
    name = _PYTHONS.get(name, name)
    known = OPERATORS.get(name)
    if name in _ALONG_DIMS or (known is not None and known.family in (Family.ELEMENTWISE, Family.REDUCTION)):
        return True
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, f"special_{name}", None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )


def refusal(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """What eager raises for a call that works on fakes, if it does: for their types alone, or what is in doubt. ``name``: the function's."""
    if is_doubtful(name, args, kwargs):
        return eager_error(func, args, kwargs)
    return missing_kernel(func, args, kwargs)


def missing_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """What eager raises for a call of tensors of such types on the CPU, if it has no kernel for them."""
    if type(func) not in _FUNCTIONS or not _is_tried(func) or not are_asked():
        return None
    types_of = tuple(map(_kind, args)), tuple((name, _kind(value)) for name, value in kwargs.items())
    said = _said(func, types_of, torch.get_default_dtype(), _casts())
    if said is None:
        return None
    # a small call may fail for its sizes, too
    return NotImplementedError(said) if said else eager_error(func, args, kwargs)


def are_asked() -> bool:
    """Whether kernels are tried now: one of the program's runs as often as in eager; a transform's rules take operators apart."""
    return not (added_kernels() or transforming())


def _casts() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


@remembered(8192)
def _is_tried(func: Any) -> bool:
    """Whether a function may be called on any small tensors."""
    return is_pure(func) and _stays_in_place(func.__name__.partition(".")[0])


def is_pure(func: Any) -> bool:
    """Whether a function of PyTorch's does nothing but compute with tensors."""
    kind = type(func)
    if kind is torch._ops.OpOverload:
        return func.namespace == "aten"
    if kind is torch._ops.OpOverloadPacket:
        return str(func).startswith("aten.")
    if kind is types.FunctionType:
        return func.__module__ in _MODULES
    if kind is types.BuiltinFunctionType:
        if func.__self__ is None:  # a static method, as torch.add is
            return func.__module__ == "torch"
        return func.__module__ in _C_MODULES
    owner = getattr(func, "__objclass__", None)  # a function of the program's has none
    return owner is not None and issubclass(torch.Tensor, owner)


def _kind(value: Any) -> Any:
    """What decides of an argument which kernel a call asks for, and by which a small one is made."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout is not torch.strided:
            return value.device, value.layout
        wants = value.requires_grad and torch.is_grad_enabled()  # some composites have another kernel then
        return value.dtype, (wants, *[n if type(n) is int and n < 2 else 2 for n in value.shape])
    kind = type(value)
    if kind in _SYMBOLS:
        return _SYMBOLS[kind]
    if kind in _SEQUENCES:
        return kind, tuple(map(_kind, value))
    return kind, value if kind in _PLAIN else None


class _Unknown(Exception):
    """An argument of which no small one is made."""


def _small(kind: Any) -> Any:
    """The small argument of a kind."""
    first, told = kind[0], kind[-1]
    if type(first) is torch.dtype:
        wants, *shape = told
        return torch.ones(
            shape, dtype=first, requires_grad=wants
        ).clone()  # no leaf, which may not be written
    if first in _SEQUENCES:
        return first(map(_small, told))
    if first in _PLAIN:
        return told
    raise _Unknown


@remembered(8192)
def _said(func: Any, types_of: Any, default: torch.dtype, casts: torch.dtype | None) -> str | None:
    """What a small call says for want of a kernel; nothing where several types are refused otherwise, None where it works."""
    positional, named = types_of
    try:
        with disable_functions(), outside_modes(), torch.enable_grad():
            args, kwargs = tuple(map(_small, positional)), {name: _small(kind) for name, kind in named}
    except (_Unknown, RuntimeError):
        return None
    tensors = every(torch.Tensor, (*args, *kwargs.values()))
    if not tensors:
        return None
    with _quiet():
        error = heard(func, args, kwargs, any(x.requires_grad for x in tensors))
    if isinstance(error, NotImplementedError):
        return str(error)
    return "" if error is not None and several_types(tensors) else None


#: what `warnings.simplefilter("ignore")` puts before all other filters
_NONE_SHOWN = ("ignore", None, Warning, None, 0)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings, of which those that come once come again when the program's own call is made.

    Nobody is told that the filters change: every module would forget what it has shown, and show it again.
    """
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        warnings.filters.insert(0, _NONE_SHOWN)  # type: ignore[attr-defined]
        yield
    finally:
        warnings.filters.remove(_NONE_SHOWN)  # type: ignore[attr-defined]
        torch.set_warn_always(always)
