"""Composite operators on fakes whose sizes are symbols: PyTorch takes them apart in Python, which here comes to what its kernels do."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.fakes.refused_calls import interpolations, refuse_call
from braze.graph.private.torch_compat import python_dispatcher
from braze.graph.rules.layout_rules import CHANNELS_LAST

#: the keys under which a call of an operator on fakes may begin, or go on
_KEYS = tuple(
    getattr(torch._C.DispatchKey, name)
    for name in ("AutocastCPU", "AutogradCPU", "AutogradMeta", "ADInplaceOrView", "Python", "CPU", "Meta", "AutogradCUDA", "CUDA")
)  # fmt: skip


@contextlib.contextmanager
def instead_of(ops: Iterable[OpOverload], function: Callable[[OpOverload], Any]) -> Iterator[None]:
    """Inside, in this thread, ``function(op)`` is what a call of one of the operators comes to, whatever kernels it has."""

    def handler(op: OpOverload) -> Callable[..., Any]:
        return lambda *args, **kwargs: function(op)

    for op in ops:
        op._dispatch_cache.update(dict.fromkeys(_KEYS, handler(op)))
    try:
        with python_dispatcher():
            yield
    finally:
        for op in ops:
            op._dispatch_cache.clear()


#: operators on single elements, which ask for no sizes, to which PyTorch gives a derivative in Python beside that of its own: x * 0 in a
#: dead zone, which is nan for a gradient of infinity
_DEAD_ZONES = (torch.ops.aten.softshrink.default, torch.ops.aten.hardshrink.default)
_OF_AUTOGRAD = tuple(key for key in _KEYS if key.name.startswith("Autograd"))
#: interpolations that PyTorch's kernels do, and which it takes apart in Python by another formula: a + (b - a) * t, which is nan
#: beside a nan where t is 0, or laid out in another way
_INTERPOLATIONS = (
    torch.ops.aten.upsample_linear1d,
    torch.ops.aten.upsample_bilinear2d,
    torch.ops.aten.upsample_trilinear3d,
    torch.ops.aten.upsample_bicubic2d,
    torch.ops.aten.upsample_nearest1d,
    torch.ops.aten._upsample_nearest_exact1d,
)


def interpolated(packet: Any) -> Callable[..., torch.Tensor]:
    """What an interpolation to sizes or by factors comes to: its kernel's operator, for sizes that may be symbols."""

    def run(x: torch.Tensor, output_size: Any, /, *rest: Any, **named: Any) -> torch.Tensor:
        *corners, scale_factors = (*rest, *named.values())  # most have align_corners before
        if output_size is None:
            output_size = [_scaled(n, s) for n, s in zip(x.shape[2:], scale_factors or (), strict=True)]
        scales = scale_factors or [None] * len(output_size)
        return packet.default(x, output_size, *corners, *scales)  # type: ignore[no-any-return]

    return run


def _scaled(size: Any, factor: float) -> Any:
    return size * int(factor) if int(factor) == factor else torch.sym_int(size * factor)


def repeats(size: int, wanted: int, scale: float | None) -> bool:
    """Whether the nearest element is known to be i // (wanted / size), or (i + 0.5) // (wanted / size), of what eager multiplies.

    It multiplies i by a rounded 1 / times. Where that is at most a quarter of a float's last place below, i * times comes to i; what
    lies between two such places is 1 / times away from the next, which is more than rounding of so small a number is.
    """
    times = wanted // size
    exact = scale is None or scale == times
    return exact and 0 < wanted == times * size < _SMALL and _comes_back(times)


#: of the places of so long a line rounding is a quarter of the least distance
_SMALL = 1 << 21


def _comes_back(times: int) -> bool:
    """Whether floats and doubles that are multiplied by the inverse of ``times`` come to the whole number that they are multiples of."""
    rounded = ((ctypes.c_float(1.0 / times).value, 25), (1.0 / times, 54))
    return all(Fraction(inverse) * times >= 1 - Fraction(1, 1 << places) for inverse, places in rounded)


def layout_of(x: torch.Tensor) -> torch.memory_format | None:
    """How a line, a picture or a volume in one piece lies, by channels or by places; None where it is neither."""
    if x.is_contiguous():
        return torch.contiguous_format
    by_places = CHANNELS_LAST.get(x.dim())
    return by_places if by_places and x.is_contiguous(memory_format=by_places) else None


_DROPOUT = torch.ops.aten.dropout.default


def _dropped(x: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    """What dropout comes to: its argument itself where it drops nothing, of which PyTorch's own form in Python makes a copy; without
    random numbers where it drops everything."""
    if not train or p == 0:
        return x
    return x.mul(x.new_zeros(())) if p == 1 else torch.ops.aten.native_dropout.default(x, p, train)[0]


def _asked_first(packet: Any) -> Callable[..., Any]:
    """What an interpolation by factors comes to, where eager does not refuse the call: PyTorch's form in Python asks for no sizes above zero."""
    op = packet.vec
    form = interpolated(packet) if packet in _INTERPOLATIONS else op.py_kernels[_COMPOSITE]

    def run(*args: Any, **kwargs: Any) -> Any:
        refuse_call(op, args, kwargs)
        return form(*args, **kwargs)

    return run


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_BY_FACTORS = {packet.vec: dict.fromkeys(_OF_AUTOGRAD, _asked_first(packet)) for packet in interpolations()}
#: what operators come to whose sizes may be symbols, by the key under which a call begins
_WAYS: dict[OpOverload, dict[Any, Any]] = {
    _DROPOUT: dict.fromkeys(_KEYS, _dropped),
    **{
        packet.default: dict.fromkeys(_OF_AUTOGRAD, torch._C.DispatchKey.Autograd)
        for packet in _INTERPOLATIONS
    },
}


@contextlib.contextmanager
def composites_in_python() -> Iterator[None]:
    """Inside, in this thread, composite operators take sizes that are symbols, and what gives its argument in eager does."""
    held = {op: dict(op._dispatch_cache) for op in (*_WAYS, *_BY_FACTORS)}
    for op, ways in _WAYS.items():
        op._dispatch_cache.update(ways)
    for op, asked in _BY_FACTORS.items():
        op._dispatch_cache.update({**asked, **held[op]})
    try:
        with python_dispatcher():
            yield
    finally:
        for op, before in held.items():
            op._dispatch_cache.clear()
            op._dispatch_cache.update(before)


@contextlib.contextmanager
def python_composites() -> Iterator[None]:
    """The same for what is differentiated, and derivatives are those of plain tensors."""
    for op in _DEAD_ZONES:
        op._dispatch_cache.update(dict.fromkeys(_OF_AUTOGRAD, torch._C.DispatchKey.Autograd))
    try:
        with composites_in_python():
            yield
    finally:
        for op in _DEAD_ZONES:
            op._dispatch_cache.clear()
