"""What operators of ATen take for themselves is what the allocator sees."""

from __future__ import annotations

import pytest
import torch

from braze.inspect.memory import peak_bytes
from braze.loops.ir import BufferView, ExternCall
from braze.schedule.memory.workspaces import workspace
from braze.symbolic.expr import Integer

aten = torch.ops.aten
ROWS, LAST = torch.contiguous_format, torch.channels_last


def view(name: str, x: torch.Tensor) -> BufferView:
    sizes, strides = (tuple(map(Integer, found)) for found in (x.shape, x.stride()))
    return BufferView(name, sizes, strides, Integer(0), x.dtype)


@pytest.mark.parametrize("picture", [ROWS, LAST], ids=["rows", "last"])
@pytest.mark.parametrize("gradient", [ROWS, LAST], ids=["rows", "last"])
@pytest.mark.parametrize("size", [16, 4])
@pytest.mark.parametrize("greatest", [True, False], ids=["max", "avg"])
def test_gradients_of_pools(greatest, size, gradient, picture):
    x = torch.randn(2, 64, size, size).to(memory_format=picture)
    out, indices = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    tangent = torch.ones_like(out).to(memory_format=gradient)
    windows = [2, 2], [2, 2], [0, 0]
    if greatest:
        op = aten.max_pool2d_with_indices_backward
        args = [tangent, x, *windows, [1, 1], False, indices]
    else:
        op, args = aten.avg_pool2d_backward, [tangent, x, *windows, False, True, None]
    views = tuple(view(f"b{k}", a) if isinstance(a, torch.Tensor) else a for k, a in enumerate(args))
    call = ExternCall("call", f"aten.{op.__name__}.default", views, (), ())
    counted = workspace(call, lambda v: args[int(v.buffer[1:])].nbytes)
    found = []
    assert peak_bytes(lambda: found.append(op(*args))) == counted + x.nbytes


@pytest.mark.parametrize(
    ("shape", "layout", "window", "copies"),
    [
        ((2, 64, 8, 8), ROWS, (64, 64, 3, 3), "xw"),
        ((2, 64, 8, 8), LAST, (64, 64, 3, 3), "ww"),
        ((2, 64, 8, 8), LAST, (64, 64, 1, 1), "w"),
        ((2, 64, 8, 8), LAST, (64, 64, 1, 3), "ww"),
        ((2, 64, 8, 8), LAST, (64, 1, 3, 3), "w"),
        ((2, 64, 1, 8), LAST, (64, 64, 3, 3), "ww"),
        ((2, 64, 1, 1), LAST, (64, 64, 3, 3), "xw"),
    ],
)
def test_convolutions_copy_what_lies_otherwise(shape, layout, window, copies):
    """The picture (x) or the weight (w): a row of pixels is a picture, one pixel lies in any layout."""
    x, w = torch.empty(shape).to(memory_format=layout), torch.empty(window)
    sizes = {"x": x.nbytes, "w": w.nbytes}
    call = ExternCall("call", "aten.convolution.default", (view("x", x), view("w", w)), (), ())
    assert workspace(call, lambda v: sizes[v.buffer]) == sum(sizes[c] for c in copies)


@pytest.mark.parametrize(
    ("shape", "layout", "window", "of_weight", "copies"),
    [
        ((2, 64, 16, 16), ROWS, (64, 64, 3, 3), True, "gx"),
        ((2, 64, 8, 8), ROWS, (64, 64, 3, 3), True, "w"),
        ((2, 64, 1, 8), ROWS, (64, 64, 3, 3), True, "w"),
        ((2, 64, 8, 8), LAST, (64, 64, 3, 3), True, "www"),
        ((2, 64, 8, 8), LAST, (64, 64, 3, 3), False, "w"),
        ((2, 64, 8, 8), LAST, (64, 1, 3, 3), True, "ww"),
        ((2, 64, 8, 8), LAST, (64, 64, 1, 1), True, "wg"),
        ((2, 64, 1, 1), ROWS, (64, 64, 3, 3), True, "w"),
    ],
)
def test_gradients_of_convolutions_copy_what_lies_otherwise(shape, layout, window, of_weight, copies):
    """The gradient (g), the picture (x) or the weight (w); of pictures by rows both, or the weight where that is larger."""
    x, w = torch.empty(shape).to(memory_format=layout), torch.empty(window)
    sizes = {"g": x.nbytes, "x": x.nbytes, "w": w.nbytes}
    args = view("g", x), view("x", x), view("w", w), [True, of_weight, False]
    call = ExternCall("call", "aten.convolution_backward.default", args, (), ())
    assert workspace(call, lambda v: sizes[v.buffer]) == sum(sizes[c] for c in copies)
