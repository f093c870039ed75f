"""What operators of ATen take for themselves while they run, beside their results, as far as it is known.

Convolutions on the CPU: oneDNN lays operands out in blocks, or PyTorch in channels-last, and results back, each copy as large as what is
copied. Seen on PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable

from braze.loops.ir import BufferView, ExternCall
from braze.symbolic.expr import Expr

Bytes = Callable[[BufferView], int]


def workspace(call: ExternCall, size_of: Bytes) -> int:
    """Bytes beside the results of a call, at its worst moment; ``size_of``: those of a value."""
    rule = _RULES.get(call.target) if call.device == "cpu" else None
    return rule(call, size_of) if rule is not None else 0


def _convolution(call: ExternCall, size_of: Bytes) -> int:
    """Forward: the picture or the weight in another layout, the weight in oneDNN's."""
    picture, weight = call.args[0], call.args[1]
    copied = size_of(weight)
    if _is_pixel(picture) or not _lies_last(picture):
        return copied + size_of(picture)
    alone = _has_one_tap(weight) or _lies_last(weight) or _is_by_channel(weight)
    return copied if alone else 2 * copied


def _convolution_backward(call: ExternCall, size_of: Bytes) -> int:
    """The weight and its gradient in other layouts, or both pictures."""
    gradient, picture, weight = call.args[:3]
    copied = size_of(weight)
    if _is_pixel(picture):
        return copied
    if not _lies_last(picture):
        return max(copied, size_of(gradient) + size_of(picture))
    if _has_one_tap(weight):
        return copied + size_of(gradient)
    if not call.args[-1][1]:
        return copied
    return 2 * copied if _lies_last(weight) or _is_by_channel(weight) else 3 * copied


_RULES: dict[str, Callable[[ExternCall, Bytes], int]] = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}


def _lies_last(view: BufferView) -> bool:
    """Whether channels lie beside each other."""
    return len(view.strides) > 2 and view.strides[1].value == 1


def _is_pixel(view: BufferView) -> bool:
    return all(_is_one(size) for size in view.sizes[2:])


def _has_one_tap(weight: BufferView) -> bool:
    """Whether windows are of one pixel, so that the weight's layouts are one."""
    return _is_pixel(weight)


def _is_by_channel(weight: BufferView) -> bool:
    """Whether each channel has a window of its own."""
    return _is_one(weight.sizes[1])


def _is_one(size: Expr) -> bool:
    return size.value == 1
