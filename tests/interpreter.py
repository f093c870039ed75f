"""Triton's interpreter, quicker: a test that interprets a kernel spends most of its time in bookkeeping that repeats.

Per operation the interpreter makes a type's name, its shape and the shape's type anew; per call of a device function it looks
through all of Triton's language for what it has replaced already. These are kept here. Results are the same: what is kept is what
the interpreter's own code made. Reductions by a kernel's own function combine neighbours, all at once, and scans whole
lines; the interpreter's one number after the other, and its checks of integer overflow, which no GPU makes, are left to
``BRAZE_SWEEP=1``.
And one mend: before Triton 3.7 the interpreter reads a number from an array of one element, which NumPy refuses from 2.5 on.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_done = False


def quicken() -> None:
    """Once Triton's interpreter is imported."""
    global _done
    if _done or "triton.runtime.interpreter" not in sys.modules:
        return
    _done = True
    if os.environ.get("TRITON_INTERPRET") == "1":
        swept = os.environ.get("BRAZE_SWEEP") == "1"
        own = (_types, _tensors, _numbers, _broadcasts, _device_calls)
        for part in own if swept else (_overflow, _reductions, _scans, *own):
            part(sys.modules["triton.runtime.interpreter"])


def _overflow(interpreter: Any) -> None:
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


Blocks = list[np.ndarray]


def _combiner(op: Any, types: list[Any]) -> Callable[[Blocks, Blocks], Blocks]:
    """The kernel's function on blocks of numpy's, one of each operand; what it gives is stored as the operands are."""

    def combine(a: Blocks, b: Blocks) -> Blocks:
        operands = [op.to_tensor(x, t) for x, t in zip((*a, *b), types * 2, strict=True)]
        got = op.combine_fn.fn(*operands)
        values = [
            getattr(getattr(x, "handle", None), "data", x)
            for x in (got if isinstance(got, tuple) else (got,))
        ]
        return [np.broadcast_to(x, y.shape).astype(y.dtype) for x, y in zip(values, a, strict=True)]

    return combine


def _reductions(interpreter: Any) -> None:
    """Neighbours are combined, then what they gave, and so on."""

    def generic_reduce(self: Any, input: Any) -> list[Any]:
        types = [x.dtype for x in input]
        whole = self.axis is None
        axis = 0 if whole else self.axis
        combine = _combiner(self, types)
        blocks = [x.handle.data.reshape(-1) if whole else np.moveaxis(x.handle.data, axis, 0) for x in input]
        while len(blocks[0]) > 1:  # always a power of two
            blocks = combine([x[0::2] for x in blocks], [x[1::2] for x in blocks])
        results = [x[0] for x in blocks]
        if self.keep_dims:
            dims = tuple(range(input[0].handle.data.ndim)) if whole else axis
            results = [np.expand_dims(x, dims) for x in results]
        return [self.to_tensor(x, t) for x, t in zip(results, types, strict=True)]

    interpreter.ReduceOps.generic_reduce = generic_reduce


def _scans(interpreter: Any) -> None:
    """One place after the other, as the interpreter does, but all lines at once."""

    def generic_scan(self: Any, input: Any) -> list[Any]:
        types = [x.dtype for x in input]
        combine = _combiner(self, types)
        lines = [np.moveaxis(x.handle.data, self.axis, 0) for x in input]
        done = [[x[:1] for x in lines]]
        for place in range(1, len(lines[0])):
            done.append(combine(done[-1], [x[place : place + 1] for x in lines]))
        blocks = [np.concatenate(x) for x in zip(*done, strict=True)]
        return [self.to_tensor(np.moveaxis(x, 0, self.axis), t) for x, t in zip(blocks, types, strict=True)]

    interpreter.ScanOps.generic_scan = generic_scan


def _types(interpreter: Any) -> None:
    """numpy's name of a type, and block types by their element and shape."""
    numpy_dtype, names = interpreter._get_np_dtype, {}

    def named(dtype: Any) -> Any:
        key = dtype.scalar.name
        if key not in names:
            names[key] = numpy_dtype(dtype)
        return names[key]

    block, made = interpreter.tl.core.block_type, {}
    original = block.__init__

    def init(self: Any, element: Any, shape: Any) -> None:
        key = (element.name, *shape)
        if (known := made.get(key)) is None:
            original(self, element, shape)
            made[key] = {name: value for name, value in vars(self).items() if name != "element_ty"}
        else:
            self.element_ty = element
            vars(self).update(known)

    interpreter._get_np_dtype, block.__init__ = named, init


def _tensors(interpreter: Any) -> None:
    """What a tensor says of its shape is one object for all tensors of the shape."""
    core = interpreter.tl.core
    original, shapes = core.tensor.__init__, {}

    def init(self: Any, handle: Any, type: Any) -> None:
        key = (*type.shape,) if type.is_block() else ()
        if (known := shapes.get(key)) is None:
            original(self, handle, type)
            shapes[key] = self.numel, self.shape
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.numel, self.shape = known

    core.tensor.__init__ = init


def _numbers(interpreter: Any) -> None:
    """A scalar is a number whether its array has no dimension or one of one element."""
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch


def _broadcasts(interpreter: Any) -> None:
    """Operands of one shape, or of the type that is asked for, are what they are."""
    semantic = type(interpreter.interpreter_semantic)
    broadcast, cast = semantic.broadcast_impl_value, semantic.cast

    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        if a.is_block() and b.is_block() and (a.shape is b.shape or [*a.shape] == [*b.shape]):
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    def cast_to(self: Any, value: Any, dtype: Any, *rounding: Any, **named: Any) -> Any:
        return value if dtype is value.dtype else cast(self, value, dtype, *rounding, **named)

    semantic.broadcast_impl_value, semantic.cast = broadcast_impl_value, cast_to


class _Nothing:
    """A scope that replaced nothing."""

    def restore(self) -> None:
        pass


def _device_calls(interpreter: Any) -> None:
    """Within a launch each module of Triton's language is replaced once, not at each call of a device function."""
    original, tl = interpreter._patch_lang, interpreter.tl
    modules: dict[Any, frozenset[int]] = {}
    replaced: set[int] = set()

    def patch(fn: Any) -> Any:
        if fn not in modules:
            modules[fn] = frozenset(id(x) for x in fn.__globals__.values() if x is tl or x is tl.core)
        if modules[fn] and modules[fn] <= replaced:
            return _Nothing()
        scope, first = original(fn), not replaced
        replaced.update(modules[fn])
        if first:
            restore = scope.restore
            scope.restore = lambda: (replaced.clear(), restore())
        return scope

    interpreter._patch_lang = patch
