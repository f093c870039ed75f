"""What the sizes and strides of a layout tell, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory from a layout's first to its last, both counted; 0 where it has none."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
