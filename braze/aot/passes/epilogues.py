"""ReLU, and GELU by tanh, of a linear layer on a GPU are computed by the product, before its result goes to memory.

cuBLASLt adds the bias and applies the function to what it has summed up, in float32, and rounds once. So it is done where nothing else
reads the product's own result and no kernel of ours would read the function's: a kernel that multiplies by it or normalises it
computes it for nothing.
"""

from __future__ import annotations

import functools

import torch

from braze.aot.facts.inserted import inserted
from braze.aot.facts.views import is_on_gpu, is_view
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.passes import drop_unread
from braze.graph.operators.operators import Family, operator_facts

aten = torch.ops.aten
Node = torch.fx.Node

#: the types in which what cuBLASLt makes of special values and of sums was compared with eager
_TYPES = (torch.bfloat16, torch.float16)


def fuse_epilogues(module: torch.fx.GraphModule, mode: FakeMode) -> None:
    """Let products of a functional graph compute the functions that read them alone."""
    graph, fused = module.graph, False
    for node in list(graph.nodes):
        gelu = _is_gelu(node)
        if (not gelu and node.target is not aten.relu.default) or not _leaves_kernels(node):
            continue
        shown = node.args[0]
        through = isinstance(shown, Node) and shown.target is aten.view.default and len(shown.users) == 1
        operands = _operands(shown.args[0] if through else shown)  # type: ignore[union-attr]
        if operands is not None:
            _fuse(node, operands, gelu, mode)
            fused = True
    if fused:
        graph.lint()


def _is_gelu(node: Node) -> bool:
    """Whether a node is GELU by tanh, the only form that cuBLASLt has."""
    return node.target is aten.gelu.default and node.kwargs.get("approximate") == "tanh"


def _leaves_kernels(node: Node) -> bool:
    """Whether a result is read by calls of PyTorch only, or by the caller."""
    for user in node.users:
        if is_view(user):
            if not _leaves_kernels(user):
                return False
        elif user.op != "output":
            known = operator_facts(user.target)
            if known is None or known.family is not Family.PRODUCT:
                return False
    return bool(node.users)


def _operands(product: object) -> tuple[Node, Node, Node, bool] | None:
    """(bias, rows, matrix, whether the matrix lies transposed) of a product that cuBLASLt computes with its bias, and nobody else reads."""
    if not isinstance(product, Node) or len(product.users) != 1 or product.kwargs:
        return None
    if product.target is aten.addmm.default:
        bias, a, b = product.args
    elif product.target is aten.linear.default and len(product.args) == 3:
        a, b, bias = product.args
    else:
        return None
    if not all(isinstance(each, Node) for each in (a, b, bias)):
        return None
    values = [each.meta["val"] for each in (a, b, bias)]  # type: ignore[union-attr]
    x, weight, offset = values
    if any(v.dtype is not x.dtype or not is_on_gpu(v) for v in values) or x.dtype not in _TYPES:
        return None
    sizes = (*weight.shape, *offset.shape, *x.shape[-1:])
    if weight.dim() != 2 or offset.dim() != 1 or any(type(n) is not int or n < 2 for n in sizes):
        return None
    if not offset.is_contiguous() or not _is_rows(x) or torch.version.hip is not None:
        return None
    return bias, a, b, product.target is aten.linear.default  # type: ignore[return-value]


def _is_rows(x: torch.Tensor) -> bool:
    """Whether a tensor is rows of a matrix, or known to be such one after the other."""
    if x.dim() == 2:
        return True
    return x.dim() > 2 and all(type(n) is int and n for n in x.shape) and x.is_contiguous()


def _fuse(node: Node, operands: tuple[Node, Node, Node, bool], gelu: bool, mode: FakeMode) -> None:
    """Put the product with its function in place of both."""
    bias, rows, matrix, transposed = operands
    before, result = node.args[0], node.meta["val"]
    call = functools.partial(inserted, node, like=node, mode=mode)
    if rows.meta["val"].dim() != 2:
        rows = call(aten.view.default, rows, [-1, rows.meta["val"].shape[-1]])
    if transposed:
        matrix = call(aten.permute.default, matrix, [1, 0])
    out = call(aten._addmm_activation.default, bias, rows, matrix, kwargs={"use_gelu": gelu})
    if before.target is aten.view.default:  # type: ignore[union-attr]
        out = call(aten.view.default, out, before.args[1])  # type: ignore[union-attr]
    elif result.dim() != 2:
        out = call(aten.view.default, out, list(result.shape))
    node.replace_all_uses_with(out)
    node.graph.erase_node(node)
    drop_unread(node.graph)
