"""Which dimensions of a model's outputs vary with the batch, learnt from two calls of different sizes; and outputs without padding."""

from __future__ import annotations

from typing import Any

import torch

from braze.graph.private.torch_compat import pytree
from braze.serving.step.slots import Extent
from braze.support.errors import UserError

#: what of an output varies: dimensions (None: a number, itself), and what they count, "tokens" or "requests"
Varying = tuple[tuple[int | None, str], ...]
#: of each leaf its sizes, a plain value as one size of no dimension
Shapes = tuple[tuple[tuple[int | None, Any], ...], ...]


def shapes_of(result: Any) -> Shapes:
    """The sizes of each leaf by their dimensions; a plain value itself; nothing of what is neither."""
    return tuple(_sizes(leaf) for leaf in pytree.tree_flatten(result)[0])


def _sizes(leaf: Any) -> tuple[tuple[int | None, Any], ...]:
    if isinstance(leaf, torch.Tensor):
        return tuple(enumerate(leaf.shape))
    return ((None, leaf),) if isinstance(leaf, (int, float, str)) else ()


class Outputs:
    """What of the outputs varies: for each leaf its dimensions, and what they count."""

    def __init__(self) -> None:
        self._seen: dict[Extent, Shapes] = {}
        #: None until two sizes have been seen
        self.varying: tuple[Varying, ...] | None = None

    def learn(self, size: Extent, result: Any) -> None:
        """A call of this size gave ``result``."""
        if self.varying is not None:
            return
        shapes = shapes_of(result)
        self._seen.setdefault(size, shapes)
        for other, known in self._seen.items():
            if other.tokens != size.tokens:
                self.varying = _compared(size, shapes, other, known)
                self._seen.clear()
                return

    def real(self, result: Any, real: Extent) -> Any:
        """The rows of a result that are real, as views."""
        assert self.varying is not None
        if isinstance(result, torch.Tensor):  # the most of them, and flattening takes as long as a copy
            return _rows(result, self.varying[0], real)
        leaves, spec = pytree.tree_flatten(result)
        return pytree.tree_unflatten(
            [_rows(leaf, dims, real) for leaf, dims in zip(leaves, self.varying, strict=True)], spec
        )


def given(result: Any, *, copied: bool) -> Any:
    """A step's result as its caller gets it: tensors of the caller's inference mode; ``copied``: that no later replay overwrites."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        foreign = leaf.is_inference() and not torch.is_inference_mode_enabled()
        return leaf.clone() if copied or foreign else leaf

    return one(result) if isinstance(result, torch.Tensor) else pytree.tree_map(one, result)


def _rows(leaf: Any, dims: Varying, real: Extent) -> Any:
    """The rows of one output that are real, or their number."""
    for dim, unit in dims:
        rows = real.tokens if unit == "tokens" else real.requests
        leaf = type(leaf)(rows) if dim is None else leaf.narrow(dim, 0, rows)
    return leaf


def _compared(size: Extent, shapes: Shapes, other: Extent, known: Shapes) -> tuple[Varying, ...]:
    """The dimensions that differ, by what they count; UserError (BZ7309) where that is neither tokens nor requests."""
    if len(shapes) != len(known):
        raise UserError(
            "BZ7309",
            f"a model gives {len(shapes)} outputs for {size.tokens} tokens, and {len(known)} for {other.tokens}",
            hints=["a served model gives as many outputs whatever the batch"],
        )
    found = []
    for place, (one, two) in enumerate(zip(shapes, known, strict=True)):
        dims: list[tuple[int | None, str]] = []
        if len(one) != len(two):
            raise UserError(
                "BZ7309",
                f"output {place} has {len(one)} dimensions for {size.tokens} tokens, and {len(two)} for {other.tokens}",
                hints=["a served model gives outputs of as many dimensions whatever the batch"],
            )
        for (dim, n), (_, m) in zip(one, two, strict=True):
            if n == m or (n != n and m != m):
                continue
            if (n, m) == (size.tokens, other.tokens):
                dims.append((dim, "tokens"))
            elif (n, m) == (size.requests, other.requests):
                dims.append((dim, "requests"))
            else:
                said = f"is {n} and {m}" if dim is None else f"has {n} and {m} as dimension {dim}"
                raise UserError(
                    "BZ7309",
                    f"output {place} {said}, for {size.tokens} and {other.tokens} tokens",
                    why="padding can be cut off only where a dimension, or a number, counts tokens or requests",
                    hints=["return such outputs per token, and reduce them outside of the served model"],
                )
        found.append(tuple(dims))
    return tuple(found)
