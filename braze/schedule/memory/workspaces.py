"""What operators of ATen take for themselves while they run, beside their results, as far as it is known.

Convolutions on the CPU: oneDNN lays operands out in blocks, or PyTorch in channels-last, and results back, each copy as large as what is
copied. Gradients of pools: what does not lie as the gradient that comes in is copied. Seen on PyTorch 2.13.
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
    alone = _is_pixel(weight) or _lies_last(weight) or _is_by_channel(weight)
    return copied if alone else 2 * copied


def _packed_convolution(call: ExternCall, size_of: Bytes) -> int:
    """The picture in another layout; the weight lies in oneDNN's."""
    return 0 if _lies_last(call.args[0]) else size_of(call.args[0])


def _convolution_backward(call: ExternCall, size_of: Bytes) -> int:
    """The weight and its gradient in other layouts, or both pictures."""
    gradient, picture, weight = call.args[:3]
    copied = size_of(weight)
    if _is_pixel(picture):
        return copied
    if not _lies_last(picture):
        return max(copied, size_of(gradient) + size_of(picture))
    if _is_pixel(weight):
        return copied + size_of(gradient)
    if not call.args[-1][1]:
        return copied
    return 2 * copied if _lies_last(weight) or _is_by_channel(weight) else 3 * copied


def _window_backward(call: ExternCall, size_of: Bytes) -> int:
    """The result, and where the greatest of each window lay, where they do not lie as the gradient does."""
    gradient, picture = call.args[:2]
    if _lies_last(gradient) == _lies_last(picture):
        return 0
    indices = sum(size_of(v) for v in call.args[2:] if isinstance(v, BufferView))
    return size_of(picture) + indices


_RULES: dict[str, Callable[[ExternCall, Bytes], int]] = {
    "aten.convolution.default": _convolution,
    "braze.packed_convolution.default": _packed_convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.max_pool2d_with_indices_backward.default": _window_backward,
    "aten.avg_pool2d_backward.default": _window_backward,
}


def _lies_last(view: BufferView) -> bool:
    """Whether channels lie beside each other."""
    return len(view.strides) > 2 and view.strides[1].value == 1


def _is_pixel(view: BufferView) -> bool:
    """Whether a picture is of one pixel, or a window of one tap: its layouts are one."""
    return all(_is_one(size) for size in view.sizes[2:])


def _is_by_channel(weight: BufferView) -> bool:
    """Whether each channel has a window of its own."""
    return _is_one(weight.sizes[1])


def _is_one(size: Expr) -> bool:
    return size.value == 1
