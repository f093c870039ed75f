"""Matrix products on a GPU whose sizes the tensor cores do not like get operands padded with zeros.

cuBLAS has its fast kernels for matrices whose rows begin and end at multiples of 16 bytes. A vocabulary of 50,257 words makes
the last linear layer of a language model six to eight times as slow as one of 50,264. So operands are padded, with zeros that
add nothing, and the result is a window on the product: what reads it reads past the padding. A weight is padded once, since
what depends on parameters only is kept between calls; what a kernel of ours writes, it writes padded.

A large product of which only a copy without the padding would be read is left as it is where our template writes it as it is to lie, and else
made some rows at a time (``runtime/operators/cut_product.py``).

It is done where the time saved is more than that of the copies, both counted in bytes that the GPU could move meanwhile.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from braze.aot.facts.inserted import evaluate, inserted
from braze.aot.facts.views import bytes_of, hint, is_on_gpu
from braze.aot.passes.layouts import Layouts, is_written_here, kept_nodes, on_tensor_cores, sees_strides
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import InputRole, facts
from braze.graph.operators.products import device_product_of
from braze.products import LARGE_RESULT, writes_broken_rows
from braze.runtime.operators import cut_product
from braze.support.record import record

aten = torch.ops.aten
Node = torch.fx.Node

#: bytes at whose multiples rows should begin and end
ALIGNED = 16
#: how many times as long a product takes whose rows are aligned to so many bytes (bf16 on an H200: 7.6 at 2, 2.9 at 4)
SLOWER = {2: 6.0, 4: 3.0, 8: 1.5}
#: operations of a tensor core in the time in which memory moves a byte
PER_BYTE = 160
#: bytes that memory moves while one more kernel is launched
LAUNCH = 8 << 20


#: an operand and the zeros at the ends of its dims -> its padded copy
_Copies = dict[tuple[Node, tuple[int, int]], Node]


@record
class _Product:
    """The operands of a product, as positions of the node's arguments; ``linear``: the second one is transposed."""

    a: int
    b: int
    bias: int
    linear: bool = False

    def bias_of(self, node: Node) -> Any:
        """The bias that a product is given, or None."""
        return node.args[self.bias] if len(node.args) > self.bias >= 0 else None


_PRODUCTS: dict[object, _Product] = {
    aten.mm.default: _Product(0, 1, -1),
    aten.bmm.default: _Product(0, 1, -1),
    aten.addmm.default: _Product(1, 2, 0),
    aten.linear.default: _Product(0, 1, 2, linear=True),
}


@record
class _Sizes:
    """Rows, columns and what is summed over, of ``batch`` products; those of them whose size is the length of rows in memory."""

    batch: int
    m: int
    n: int
    k: int
    along: str


def pad_products(
    module: torch.fx.GraphModule, mode: FakeMode, *, training: bool, template: str | None
) -> None:
    """Pad the operands of products in a functional graph, where it pays. ``template``: the architecture for which the template may be taken, or None."""
    graph = module.graph
    if not any(map(_sizes, graph.nodes)):
        return
    layouts = Layouts(kept_nodes(graph), mode)
    copies: _Copies = {}
    for node in list(graph.nodes):
        sizes = _sizes(node)
        more = {} if sizes is None else _padding(node, sizes, layouts, training)
        if more and not _is_written_as_it_lies(node, sizes, more, layouts, template):
            layouts.changed.add(_padded_product(node, more, layouts, copies))
        else:
            layouts.follow(node)
    graph.lint()


def _sizes(node: Node) -> _Sizes | None:
    """Of a product of matrices on tensor cores; None for all else."""
    place = _PRODUCTS.get(node.target)
    if place is None or node.kwargs:
        return None
    a, b = (node.args[i].meta["val"] for i in (place.a, place.b))  # type: ignore[union-attr]
    if (
        not is_on_gpu(a)
        or not on_tensor_cores(a.dtype, torch.backends.cuda.matmul)
        or a.dtype != b.dtype
        or a.dim() < 2
        or b.dim() < 2
    ):
        return None
    rows, k = math.prod(map(hint, a.shape[:-1])), b.shape[-1 if place.linear else -2]
    n = b.shape[-2 if place.linear else -1]
    if type(k) is not int or type(n) is not int or 0 in (rows, k, n):
        return None
    along = "nm" if _is_turned(a) else "nk"
    along += "k" if _is_turned(b) != place.linear else "n"
    if "m" in along and (place.linear or type(a.shape[-2]) is not int):
        return None
    batch = hint(a.shape[0]) if node.target is aten.bmm.default else 1
    return _Sizes(batch, rows // batch, n, k, along)


def _is_turned(val: torch.Tensor) -> bool:
    """Whether a matrix lies by columns."""
    row, element = val.stride()[-2:]
    return type(row) is int and row == 1 and not (type(element) is int and element == 1)


def _padding(node: Node, sizes: _Sizes, layouts: Layouts, training: bool) -> dict[str, int]:
    """By how many elements "m", "n" and "k" grow; empty where the copies cost more than the product gains."""
    item = node.meta["val"].dtype.itemsize
    found = {axis: getattr(sizes, axis) for axis in "mnk" if axis in sizes.along}
    more = {axis: -size % (ALIGNED // item) for axis, size in found.items() if size * item % ALIGNED}
    if not more:
        return {}
    worst = min(math.gcd(size * item, ALIGNED) for size in found.values())
    m, n, k = (getattr(sizes, axis) + more.get(axis, 0) for axis in "mnk")
    moved = sizes.batch * (sizes.m * sizes.k + sizes.k * sizes.n + sizes.m * sizes.n) * item
    before = 2 * sizes.batch * sizes.m * sizes.n * sizes.k / PER_BYTE * SLOWER.get(worst, 1.0)
    after = 2 * sizes.batch * m * n * k / PER_BYTE
    gain = max(before, moved) - max(after, moved)
    return more if gain > _copied(node, more, layouts, training) else {}


def _copied(node: Node, more: dict[str, int], layouts: Layouts, training: bool) -> float:
    """What the copies cost, in bytes."""
    place, total = _PRODUCTS[node.target], 0.0
    for i, axes in ((place.a, "mk"), (place.b, "kn")):
        base = _turned_from(node.args[i]) or node.args[i]
        constant = not training and facts(base).role is InputRole.PARAMETER  # type: ignore[arg-type]
        written = is_written_here(base) and all(map(_is_product, base.users))  # type: ignore[arg-type, union-attr]
        if not constant and not written and any(axis in more for axis in axes):
            total += 2 * bytes_of(base) + LAUNCH  # type: ignore[arg-type]
    if "n" in more and (node in layouts.kept or any(map(_is_product, node.users))):
        total += 2 * bytes_of(node) + LAUNCH
    return total


def _is_product(node: Node) -> bool:
    """Whether a node is a product, or turns a matrix for one."""
    return node.target in _PRODUCTS or _turned_from(node) is not None


def _turned_from(node: object) -> Node | None:
    """The matrices that a node gives transposed."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    source, rank = node.args[0] if node.args else None, getattr(node.meta.get("val"), "ndim", 0)
    order = list(range(rank))
    order[-2:] = order[-2:][::-1]
    turns = (
        rank >= 2
        and (
            (node.target is aten.permute.default and [d % rank for d in node.args[1]] == order)  # type: ignore[union-attr, operator]
            or (node.target is aten.t.default)
            or (
                node.target is aten.transpose.int
                and {d % rank for d in node.args[1:]} == {rank - 2, rank - 1}  # type: ignore[operator]
            )
        )
    )
    return source if turns and isinstance(source, Node) else None


def _padded_product(node: Node, more: dict[str, int], layouts: Layouts, copies: _Copies) -> Node:
    """The product of padded operands; the window on it that takes its place."""
    place, whole = _PRODUCTS[node.target], node.meta["val"]
    m, n, k = (more.get(axis, 0) for axis in "mnk")

    def grow(i: int, rows: int, columns: int) -> None:
        node.update_arg(i, _grown(node.args[i], (columns, rows), node, layouts.mode, copies))  # type: ignore[arg-type]

    grow(place.a, m, k)
    grow(place.b, *((n, k) if place.linear else (k, n)))
    if (bias := place.bias_of(node)) is not None:
        sizes = (1, 1, *bias.meta["val"].shape)[-2:]
        grow(place.bias, m if _spans(sizes[0]) else 0, n if _spans(sizes[1]) else 0)
    if m == 0 and n and _is_cut(node, whole, layouts):
        return _cut_product(node, whole.shape[-1], layouts.mode)
    evaluate(node, layouts.mode)
    window = node
    for dim, end in ((-1, n), (-2, m)):
        if end:
            window = _shortened(window, node, whole.dim() + dim, whole.shape[dim], layouts.mode)
    if window is not node:
        _copy_for_those_who_see_strides(window, node, layouts)
    return window


def _is_written_as_it_lies(
    node: Node, sizes: _Sizes | None, more: dict[str, int], layouts: Layouts, template: str | None
) -> bool:
    """Whether a product of which only a copy without padding would be read is the template's, which needs none."""
    if sizes is None or template is None or more.keys() != {"n"} or sizes.along != "nkk":
        return False
    product = device_product_of(node)
    return (
        product is not None
        and writes_broken_rows(product, template)
        and _is_cut(node, node.meta["val"], layouts)
    )


def _is_cut(product: Node, whole: torch.Tensor, layouts: Layouts) -> bool:
    """Whether the padded result of a product is large, and only a copy of it without padding would be read."""
    bias = _PRODUCTS[product.target].bias_of(product)
    if product.target is aten.bmm.default or (isinstance(bias, Node) and bias.meta["val"].dim() != 1):
        return False
    seen = all(sees_strides(user) or user in layouts.kept for user in product.users)
    return seen and math.prod(map(hint, whole.shape)) * whole.dtype.itemsize > LARGE_RESULT


def _cut_product(product: Node, columns: int, mode: FakeMode) -> Node:
    """The product of padded operands as one call that leaves the padding out, in its place."""
    place = _PRODUCTS[product.target]
    args = (product.args[place.a], product.args[place.b], place.bias_of(product), place.linear, columns)
    cut = inserted(product, cut_product.OPERATOR, *args, like=product, mode=mode, behind=True)
    product.replace_all_uses_with(cut)
    product.graph.erase_node(product)
    return cut


def _copy_for_those_who_see_strides(window: Node, product: Node, layouts: Layouts) -> None:
    """They get a product as eager lays it out."""
    seeing = [user for user in window.users if sees_strides(user) or user in layouts.kept]
    if seeing:
        copy = inserted(
            window, aten.clone.default, window, like=product, mode=layouts.mode, behind=True, kwargs={"memory_format": torch.contiguous_format},
        )  # fmt: skip
        for user in seeing:
            user.replace_input_with(window, copy)


def _spans(size: int | torch.SymInt) -> bool:
    """Whether a bias has an element of its own along a dim."""
    return type(size) is not int or size != 1


def _grown(operand: Node, ends: tuple[int, int], reader: Node, mode: FakeMode, copies: _Copies) -> Node:
    """An operand with so many zeros at the end of its last dim and of the one before; what lies turned stays turned."""
    if not any(ends):
        return operand
    if (operand, ends) not in copies:
        base = _turned_from(operand)
        if base is not None:
            turned = _grown(base, (ends[1], ends[0]), reader, mode, copies)
            call: tuple[Any, ...] = operand.target, turned, *operand.args[1:]
        else:
            pad = [0, ends[0], 0, ends[1]] if ends[1] else [0, ends[0]]
            call = aten.constant_pad_nd.default, operand, pad, 0.0
        copies[operand, ends] = inserted(reader, *call, like=reader, mode=mode, apart=True)
    return copies[operand, ends]


def _shortened(window: Node, product: Node, dim: int, size: int, mode: FakeMode) -> Node:
    """The first ``size`` elements of a dim; all but itself read this."""
    part = inserted(window, aten.slice.Tensor, window, dim, 0, size, like=product, mode=mode, behind=True)
    window.replace_all_uses_with(part, delete_user_cb=lambda user: user is not part)
    return part
