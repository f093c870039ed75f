"""The products of matrices in an ATen graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from braze.graph.operators.operators import is_elementwise, is_view
from braze.products import Depthwise, DeviceProduct, Grouped, Product

aten = torch.ops.aten

#: operator -> the places of its left and right matrices; a linear layer's right one is the weight's transpose
_PLACES: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.linear.default: (0, 1),
}
_BATCHES: dict[Any, tuple[int, int]] = {aten.bmm.default: (0, 1), aten.baddbmm.default: (1, 2)}


def product_of(node: torch.fx.Node) -> Product | None:
    """The product that a node computes: of known sizes, in float32 on the CPU, each matrix dense one way or the other; else None.

    Of one column, or one place in its sums, it is none of matrices: sums and products of our own.
    """
    places = _PLACES.get(node.target)
    if places is None or node.kwargs:
        return None
    left, right = (_plain(node.args[k]) for k in places)
    if left is None or right is None or right.dim() != 2 or not left.dim():
        return None
    sizes, strides = right.shape, right.stride()
    # not by a call: of a fake outside of its mode PyTorch imports torch.distributed.tensor for one
    if node.target is aten.linear.default:
        sizes, strides = sizes[::-1], strides[::-1]
    inner, columns = sizes
    rows = left.numel() // inner if inner else 0
    if not rows or not columns or 1 not in strides or 1 in (inner, columns):
        return None
    return Product(rows, inner, columns, _by_columns(left.stride()), _by_columns(strides))


def _plain(argument: Any) -> torch.Tensor | None:
    """The fake of a node, if it is in float32 on the CPU and its layout is known."""
    x = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    if not isinstance(x, torch.Tensor) or x.dtype is not torch.float32 or x.device.type != "cpu":
        return None
    return x if all(type(n) is int for n in (*x.shape, *x.stride())) else None


def _by_columns(strides: Sequence[int]) -> bool:
    """Whether a tensor of these strides is a matrix that is the transpose of one that lies row by row."""
    return len(strides) == 2 and strides[0] == 1 and strides[1] != 1


def device_product_of(node: torch.fx.Node) -> DeviceProduct | None:
    """The product that a node computes on a GPU, of matrices of one float type and a known right-hand one; else None."""
    if is_batch(node):
        return _batch_of(node)
    places = _PLACES.get(node.target) if node.op == "call_function" else None
    if places is None or node.kwargs:
        return None
    left, right = (
        n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in (node.args[k] for k in places)
    )
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return None
    if left.device.type != "cuda" or left.dtype is not right.dtype or right.dim() != 2 or not left.dim():
        return None
    dtype = _LABELS.get(left.dtype)
    inner, columns = right.shape[::-1] if node.target is aten.linear.default else right.shape
    if dtype is None or type(inner) is not int or type(columns) is not int or not inner or not columns:
        return None
    sizes = left.shape[:-1]
    rows = math.prod(sizes) if all(type(n) is int for n in sizes) else None
    return DeviceProduct(dtype, rows, inner, columns) if rows != 0 else None


def is_batch(node: torch.fx.Node) -> bool:
    """Whether a node computes a product for each of a batch of matrices."""
    return node.op == "call_function" and node.target in _BATCHES


def is_followed(node: torch.fx.Node) -> bool:
    """Whether elementwise work alone follows a product, up to what is handed out or multiplied again: no kernel that reduces would do it on its way."""
    found = False
    while True:
        users = list(node.users)
        last = all(u.op == "output" or u.target in _PLACES or is_batch(u) for u in users)
        if last or len(users) != 1:
            return found and last
        (node,) = users
        if is_elementwise(node.target):
            found = True
        elif not (is_view(node.target) or node.target is aten._to_copy.default):
            return False


def _batch_of(node: torch.fx.Node) -> DeviceProduct | None:
    """The products of known sizes that a node computes on a GPU, of matrices that lie row by row or column by column; else None."""
    given = [n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in node.args]
    if node.kwargs or len(given) <= max(_BATCHES[node.target]):
        return None
    left, right = (given[k] for k in _BATCHES[node.target])
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return None
    sizes = (*left.shape, *right.shape, *left.stride(), *right.stride())
    dtype = _LABELS.get(left.dtype)
    if left.device.type != "cuda" or left.dtype is not right.dtype or dtype is None:
        return None
    if not all(type(n) is int for n in sizes) or 0 in (*left.shape, *right.shape):
        return None
    batch, rows, inner = left.shape
    layout = layout_of(left.stride(), right.stride())
    return DeviceProduct(dtype, rows, inner, right.shape[2], batch, layout) if layout else None


def layout_of(left: Sequence[int], right: Sequence[int]) -> str:
    """The dimensions along which batches of left and right matrices with such strides lie; nothing where one lies along neither."""
    along = [
        names[1] if strides[2] == 1 else names[0] if strides[1] == 1 else ""
        for names, strides in (("mk", left), ("kn", right))
    ]
    return "".join(along) if all(along) else ""


def grouped_of(node: torch.fx.Node) -> Grouped | None:
    """The grouped product of rows by matrices of known sizes that a node computes on a GPU; else None."""
    if node.op != "call_function" or node.target is not aten._grouped_mm.default or len(node.args) < 2:
        return None
    ends = node.args[2] if len(node.args) > 2 else node.kwargs.get("offs")
    given = [n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in (*node.args[:2], ends)]
    left, right, ends = given
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or ends is None:
        return None
    dtype, known = _LABELS.get(left.dtype), (*right.shape, *right.stride(), left.shape[-1], left.stride(-1))
    if (left.dim(), right.dim()) != (2, 3) or left.device.type != "cuda" or left.dtype is not right.dtype:
        return None
    if dtype is None or any(type(n) is not int for n in known) or 0 in right.shape:
        return None
    groups, inner, columns = right.shape
    rows = left.shape[0] if type(left.shape[0]) is int else None
    layout = layout_of((0, 0, left.stride(1)), right.stride())
    return Grouped(dtype, rows, groups, inner, columns, layout) if rows != 0 and layout else None


def depthwise_of(node: torch.fx.Node) -> Depthwise | None:
    """The depthwise convolution of pictures that a node computes on a GPU, of known channels and sizes; else None."""
    if node.op != "call_function" or node.target is not aten.convolution.default or node.kwargs:
        return None
    given: tuple[Any, ...] = node.args
    x, weight, made = (
        n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in (*given[:2], node)
    )
    if not all(isinstance(v, torch.Tensor) and v.dim() == 4 for v in (x, weight, made)):
        return None
    stride, padding, dilation, transposed, _, groups = given[3:9]
    words = (*weight.shape, *x.shape[1:], *stride, *padding, *dilation, *made.stride()[1:], groups)  # type: ignore[union-attr]
    dtype = _LABELS.get(x.dtype)  # type: ignore[union-attr]
    if (
        dtype is None
        or any(type(n) is not int for n in words)
        or {len(stride), len(padding), len(dilation)} != {2}
    ):
        return None
    channels, inside, down, across = weight.shape  # type: ignore[union-attr]
    alike = x.device.type == "cuda" and x.dtype is weight.dtype and not transposed  # type: ignore[union-attr]
    if not alike or inside != 1 or groups != channels or channels == 1 or 0 in made.shape:  # type: ignore[union-attr]
        return None
    samples, _, *size = x.shape  # type: ignore[union-attr]
    last = made.stride(1) == 1 and made.stride(3) != 1  # type: ignore[union-attr]
    return Depthwise(
        dtype, samples if type(samples) is int else None, channels, (size[0], size[1]), (down, across),
        tuple(stride), tuple(padding), tuple(dilation), last,
    )  # fmt: skip


_LABELS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
