"""How much memory a layout spans."""

from __future__ import annotations

import pytest
import torch

from braze.support.layouts import span

LAYOUTS = [
    ((), ()), ((4,), (1,)), ((2, 3), (3, 1)), ((2, 3), (1, 2)), ((5, 2), (0, 7)), ((1, 1), (9, 4)), ((3, 0, 2), (2, 2, 1)), ((0,), (5,)),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "strides"), LAYOUTS)
def test_a_layout_spans_what_pytorch_allocates_for_it(
    sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    allocated = torch.empty_strided(sizes, strides, dtype=torch.uint8).untyped_storage().nbytes()
    assert span(sizes, strides) == allocated
