"""``flex_attention`` on a GPU as operators of ATen graphs: ``braze::flex_attention(entry, tensors) -> (out, lse, most)``, and its gradients.

An entry is what a node of a captured graph said: the subgraphs, the scale, the blocks of its mask. Its number stands in the ATen graph
and in the code made of it. Somebody gives it kernels; without, or for tensors that these do not take, it runs PyTorch's operators.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from braze.graph.calls import flex
from braze.graph.calls.subgraph_ops import numbers_in

_numbers = itertools.count(1)
_entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
#: the most columns of queries and values that kernels hold
WIDEST = 256
TYPES = (torch.float16, torch.bfloat16, torch.float32)


class Entry:
    """One node's functions. Whoever runs code that names its number keeps it alive."""

    def __init__(
        self,
        score: Any,
        mask: Any,
        scale: float,
        blocks: Sequence[Any],
        others: Sequence[Any],
        like: Sequence[Any],
    ) -> None:
        self.number = next(_numbers)
        self.score = score
        self.mask = mask
        self.scale = scale
        #: rows and columns of a block, and which of the mask's eight tensors there are
        self.sizes: tuple[int, int] | None = (blocks[0], blocks[1]) if blocks else None
        self.present = [x is not None for x in blocks[2:]]
        #: fakes of what the functions look up, and of queries, keys and values
        self.others = tuple(others)
        self.like = tuple(like)
        #: what computes it: set by whoever compiles graphs
        self.kernels: Any = None
        _entries[self.number] = self

    def split(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, Any, Any]:
        """(queries, keys, values), the mask's eight tensors or None, what the functions look up."""
        count = 3 + sum(self.present)
        given = iter(tensors[3:count])
        blocks = [next(given) if there else None for there in self.present]
        return tuple(tensors[:3]), blocks, tuple(tensors[count:])

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """(result, logarithms of sums, largest scores)."""
        qkv, blocks, others = self.split(tensors)
        if self.kernels is not None:
            return list(self.kernels.forward(*qkv, blocks, others))
        q, k, v = qkv
        return list(flex.forward(self.score, self.mask, self.scale, q, k, v, others))

    def backward(
        self, grads: Sequence[torch.Tensor], results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The gradients of queries, keys and values."""
        qkv, blocks, others = self.split(tensors)
        out, lse, _ = results
        if self.kernels is not None:
            return list(self.kernels.backward(*qkv, blocks, others, out, lse, grads[0], grads[1]))
        functions = self.score, self.mask, self.scale
        found = flex.backward(functions, qkv, others, (), out, lse, (grads[0], grads[1]))
        return [x.contiguous() for x in found[:3]]


def takes(q: Any, k: Any, v: Any, blocks: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether kernels can be made for an attention: of these types, of widths that are known, over tensors that want no gradient."""
    widths = q.shape[-1], v.shape[-1]
    return (
        q.device.type == "cuda"
        and q.dtype in TYPES
        and all(_is_number(n) and int(n) <= WIDEST for n in widths)
        and all(isinstance(x, torch.Tensor) and not x.requires_grad for x in others)
        and all(type(n) is int for n in blocks[:2])
    )


def _is_number(n: Any) -> bool:
    """Whether a size is one number, or a symbol that guards hold to one."""
    return type(n) is int or bool(n.node.expr.is_number)


def call(
    score: Any, mask: Any, scale: float, q: Any, k: Any, v: Any, blocks: Sequence[Any], others: Sequence[Any]
) -> tuple[Entry, Any]:
    """The operator's results, and the entry that they keep alive."""
    entry = Entry(score, mask, scale, blocks, others, (q, k, v))
    tensors = [q, k, v, *[x for x in blocks[2:] if x is not None], *others]
    return entry, operators()(entry.number, tensors)


@functools.cache
def operators() -> Any:
    """The operator, registered when first wanted."""
    torch.library.define("braze::flex_attention", "(int entry, Tensor[] tensors) -> (Tensor, Tensor, Tensor)")
    torch.library.impl("braze::flex_attention", "CompositeExplicitAutograd")(_run)
    torch.library.register_fake("braze::flex_attention")(_fake)
    torch.library.define(
        "braze::flex_attention_gradients",
        "(int entry, Tensor[] grads, Tensor[] results, Tensor[] tensors) -> (Tensor, Tensor, Tensor)",
    )
    torch.library.impl("braze::flex_attention_gradients", "CompositeExplicitAutograd")(_pull_back)
    torch.library.register_fake("braze::flex_attention_gradients")(_fake_gradients)
    torch.library.register_autograd("braze::flex_attention", _backward, setup_context=_save)
    return torch.ops.braze.flex_attention.default


def _run(entry: int, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return tuple(_entries[entry].forward(tensors))


def _pull_back(
    entry: int,
    grads: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    return tuple(_entries[entry].backward(grads, results, tensors))


def _fake(entry: int, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    q, _, v = tensors[:3]
    return tuple(empty_results(q, v))


def empty_results(q: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """Memory for the results: the first lies as the queries do."""
    wide = flex.working(q.dtype)
    rows = [torch.empty(q.shape[:3], dtype=wide, device=q.device) for _ in range(2)]
    return [flex.empty_like_queries((*q.shape[:3], v.shape[3]), q), *rows]


def _fake_gradients(
    entry: int, grads: Any, results: Any, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    return tuple([torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors[:3]])


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.entry, tensors = inputs
    ctx.held = _entries[ctx.entry]
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, *grads: Any) -> Any:
    saved = ctx.saved_tensors
    tensors, results = list(saved[: ctx.count]), list(saved[ctx.count :])
    given = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, results, strict=True)][:2]
    found = torch.ops.braze.flex_attention_gradients(ctx.entry, given, results, tensors)
    return None, [*found, *[None] * (ctx.count - 3)]


def entries_of(graph: torch.fx.Graph) -> list[Entry]:
    """The entries that an ATen graph names."""
    names = ("braze::flex_attention", "braze::flex_attention_gradients")
    return [_entries[number] for number in numbers_in(graph, names)]
