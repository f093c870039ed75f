"""Masks of attention on a GPU, as PyTorch's fused kernels take them.

Above autograd, in training, PyTorch chooses the kernel while the graph is traced. A mask with gaps between its columns, as one that is expanded
from a number has, leaves only the composition: products in float32, which take three times as long. So such a mask gets
columns that lie beside each other, and one that hides nothing, which a program computes without looking at it, is left out.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.aot.facts.views import is_on_gpu
from braze.graph.private import torch_compat

aten = torch.ops.aten
Node = torch.fx.Node

ATTENTION = torch.nn.functional.scaled_dot_product_attention

#: heads, and batches, that PyTorch's kernels take: each is a dimension of their launches, of which one alone may be larger, and it is queries'
MOST_HEADS = 65535
#: the arguments of a call
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
#: operators that make masks, and what to make of nothing but numbers is worth
_PLAIN = frozenset(
    overload
    for packet in (
        aten.arange, aten.full, aten.ones, aten.zeros, aten.new_ones, aten.scalar_tensor, aten.ge, aten.gt, aten.le, aten.lt,
        aten.eq, aten.ne, aten.add, aten.sub, aten.bitwise_and, aten.bitwise_or, aten.bitwise_not, aten.logical_and,
        aten.logical_or, aten.logical_not, aten.unsqueeze, aten.expand, aten.view, aten.permute, aten.slice, aten.alias,
        aten.detach, aten._to_copy, aten.clone, aten.tril, aten.triu, aten.masked_fill, aten.where, aten.full_like, aten.ones_like,
        aten.zeros_like, aten.mul,
    )
    for overload in (getattr(packet, name) for name in packet.overloads())
    if not overload._schema.is_mutable and not any(a.is_out for a in overload._schema.arguments)
)  # fmt: skip
#: elements of a mask that are looked at
_MOST = 1 << 24


def with_readable_mask(
    args: tuple[Any, ...], kwargs: dict[str, Any], known: dict[Node, torch.Tensor | None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of attention with a mask that fused kernels read; ``known``: constants found before."""
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if not isinstance(mask, torch.Tensor) or not is_on_gpu(mask) or mask.requires_grad:
        return args, kwargs
    made = None if hides_nothing(mask, known) else _with_columns(mask)
    if len(args) > 3:
        return (*args[:3], made, *args[4:]), kwargs
    return args, {**kwargs, "attn_mask": made}


def is_chosen_now(
    args: tuple[Any, ...], kwargs: dict[str, Any], known: dict[Node, torch.Tensor | None]
) -> bool:
    """Whether PyTorch is to choose attention's kernel while the graph is traced, in inference too: for a mask of bools.

    It makes numbers of such a mask, by three launches in each call that reads it, and of which value depends on the
    kernel. In the graph that is one kernel for all calls that read a mask.
    """
    named = dict(zip(NAMES, args, strict=False)) | kwargs
    mask, dropout = named.get("attn_mask"), named.get("dropout_p", 0.0)
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or dropout != 0:
        return False
    values = [named["query"], named["key"], named["value"], mask]
    return (
        all(is_on_gpu(v) and all(type(n) is int and n for n in v.shape) for v in values)
        and torch.cuda.is_available()
        and not hides_nothing(mask, known)
    )


def with_heads_as_batches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of attention that has more heads than a launch may have, by name, with these in the place of batches; None where it has not.

    Of float32 PyTorch chooses its memory-efficient kernel, whatever their number; of batches that one takes 65,535 at a time, and drops nothing then.
    """
    named = dict(zip(NAMES, args, strict=False)) | kwargs
    if not _are_too_many(named):
        return None
    turned = {name: x.transpose(0, 1) for name, x in named.items() if name in NAMES[:3]}
    mask = named.get("attn_mask")
    if mask is not None and mask.dim() == 4:
        turned["attn_mask"] = mask.transpose(0, 1)
    return named | turned


def _are_too_many(named: dict[str, Any]) -> bool:
    values, mask = [named[name] for name in NAMES[:3]], named.get("attn_mask")
    if not all(x.dim() == 4 and x.dtype is torch.float32 and is_on_gpu(x) for x in values):
        return False
    batches, heads = values[0].shape[:2]
    known = (
        type(batches) is int and type(heads) is int and all(x.shape[:2] == (batches, heads) for x in values)
    )
    plain = not named.get("dropout_p") and (mask is None or mask.dim() in (2, 4))
    return known and plain and batches <= MOST_HEADS < heads


def _with_columns(mask: torch.Tensor) -> torch.Tensor:
    """The mask with its columns beside each other; what is the same along another dim is still stored once."""
    if not mask.dim() or _is(mask.shape[-1], 1) or _is(mask.stride(-1), 1):
        return mask
    once = mask
    for dim in range(mask.dim() - 1):
        if _is(mask.stride(dim), 0):
            once = once.narrow(dim, 0, 1)
    return once.contiguous().expand(mask.shape)


def _is(extent: int | torch.SymInt, number: int) -> bool:
    """Whether a size or a stride is a number, of all symbols' values."""
    return type(extent) is int and extent == number


def hides_nothing(mask: torch.Tensor, known: dict[Node, torch.Tensor | None]) -> bool:
    """Whether a mask of bools is computed from numbers alone, and true everywhere."""
    if mask.dtype is not torch.bool:
        return False
    with torch_compat.outside_modes():
        value = known_value(mask, known)
        return value is not None and bool(value.all())


def known_value(mask: torch.Tensor, known: dict[Node, torch.Tensor | None]) -> torch.Tensor | None:
    """What a mask holds that is computed from numbers alone."""
    node = mask.__dict__.get("_node")
    if node is None:
        return None
    with torch_compat.outside_modes():
        return _constant(node, known)


def _constant(node: Node, known: dict[Node, torch.Tensor | None]) -> torch.Tensor | None:
    """What a node gives, if that does not hang on inputs; computed on the CPU."""
    if node not in known:
        known[node] = None
        val: Any = node.meta.get("val")
        plain = node.op == "call_function" and node.target in _PLAIN and isinstance(val, torch.Tensor)
        if plain and all(type(n) is int for n in val.shape) and val.numel() <= _MOST:
            parts = {n: _constant(n, known) for n in node.all_input_nodes}
            if all(part is not None for part in parts.values()):
                known[node] = _computed(node, parts)
    return known[node]


def _computed(node: Node, parts: dict[Node, Any]) -> torch.Tensor:
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: parts[n])
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": "cpu"}
    plain = {k: v for k, v in kwargs.items() if k != "pin_memory"}
    return node.target(*args, **plain)  # type: ignore[operator, no-any-return]
