"""Small operations on a CPU: what a call of ATen would cost more than the work is a kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from braze.aot.calls.wrap import wrap_again
from braze.aot.facts.records import Around, OutputKind, OutputRole
from braze.graph.nodes.specs import TensorSpec
from tests.helpers import assert_like_eager


def externs(fn: Callable[..., object], *args: torch.Tensor) -> list[str]:
    """The operators of ATen's that a compiled call runs."""
    with torch.no_grad():
        report = braze.explain(fn)(*args)
    return [name for name, _ in report.aten]


def by_vector(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return a @ x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_small_matrix_by_a_vector_is_a_kernel(dtype: torch.dtype) -> None:
    a, x = torch.randn(31, 17).mul(9).to(dtype), torch.randn(17).mul(9).to(dtype)
    assert_like_eager(by_vector, a, x)
    assert_like_eager(by_vector, a.t().contiguous().t(), x)
    assert externs(by_vector, a, x) == []


def test_a_large_one_is_atens_where_its_rows_do_not_lie_side_by_side() -> None:
    a, x = torch.randn(1024, 512), torch.randn(512)
    assert_like_eager(by_vector, a, x)
    assert externs(by_vector, a, x) == []
    columns = a.t().contiguous().t()
    assert_like_eager(by_vector, columns, x)
    assert externs(by_vector, columns, x) == ["aten.mm.default"]


def test_the_conjugated_product_of_real_vectors_is_a_kernel() -> None:
    a, x = torch.randn(100), torch.randn(100)
    assert_like_eager(torch.vdot, a, x)
    assert externs(lambda a, x: torch.vdot(a, x), a, x) == []


@pytest.mark.parametrize("pads", [(1, 2), (3, 0, 0, 2), (1, 1, 2, 2, 0, 1), (-1, 2), (-1, -1, 2, -2)])
@pytest.mark.parametrize("turned", [False, True])
def test_padding_in_circles_is_one_kernel(pads: tuple[int, ...], turned: bool) -> None:
    x = torch.randn(2, 3, 4, 5, 6)[(0,) * (3 - len(pads) // 2)]
    x = x.transpose(-1, -2).contiguous().transpose(-1, -2) if turned and len(pads) > 2 else x

    def pad(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, pads, mode="circular")

    compiled = braze.compile(pad)
    with torch.no_grad():
        ours, theirs = compiled(x), pad(x)
    assert torch.equal(ours, theirs)
    assert ours.stride() == theirs.stride()
    assert externs(pad, x) == ([] if min(pads) >= 0 else ["aten._pad_circular.default"])


@pytest.mark.parametrize(
    ("by", "dtype"),
    [
        (by, dtype)
        for by in (1, 2, 7, 64, 100, 2**31 - 1, 2**40)
        for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8)
        if by <= torch.iinfo(dtype).max
    ],
)
def test_whole_numbers_are_divided_by_a_known_one_as_in_eager(by: int, dtype: torch.dtype) -> None:
    """Without a division, where it is positive: by shifts, masks or a multiplication."""
    info = torch.iinfo(dtype)
    near = [n for n in (by, 2 * by, -by) if info.min < n < info.max]
    given = [info.min, info.min + 1, info.max, *(n + d for n in near for d in (-1, 0, 1)), *range(20)]
    x = torch.tensor([n for n in given if info.min <= n <= info.max], dtype=dtype)
    for fn in (lambda x: x % by, lambda x: x // by, lambda x: x[:3] % by + x[:3] // by):
        assert torch.equal(braze.compile(fn)(x), fn(x))


def many_windows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), x[1:], x, x[:, 2].detach(), x + 1, *x.split(2), x.detach()


@pytest.mark.unverified
@pytest.mark.parametrize("grad", [False, True])
def test_windows_on_an_input_are_eagers_wherever_it_begins(grad: bool) -> None:
    """Calls with other bases than the one of the compile: each window is seen through the given one, with its history."""
    compiled = braze.compile(many_windows)
    for begin in (0, 3, 1):
        memory = torch.randn(40, requires_grad=grad)
        x = memory[begin : begin + 20].view(4, 5)
        with torch.set_grad_enabled(grad):
            ours, theirs = compiled(x), many_windows(x)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
            assert (a.stride(), a.requires_grad) == (b.stride(), b.requires_grad)
        seen = [0, 1, 2, 3, 5, 6, 7]
        assert [ours[k].data_ptr() for k in seen] == [theirs[k].data_ptr() for k in seen]
        assert ours[2] is x
        with torch.no_grad():
            ours[1].add_(1)
        assert torch.equal(ours[0], theirs[0])


@pytest.mark.unverified
def test_a_call_that_gives_a_window_alone_gives_one_on_what_it_is_given() -> None:
    compiled = braze.compile(lambda x: x.permute(1, 0)[:2])
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        compiled(x)
        window = compiled(y)
    assert torch.equal(window, y.permute(1, 0)[:2])
    assert window._base is y


@pytest.mark.unverified
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.permute(1, 0),
        lambda x: x.permute(1, 0).detach(),
        lambda x: (x.view(12), x.t()[1], x.unsqueeze(0).transpose(1, 2)),
        lambda x: (x.diagonal(1), x[:, 2], x + 1),
    ],
)
def test_views_of_what_is_only_read_are_made_without_steps_for_writes(fn: Any, grad: bool) -> None:
    """Few frames of Python, and eager's histories and bases."""
    compiled, x = braze.compile(fn), torch.randn(3, 4, requires_grad=grad)
    compiled(x)
    frames: list[str] = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        found = compiled(x)
    finally:
        sys.setprofile(None)
    assert not {"_computed", "_overwrite", "_count_writes"} & {*frames}
    ours, theirs = ((y,) if isinstance(y, torch.Tensor) else y for y in (found, fn(x)))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert (a.stride(), a.requires_grad, a._is_view()) == (b.stride(), b.requires_grad, b._is_view())
        assert (a._base is x) == (b._base is x)


@pytest.mark.unverified
@pytest.mark.parametrize("grad", [False, True])
def test_one_view_alone_is_made_in_a_frame_of_its_own(grad: bool) -> None:
    compiled, x = braze.compile(lambda x: x.permute(1, 0)[1]), torch.randn(3, 4, requires_grad=grad)
    compiled(x)
    frames: list[str] = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        compiled(x)
    finally:
        sys.setprofile(None)
    assert frames == ["residual", "seen"]


def test_what_stands_around_a_kept_graph_calls_it_and_sees_through_its_inputs() -> None:
    """Of what is kept on disk the graph itself is not there to tell whether it does anything."""
    spec = TensorSpec(torch.float32, torch.device("cpu"), (2, 3), (3, 1))
    part = TensorSpec(torch.float32, torch.device("cpu"), (1, 3), (3, 1), offset=3)
    roles = (OutputRole(OutputKind.VALUE), OutputRole(OutputKind.ALIAS, spec=part, input=0))
    called: list[int] = []

    def graph(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        called.append(len(inputs))
        return (inputs[0] + 1,)

    x = torch.randn(2, 3)
    value, window = wrap_again(Around((spec,), (), roles), graph, None)([x])
    assert torch.equal(value, x + 1)
    assert torch.equal(window, x[1:])
    wrap_again(Around((spec,), (), roles[1:]), graph, None)([x])
    assert called == [1, 1]
