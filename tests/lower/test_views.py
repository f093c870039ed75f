"""Views are index arithmetic: no copies of what lies in memory, eager's strides at the outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import braze
from braze.loops.ir import BufferView
from braze.lower.views.views import clamp_start, group_dimensions
from braze.symbolic.expr import Symbol, as_expr
from tests.lower.conftest import check, lowered

VIEWS = {
    "view": lambda x: x.view(6, 4),
    "view_split": lambda x: x.view(2, 3, 2, 2),
    "view_join": lambda x: x.view(-1),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "negative_transpose": lambda x: x.transpose(-1, -2),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "lead": lambda x: x.expand(3, 2, 3, 4),
    "slice": lambda x: x[:, 1:3],
    "step": lambda x: x[..., ::2],
    "negative": lambda x: x[:, -2:, :-1],
    "beyond": lambda x: x[:, 1:100],
    "empty": lambda x: x[:, 2:1],
    "select": lambda x: x[1],
    "select_last": lambda x: x[..., -1],
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "squeeze_all": lambda x: x[:1, :1].squeeze(),
    "squeeze_not": lambda x: x.squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1).unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "diagonal_below": lambda x: x.diagonal(-1, 0, 2),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "split": lambda x: x.split(2, 1),
    "chunk": lambda x: x.chunk(2, -1),
    "split_sizes": lambda x: x.split([1, 3], 2),
    "unbind": lambda x: x.unbind(1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "movedim": lambda x: x.movedim(0, 2),
    "t": lambda x: x[0].t(),
    "swap_and_join": lambda x: x.transpose(0, 1).reshape(3, 8),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 5)),
    "alias": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_of_an_input(name: str) -> None:
    """The output is a window on the input, unless a reshape had to copy."""
    x = torch.randn(2, 3, 4)
    program = check(VIEWS[name], x, exact=True)
    if name != "swap_and_join":
        assert not program.steps
        assert all(isinstance(o, BufferView) and o.buffer == "x0" for o in program.outputs)


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "as_strided"])
def test_view_of_a_computed_value(name: str) -> None:
    """Values and strides are eager's when the base is not in memory yet, and when more is done to the view."""
    x = torch.randn(2, 3, 4)
    check(lambda v: VIEWS[name](v + 1), x, exact=True)

    def more(v: torch.Tensor) -> object:
        out = VIEWS[name](v + 1)
        return [p * 2 for p in out] if isinstance(out, (tuple, list)) else out * 2

    check(more, x, exact=True)


def test_flip_and_roll() -> None:
    x = torch.randn(3, 4)
    check(lambda v: v.flip(0, 1), x, exact=True)
    check(lambda v: v.sum().flip(0) * 2, x, exact=True)
    check(lambda v: v.roll((1, -2), (0, 1)), x, exact=True)
    check(lambda v: v.roll(5, 1) + v.flip(-1), x, exact=True)


def test_bits_seen_as_another_type() -> None:
    check(lambda v: v.view(torch.int32), torch.randn(5), exact=True)
    check(lambda v: v.view(torch.int16), torch.randn(5).bfloat16(), exact=True)


def test_a_view_is_shared_by_computation_and_extern_call() -> None:
    """The transposed view reaches the call as strides, without a copy."""
    program = check(
        lambda a, b: torch.bmm(a, b.transpose(1, 2)),
        torch.randn(2, 3, 4),
        torch.randn(2, 5, 4),
        allow=["aten.bmm.default"],
    )
    assert len(program.steps) == 1


def test_heads_reach_attention_as_views() -> None:
    """q, k and v of one projection are windows on its buffer."""

    def attend(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w.t()).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16)

    program = lowered(attend, [torch.randn(2, 5, 16), torch.randn(48, 16)], constants=[1])
    assert [getattr(s, "target", "gemm") for s in program.steps][:2] == [
        "gemm",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
    ]


def test_output_with_gaps_keeps_its_strides() -> None:
    """A computed slice comes back with the strides that eager's view has."""
    check(lambda v: (v * 2)[:, 1:3], torch.randn(4, 6))
    check(lambda v: (v * 2).sum(1, keepdim=True).expand(4, 6), torch.randn(4, 6))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes with the same number of elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    flat: list[int] = []
    for f in factors:
        flat += {1: [1], 2: [2], 3: [3], 4: [2, 2], 6: [2, 3]}[f]
    shape: list[int] = []
    for f in draw(st.permutations(flat)):
        if shape and draw(st.booleans()):
            shape[-1] *= f
        else:
            shape.append(f)
    return factors, shape


@settings(max_examples=80, deadline=None)
@given(reshapes(), st.data())
def test_reshapes(shapes: tuple[list[int], list[int]], data: st.DataObject) -> None:
    """Any reshape of any permuted tensor, in memory or computed, alone or permuted again."""
    old, new = shapes
    order = data.draw(st.permutations(range(len(old))))
    back = data.draw(st.permutations(range(len(new))))
    x = torch.arange(torch.Size(old).numel(), dtype=torch.float32).reshape([old[d] for d in order])
    x = x.permute([list(order).index(d) for d in range(len(old))])
    check(lambda v: v.reshape(new).permute(back), x, exact=True)
    check(lambda v: (v + 1).reshape(new).permute(back) * 2, x, exact=True)


def test_dimensions_are_paired_by_their_numbers_of_elements() -> None:
    """Sizes 1 belong to nobody; what is left behind a size of 0 belongs to the last."""

    def paired(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
        return group_dimensions([as_expr(s) for s in old], [as_expr(s) for s in new])

    assert paired((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert paired((1, 6, 1), (2, 1, 3)) == [([1], [0, 2])]
    assert paired((1,), (1, 1)) == []
    assert paired((3, 0), (3, 0, 5)) == [([0], [0]), ([1], [1, 2])]
    assert paired((3, 0, 5), (3, 0)) == [([0], [0]), ([1, 2], [1])]
    assert paired((), (0,)) == [([], [0])]


def test_where_a_slice_of_symbolic_length_starts() -> None:
    """Where its length is just the end less the start, neither was clamped."""
    n, s = Symbol("n", 0), Symbol("s", 0)
    g = SimpleNamespace(symbols=SimpleNamespace(expr=as_expr))
    for end, taken in ((8, 8 - s), (None, n - s), (1 << 62, n - s)):
        assert clamp_start(g, s, end, n, taken) is s
        assert clamp_start(g, s, end, n, taken - 1) is None
        for step in (2, 3, 7):
            assert clamp_start(g, s, end, n, (taken + (step - 1)) // step, step) is s
            assert clamp_start(g, s, end, n, taken // step, step) is None
    assert clamp_start(g, s, 8, n, n - s) is None
    assert clamp_start(g, Symbol("t"), None, n, n) is None


def test_empty_tensors_reshape() -> None:
    check(lambda v: v.reshape(0, 5) + 1, torch.randn(3, 0, 2), exact=True)
    check(lambda v: (v + 1).view(2, 0), torch.randn(0), exact=True)


@pytest.mark.parametrize(
    "empty",
    [lambda v: v[7:], lambda v: v[:, 2:2][1], lambda v: v.diagonal(9), lambda v: v.diagonal(-4), lambda v: v[1:].diagonal(2)[1:]],
    ids=["a slice past the end", "a row of no columns", "a diagonal above", "a diagonal below", "the end of a diagonal"],
)  # fmt: skip
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_window_beside_a_view_without_elements_begins_where_that_does(
    empty: Any, dynamic: bool | None
) -> None:
    def f(v: torch.Tensor) -> tuple[torch.Tensor, int]:
        part = empty(v)
        return part.as_strided((1,), (1,)).neg(), part.storage_offset()

    compiled = braze.compile(f, dynamic=dynamic)
    for begin in (0, 3):
        v = torch.arange(40.0)[begin : begin + 16].view(4, 4)
        expected, found = f(v), compiled(v)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def _with_a_stride_that_a_relation_tells(count: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """What ``count`` makes of values computed of a turned argument whose first two sizes are known to multiply to 4."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.reshape(*reversed(x.shape))
        return count(x, x + 1), turned

    arguments = [torch.arange(n * 4.0).view(4, n // s, s).permute(2, 1, 0) for n, s in ((112, 16), (4, 2))]
    return f, tuple(arguments)


@pytest.mark.parametrize(
    "count",
    [
        lambda x, y: y.as_strided((6,), (1,)) * 2,
        lambda x, y: torch.as_strided_copy(y, (6,), (1,)) * 2,
        lambda x, y: torch.as_strided_scatter(y, torch.ones(6), (6,), (1,)) * 2,
        lambda x, y: x.as_strided(x.shape, x.stride()).add_(True),
        lambda x, y: y[1:].as_strided((2,), (1,)) * 2,
    ],
    ids=["a window", "a copy of one", "a write to one", "a write to an argument", "a window on a part"],
)
def test_memory_is_counted_as_eager_lays_it_out_where_a_relation_hides_that_it_is_dense(count: Any) -> None:
    f, arguments = _with_a_stride_that_a_relation_tells(count)
    compiled = braze.compile(f)
    for x in arguments:
        theirs, ours = x.clone(), x.clone()
        for expected, found in zip(f(theirs), compiled(ours), strict=True):
            assert torch.equal(found, expected) and found.stride() == expected.stride()
        assert torch.equal(ours, theirs)
