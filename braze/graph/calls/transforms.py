"""Transforms of ``torch.func`` in graphs: what their nodes call, over a subgraph that gives a tuple of tensors.

Results come as one flat tuple; the program's structures are put together around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Subgraph = Callable[..., tuple[Any, ...]]


def call(function: Subgraph, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The function as it is."""
    return tuple(function(*operands))


def vmap(
    function: Subgraph,
    in_dims: tuple[int | None, ...],
    out_dims: tuple[int, ...],
    randomness: str,
    chunk_size: int | None,
    operands: Sequence[Any],
) -> tuple[Any, ...]:
    """The results for all rows at once."""
    batched = torch.vmap(function, tuple(in_dims), tuple(out_dims), randomness, chunk_size=chunk_size)
    return tuple(batched(*operands))


def grad_and_value(function: Subgraph, count: int, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients of the first result by the first ``count`` operands, then all results."""

    def first(*values: Any) -> Any:
        out = function(*values)
        return out[0], tuple(out[1:])

    grads, (value, aux) = torch.func.grad_and_value(first, argnums=tuple(range(count)), has_aux=True)(
        *operands
    )
    return (*grads, value, *aux)


def jvp(
    function: Subgraph, results: int, primals: Sequence[Any], tangents: Sequence[Any], others: Sequence[Any]
) -> tuple[Any, ...]:
    """The first ``results`` results, their derivatives along the tangents, then the other results."""
    split = _split(function, results, others)
    made: Any = torch.func.jvp(split, tuple(primals), tuple(tangents), has_aux=True)
    values, derivatives, aux = made
    return (*values, *derivatives, *aux)


def vjp(
    function: Subgraph, results: int, primals: Sequence[Any], cotangents: Sequence[Any], others: Sequence[Any]
) -> tuple[Any, ...]:
    """The primals' gradients, given those of the first ``results`` results."""
    made: Any = torch.func.vjp(_split(function, results, others), *primals, has_aux=True)
    pull = made[1]
    return tuple(pull(tuple(cotangents)))


def jacobian(
    function: Subgraph,
    results: int,
    forward: bool,
    settings: dict[str, Any],
    primals: Sequence[Any],
    others: Sequence[Any],
) -> tuple[Any, ...]:
    """Per result, its derivative by each primal; then the other results."""
    make = torch.func.jacfwd if forward else torch.func.jacrev
    split = _split(function, results, others)
    rows, aux = make(split, argnums=tuple(range(len(primals))), has_aux=True, **settings)(*primals)
    return (*[x for row in rows for x in row], *aux)


def _split(function: Subgraph, results: int, others: Sequence[Any]) -> Callable[..., Any]:
    """The subgraph as a function of its primals: (the results to differentiate, the others)."""

    def halves(*primals: Any) -> Any:
        out = function(*primals, *others)
        return tuple(out[:results]), tuple(out[results:])

    return halves


#: what nodes of transforms call
TRANSFORMS: frozenset[Any] = frozenset({call, vmap, grad_and_value, jvp, vjp, jacobian})
