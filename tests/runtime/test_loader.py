"""What host modules ask of the runtime."""

from __future__ import annotations

import pytest
import torch

from braze.runtime.call.loader import Runtime


def test_strides_of_single_elements_are_changed_without_a_copy() -> None:
    """The same memory under the planned strides, and no view: it may be written under autograd."""
    base = torch.arange(12.0).as_strided((3, 4, 1, 1), (4, 1, 1, 1))
    where = base.data_ptr()
    made = Runtime.relayout(base, (3, 4, 1, 1), (4, 1, 4, 4), torch.float32)
    assert made.stride() == (4, 1, 4, 4) and base.stride() == (4, 1, 1, 1)
    assert made.data_ptr() == where and torch.equal(made, base)
    assert not made._is_view()


def test_an_offset_is_kept() -> None:
    part = torch.arange(12.0)[4:].as_strided((1, 8), (8, 1))
    made = Runtime.relayout(part, (1, 8), (1, 1), torch.float32)
    assert made.stride() == (1, 1) and made.data_ptr() == part.data_ptr() and torch.equal(made, part)


@pytest.mark.parametrize(
    ("strides", "dtype"), [((1, 3, 1), torch.float32), ((4, 1, 1), torch.float64), ((8, 2, 1), torch.float32)]
)
def test_other_strides_and_types_are_copies(strides: tuple[int, ...], dtype: torch.dtype) -> None:
    result = torch.arange(12.0).view(3, 4, 1)
    made = Runtime.relayout(result, (3, 4, 1), strides, dtype)
    assert made.stride() == strides and made.dtype is dtype
    assert made.data_ptr() != result.data_ptr() and torch.equal(made.float(), result)


def test_other_sizes_than_planned_are_told() -> None:
    with pytest.raises(RuntimeError, match=r"sizes \(3, 4\) where \(4, 3\)"):
        Runtime.relayout(torch.zeros(3, 4), (4, 3), (3, 1), torch.float32)


def test_what_is_told_to_draw_nothing_takes_no_turn() -> None:
    turns: list[str] = []

    class Turns:
        def __enter__(self) -> None:
            turns.append("taken")

        def __exit__(self, *error: object) -> None:
            turns.append("given")

    runtime = Runtime(None, turns=Turns())
    x = torch.ones(1, 1, 2, 2)
    for may_draw, found in ((False, []), (True, ["taken", "given"])):
        runtime.operator("aten.scaled_dot_product_attention.default", may_draw)(x, x, x)
        assert turns == found
