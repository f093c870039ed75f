"""Operators that are called by their bindings in ``torch`` do what ``torch.ops`` does, with the schema's arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze.runtime import operators
from braze.runtime.purity import named

X, PLACES = torch.randn(3, 8), torch.tensor([0, 2])
IMAGE = torch.rand(1, 2, 6, 6)
POOL = ([2, 2], [2, 2], [0, 0])
#: operator -> arguments as generated code gives them
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "bincount": (PLACES, None, 5),
    "cummax": (X, 1),
    "cummin": (X, 1),
    "cumprod": (X, 1),
    "cumsum": (X, 1),
    "dot": (X[0], X[1]),
    "grid_sampler_2d": (IMAGE, torch.rand(1, 3, 3, 2), 0, 0, False),
    "histc": (X, 4, -1.0, 1.0),
    "kthvalue": (X, 2, 1, True),
    "logcumsumexp": (X, 1),
    "mode": (X, 1, False),
    "mv": (X, X[0]),
    "nonzero": (X,),
    "sort": (X, 1, True),
    "topk": (X, 2, 1, True, True),
    "_embedding_bag": (X, PLACES, torch.tensor([0]), False, 0, False, None, False, -1),
    "median": (X, 1, True),
    "bucketize": (X, X[0].sort()[0]),
    "searchsorted": (X[0].sort()[0], X),
    "avg_pool2d": (IMAGE, *POOL, False, True, None),
    "im2col": (IMAGE, [3, 3], [1, 1], [1, 1], [1, 1]),
    "max_pool2d_with_indices": (IMAGE, *POOL, [1, 1], False),
    "index_add_": (X, 0, PLACES, X[:2] * 2),
    "scatter_add_": (X, 0, PLACES.expand(8, 2).t(), X[:2] * 2),
    **{f"{kind}_pad1d": (IMAGE[0], (1, 2)) for kind in ("reflection", "replication")},
    **{f"{kind}_pad2d": (IMAGE, (1, 2, 0, 1)) for kind in ("reflection", "replication")},
    **{f"{kind}_pad3d": (IMAGE[None], (1, 2, 0, 1, 1, 0)) for kind in ("reflection", "replication")},
}
BOUND = sorted(operators._bindings())


def results(function: Any, target: str) -> tuple[Any, ...]:
    _, name, overload = target.split(".")
    arguments = [a.clone() if isinstance(a, torch.Tensor) else a for a in ARGUMENTS[name]]
    kwargs: dict[str, Any] = {"stable": True, "dim": 1, "descending": True} if overload == "stable" else {}
    if overload == "out":
        kwargs = {"out": torch.empty_like(named(f"aten.{name}.default")(*arguments))}
    found = function(*(arguments[:1] if overload == "stable" else arguments), **kwargs)
    return tuple(found) if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("target", BOUND)
def test_a_binding_gives_what_the_operator_gives(target: str) -> None:
    function = operators.operator(target)
    assert not isinstance(function, torch._ops.OpOverload)
    got, want = results(function, target), results(named(target), target)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, check_stride=True)


def test_all_bindings_are_there() -> None:
    rows = (operators._BOUND, operators._LAYERS, operators._METHODS)
    assert len(BOUND) == sum(len(names.split()) for row in rows for names in row.values())
