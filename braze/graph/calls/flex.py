"""``flex_attention`` in graphs: what its nodes call, over subgraphs for the score and for the mask.

The subgraphs take numbers - (score, batch, head, query, key) and (batch, head, query, key) - and then what their functions use from
outside; ``vmap`` spreads them over all pairs of queries and keys, as PyTorch's own reference does. Scores are formed in float32,
or in float64 for inputs of that type. The backward forms them again, and keeps the result and the logarithms of the sums alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Subgraph = Callable[..., tuple[Any, ...]]
INF = float("inf")

#: along which of (batch, head, query, key) each ``vmap`` goes, from the innermost on
_ALONG = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))


def attention(
    score: Subgraph,
    mask: Subgraph,
    scale: float,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    blocks: Sequence[Any],
    others: Sequence[Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(result, logarithm of the sum of exponentials, largest score) per query; ``blocks`` say nothing that the mask does not."""
    device = q.device.type
    with contextlib.ExitStack() as stack:
        if torch.is_autocast_enabled(device):
            q, k, v = cast(q, k, v)
            stack.enter_context(torch.autocast(device, enabled=False))
        wanting = [x for x in (q, k, v, *others) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not wanting or not torch.is_grad_enabled():
            return forward(score, mask, scale, q, k, v, others)
        return _Attention.apply(score, mask, scale, q, k, v, *others)  # type: ignore[no-any-return]


def cast(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Operands as autocast wants them."""
    dtype = torch.get_autocast_dtype(operands[0].device.type)
    return tuple([x if x.dtype is torch.float64 else x.to(dtype) for x in operands])


def at_points(function: Subgraph, count: int, operands: Sequence[Any]) -> torch.Tensor:
    """A function of ``count`` numbers, for as many points at once, without their places' structure: what kernels print."""
    dims = (*[0] * count, *[None] * (len(operands) - count))
    return torch.vmap(lambda *given: function(*given)[0], dims)(*operands).clone()


def slope_at_points(function: Subgraph, operands: Sequence[Any]) -> torch.Tensor:
    """The gradient of scores at such points: (score, batch, head, query, key, gradient of what the function gives), then the others."""
    score, *places, grad = operands[:6]
    with torch.enable_grad():
        score = score.detach().requires_grad_()
        made = at_points(function, 5, (score, *places, *operands[6:]))
    if not made.requires_grad:
        return torch.zeros_like(score)
    (found,) = torch.autograd.grad(
        made, score, grad.to(made.dtype), allow_unused=True, materialize_grads=True
    )
    return found.clone()


def allowed(mask: Subgraph, sizes: Sequence[Any], device: torch.device, others: Sequence[Any]) -> Any:
    """Which keys which queries may see, by a function of their places; or what it gives instead of a bool."""
    return _spread(lambda *given: mask(*given)[0], (), sizes, device, others)


def excluded(score: Subgraph, sizes: Sequence[Any], device: torch.device, others: Sequence[Any]) -> Any:
    """Which keys which queries may see, by a function that would change their scores from 0."""
    zeros = torch.zeros(tuple(sizes), device=device)
    return ~torch.isneginf(_spread(lambda *given: score(*given)[0], (zeros,), sizes, device, others))


class _Attention(torch.autograd.Function):
    """Attention whose backward forms the scores again."""

    @staticmethod
    def forward(ctx: Any, score: Subgraph, mask: Subgraph, scale: float, *operands: Any) -> Any:
        q, k, v, *others = operands
        out, lse, most = forward(score, mask, scale, q, k, v, others)
        ctx.mark_non_differentiable(most)
        ctx.functions = score, mask, scale
        ctx.places = [i for i, x in enumerate(others) if isinstance(x, torch.Tensor)]
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in others]
        ctx.save_for_backward(q, k, v, out, lse, *[others[i] for i in ctx.places])
        return out, lse, most

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor, grad_lse: torch.Tensor, _: Any) -> Any:
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        others = list(ctx.others)
        for i, x in zip(ctx.places, tensors, strict=True):
            others[i] = x
        wanted = [i for i in range(len(others)) if ctx.needs_input_grad[6 + i]]
        dq, dk, dv, found = backward(ctx.functions, (q, k, v), others, wanted, out, lse, (grad_out, grad_lse))
        grads: list[Any] = [None] * len(others)
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = grad
        return None, None, None, dq, dk, dv, *grads


def forward(
    score: Subgraph, mask: Subgraph, scale: float, q: Any, k: Any, v: Any, others: Sequence[Any]
) -> tuple[Any, Any, Any]:
    _, seen, changed = _scores(score, mask, scale, q, k, others)
    post = torch.where(seen, changed, -INF).to(working(q.dtype))
    most = post.amax(-1, keepdim=True)
    base = torch.where(most.abs() == INF, 0.0, most)
    e = (post - base).exp()
    total = e.sum(-1, keepdim=True)
    p = e / torch.where(total == 0, 1.0, total)  # a row in which nothing is seen gives zeros
    lse = total.log() + base
    out = _by_keys(p.to(q.dtype), _along_batch(v, q), q.shape)
    return laid_out_like(out, q), lse.squeeze(-1), most.squeeze(-1)


def backward(
    functions: tuple[Subgraph, Subgraph, float],
    operands: tuple[Any, Any, Any],
    others: Sequence[Any],
    wanted: Sequence[int],
    out: Any,
    lse: Any,
    grads: tuple[Any, Any],
) -> tuple[Any, Any, Any, list[Any]]:
    """The gradients of q, k and v, and of those of the others that are wanted."""
    (score, mask, scale), (q, k, v), (grad_out, grad_lse) = functions, operands, grads
    dtype, wide = q.dtype, working(q.dtype)
    given = list(others)
    with torch.enable_grad():
        scores, seen, _ = _scores(None, mask, scale, q.detach(), k.detach(), others)
        scores = scores.detach().requires_grad_()
        for i in wanted:
            given[i] = others[i].detach().requires_grad_()
        changed = _changed(score, scores, q.shape, k.shape, given)
    post = torch.where(seen, changed.detach(), -INF).to(wide)
    p = (post - torch.where(lse == -INF, 0.0, lse).unsqueeze(-1)).exp()
    dv = _by_queries(p.to(dtype), grad_out, v.shape)
    dp = _products(grad_out.to(wide), _along_batch(v, q).to(wide), q.shape, k.shape)
    delta = (out.to(wide) * grad_out.to(wide)).sum(-1, keepdim=True)
    d_changed = (p * (dp - delta + grad_lse.unsqueeze(-1))).to(changed.dtype)
    leaves = [scores, *[given[i] for i in wanted]]
    if changed.requires_grad:
        found = torch.autograd.grad(changed, leaves, d_changed, allow_unused=True, materialize_grads=True)
    else:
        found = tuple([torch.zeros_like(x) for x in leaves])
    ds = torch.where(seen, (found[0] * scale).to(dtype), 0.0)
    dq = _by_keys(ds, _along_batch(k, q), q.shape)
    dk = _by_queries(ds, q, k.shape)
    return dq, dk, dv, list(found[1:])


# -- scores


def reads_blocks(device: torch.device) -> bool:
    """Whether there are kernels that look at a mask's blocks, to leave out what its function hides."""
    return device.type == "cuda"


def working(dtype: torch.dtype) -> torch.dtype:
    """The type in which scores are formed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _scores(
    score: Subgraph | None, mask: Subgraph, scale: float, q: Any, k: Any, others: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """(scaled products, which are seen, what the function makes of them)."""
    wide = working(q.dtype)
    scores = _products(q.to(wide), _along_batch(k, q).to(wide), q.shape, k.shape) * scale
    sizes = (*q.shape[:3], k.shape[2])
    seen = allowed(mask, sizes, q.device, others)
    return scores, seen, None if score is None else _changed(score, scores, q.shape, k.shape, others)


def _changed(score: Subgraph, scores: Any, q: Any, k: Any, others: Sequence[Any]) -> Any:
    sizes = (*q[:3], k[2])
    return _spread(lambda *given: score(*given)[0], (scores,), sizes, scores.device, others)


def _spread(
    function: Callable[..., Any],
    values: tuple[Any, ...],
    sizes: Sequence[Any],
    device: torch.device,
    others: Sequence[Any],
) -> Any:
    """A function of numbers, for all of (batch, head, query, key)."""
    places = [torch.arange(n, device=device) for n in sizes]
    for along in _ALONG:
        function = torch.vmap(function, (*[0] * len(values), *along, *[None] * len(others)))
    return function(*values, *places, *others)


# -- products, in which several heads of queries may share one of keys


def _along_batch(x: Any, q: Any) -> Any:
    """Keys or values for each batch of the queries."""
    return x.expand(q.shape[0], *x.shape[1:])


def _grouped(x: Any, heads: Any) -> Any:
    """(batch, heads, rows of all queries' heads that share it, columns)."""
    return x.reshape(x.shape[0], heads, -1, x.shape[-1]) if _is_another(x.shape[1], heads) else x


def _is_another(heads: Any, others: Any) -> bool:
    return bool(heads != others)


def _products(left: Any, right: Any, q: Any, k: Any) -> Any:
    """Rows of queries by rows of keys."""
    made = _grouped(left, k[1]) @ right.transpose(-2, -1)
    return made.reshape(*q[:3], k[2])


def _by_keys(weights: Any, right: Any, q: Any) -> Any:
    """Sums over keys, per query."""
    made = _grouped(weights, right.shape[1]) @ right
    return made.reshape(*q[:3], right.shape[-1])


def _by_queries(weights: Any, right: Any, k: Any) -> Any:
    """Sums over queries of all heads that share a head of keys, and over batches that share one of keys, per key."""
    made = _grouped(weights, k[1]).transpose(-2, -1) @ _grouped(right, k[1])
    return made.sum(0, keepdim=True) if _is_another(made.shape[0], k[0]) else made


def laid_out_like(x: Any, q: Any) -> Any:
    """A dense tensor whose dimensions lie in memory in the order of the queries', the last one innermost."""
    order = _order(q)
    if order == [0, 1, 2, 3]:
        return x.contiguous()
    return x.permute(order).contiguous().permute(sorted(range(4), key=order.__getitem__))


def empty_like_queries(shape: Sequence[Any], q: Any) -> Any:
    """Memory for such a tensor."""
    order = _order(q)
    made = torch.empty([shape[i] for i in order], dtype=q.dtype, device=q.device)
    return made.permute(sorted(range(4), key=order.__getitem__))


def _order(q: Any) -> list[int]:
    return [i for i in sorted(range(4), key=lambda i: -_hint(q.stride(i))) if i != 3] + [3]


def _hint(n: Any) -> int:
    return n.node.hint if isinstance(n, torch.SymInt) else n


#: what nodes of attention call
TARGETS: frozenset[Any] = frozenset({attention, allowed, excluded, at_points, slope_at_points})
