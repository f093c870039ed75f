"""Triton's interpreter, quicker: a test that interprets a kernel spends most of its time in bookkeeping that repeats.

Per operation the interpreter makes a type's name, its shape and the shape's type anew; per call of a device function it looks
through all of Triton's language for what it has replaced already. These are kept here. Results are the same: what is kept is what
the interpreter's own code made. Checks of integer overflow, which no GPU makes, are left to ``BRAZE_SWEEP=1``. And one mend: before
Triton 3.7 the interpreter reads a number from an array of one element, which NumPy refuses from 2.5 on.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

_done = False


def quicken() -> None:
    """Once Triton's interpreter is imported."""
    global _done
    if _done or "triton.runtime.interpreter" not in sys.modules:
        return
    _done = True
    if os.environ.get("TRITON_INTERPRET") == "1":
        for part in (_overflow, _types, _tensors, _numbers, _broadcasts, _device_calls):
            part(sys.modules["triton.runtime.interpreter"])


def _overflow(interpreter: Any) -> None:
    builder = interpreter.interpreter_builder
    if os.environ.get("BRAZE_SWEEP") != "1":
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


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
