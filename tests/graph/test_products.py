"""Which nodes of a graph are products of matrices that can be measured by shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from braze.graph.operators.products import product_of
from braze.products import Product
from tests.lower.conftest import trace_graph


def products(
    f: Callable[..., Any], *inputs: torch.Tensor, dynamic: Sequence[tuple[int, int]] = ()
) -> list[Product | None]:
    nodes = trace_graph(f, inputs, dynamic).graph.nodes
    return [product_of(n) for n in nodes if "mm" in n.name or "linear" in n.name]


def test_a_linear_layer_and_its_gradients_are_products_by_shape_and_order() -> None:
    x, w, b, dy = torch.randn(2, 3, 8), torch.randn(6, 8), torch.randn(6), torch.randn(6, 6)
    assert products(F.linear, x, w, b) == [Product(6, 8, 6, right_by_columns=True)]
    assert products(torch.addmm, b, x[0], w.t()) == [Product(3, 8, 6, right_by_columns=True)]
    assert products(torch.mm, dy, w) == [Product(6, 6, 8)]
    assert products(torch.mm, dy.t(), x.view(6, 8)) == [Product(6, 6, 8, left_by_columns=True)]


def test_other_products_are_not_measured() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 6)
    assert products(torch.mm, x.double(), w.double()) == [None]
    assert products(torch.mm, x, w, dynamic=[(0, 0)]) == [None]
    assert products(torch.mm, x, torch.randn(16, 12)[::2, ::2]) == [None]
    assert products(torch.mm, x[:, :0], w[:0]) == [None]
    assert products(torch.mm, x[:, :1], w[:1]) == products(torch.mm, x, w[:, :1]) == [None]
    assert products(lambda c, a, d: torch.addmm(c, a, d, beta=0.5), x[:, :6], x, w) == [None]
