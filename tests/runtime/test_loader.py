"""What host modules ask of the runtime."""

from __future__ import annotations

import pytest
import torch

from braze.runtime.loader import Runtime


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


class Turns:
    """Counts how often a call waited for its turn."""

    taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("bound", "target", "waits"),
    [
        ("operator", "aten.scaled_dot_product_attention.default", 1),
        ("operator_that_draws_nothing", "aten.scaled_dot_product_attention.default", 0),
        ("operator", "aten.cumsum.default", 0),
    ],
)
def test_what_may_draw_waits_for_its_turn(bound: str, target: str, waits: int) -> None:
    turns = Turns()
    call = getattr(Runtime(None, turns=turns), bound)(target)
    x = torch.randn(1, 2, 4, 8)
    args = (x, 1) if "cumsum" in target else (x, x, x)
    want = (
        torch.cumsum(x, 1)
        if "cumsum" in target
        else torch.nn.functional.scaled_dot_product_attention(x, x, x)
    )
    assert torch.equal(call(*args), want)
    assert turns.taken == waits


def test_a_product_and_a_view_of_a_host_module() -> None:
    runtime, x, w = Runtime(None), torch.randn(2, 3, 8), torch.randn(4, 8)
    product = runtime.product("aten.mm.out", (((6, 8), (8, 1), 0), ((8, 4), (1, 8), 0)))
    out = torch.empty(6, 4)
    with torch.no_grad():
        product(x, w, out=out)
        assert torch.equal(out, x.view(6, 8) @ w.t())
        assert torch.equal(runtime.view(((6, 8), (8, 1), 0))(x), x.view(6, 8))
