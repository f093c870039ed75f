"""What is said of tensors over one memory, against the very bytes: who overlaps, who repeats elements, who fills a stretch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from braze.aot.facts.overlap import is_inside, may_overlap
from braze.aot.facts.views import has_overlap, is_dense

Tensor = torch.Tensor
MEMORY = 64


def starts(tensor: Tensor) -> list[int]:
    """The first byte of each element, in the storage."""
    at = [tensor.storage_offset()]
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = [a + i * stride for a in at for i in range(size)]
    return [a * tensor.itemsize for a in at]


def touched(tensor: Tensor) -> set[int]:
    return {start + k for start in starts(tensor) for k in range(tensor.itemsize)}


@st.composite
def windows(draw: st.DrawFn) -> Tensor:
    """Any window on a memory of 64 words, of floats or of bytes."""
    dtype = draw(st.sampled_from([torch.float32, torch.uint8]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16])) for _ in shape]
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)
    room = MEMORY * 4 // dtype.itemsize - reach
    offset = draw(st.integers(0, max(room, 0)))
    return torch.zeros(MEMORY + 128).view(dtype).as_strided(shape, strides, offset)


@settings(max_examples=400)
@given(windows(), windows())
def test_tensors_that_share_a_byte_are_never_said_to_be_apart(a, b):
    assert may_overlap(a, b) or not touched(a) & touched(b)
    assert may_overlap(a, b) == may_overlap(b, a)


def rows(*columns: slice | int) -> list[Tensor]:
    memory = torch.zeros(8, 6)
    return [memory[:, c] for c in columns]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(torch.zeros(8)[:4], torch.zeros(8)[4:], id="one ends where the other begins"),
        pytest.param(*rows(slice(0, 2), slice(2, 6)), id="columns"),
        pytest.param(*rows(5, 0), id="single columns, the last first"),
        pytest.param(torch.zeros(9)[::2], torch.zeros(9)[1::2], id="every other element"),
        pytest.param(torch.zeros(4, 6)[:, 1:3], torch.zeros(4, 6)[1:, 3:], id="columns from another row on"),
        pytest.param(torch.zeros(4, 5)[:, ::2], torch.zeros(4, 5)[:, 1::2], id="every other column of five"),
        pytest.param(torch.zeros(3, 5, 7)[:, 1:3, ::3], torch.zeros(3, 5, 7)[:, :4, 2::3], id="of pictures"),
        pytest.param(torch.zeros(8)[2:2], torch.zeros(8), id="no elements"),
        pytest.param(torch.zeros(8), torch.zeros(8)[8:], id="no elements, the other way round"),
        pytest.param(torch.zeros(4).view(torch.uint8)[3:4], torch.zeros(4)[1:], id="bytes and words"),
    ],
)
def test_tensors_that_are_known_to_be_apart(a, b):
    assert not may_overlap(a, b) and not may_overlap(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(torch.zeros(8)[:5], torch.zeros(8)[4:], id="one element"),
        pytest.param(*rows(slice(0, 3), slice(2, 6)), id="one column"),
        pytest.param(torch.zeros(9)[::2], torch.zeros(9)[::4], id="every fourth of every other"),
        pytest.param(
            torch.zeros(30).as_strided((4, 3), (6, 1), 4), torch.zeros(30).as_strided((4,), (6,), 6),
            id="over the end of a row",
        ),
        pytest.param(
            torch.zeros(30).as_strided((2, 2), (10, 1), 0), torch.zeros(30).as_strided((4,), (6,), 5),
            id="unequal periods",
        ),
        pytest.param(torch.zeros(4).view(torch.uint8)[3:5], torch.zeros(4)[1:], id="one byte of a word"),
    ],
)  # fmt: skip
def test_tensors_that_overlap(a, b):
    assert touched(a) & touched(b)
    assert may_overlap(a, b) and may_overlap(b, a)


@settings(max_examples=200)
@given(windows(), windows())
def test_what_is_inside_reaches_no_further(a, b):
    if a.numel() and b.numel():
        low, high = min(touched(b)), max(touched(b))
        assert is_inside(a, b) == (low <= min(touched(a)) and max(touched(a)) <= high)


@settings(max_examples=400)
@given(windows())
def test_repeated_elements_are_seen(a):
    """Whatever repeats one is said to; what lies nested, as rows in columns do, is not."""
    at = starts(a)
    if len(set(at)) < len(at):
        assert has_overlap(a)
    if not a.numel():
        assert not has_overlap(a)


@settings(max_examples=400)
@given(windows())
def test_what_fills_a_stretch_is_dense(a):
    at = sorted(starts(a))
    if a.numel():
        filled = at == list(range(at[0], at[0] + len(at) * a.itemsize, a.itemsize))
        assert is_dense(a) == filled


@pytest.mark.parametrize("view", [torch.zeros(4, 6)[:, ::2], torch.zeros(4, 6).t()[1:], torch.zeros(3, 1, 2)])
def test_slices_and_permutations_repeat_nothing(view):
    assert not has_overlap(view)


def test_where_one_size_is_a_symbol_nothing_is_decided_of_who_overlaps():
    """An answer would be a guard, and another graph for sizes that the program does not tell apart."""
    env = ShapeEnv()
    rows_alone = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    whole = FakeTensorMode(shape_env=env).from_tensor(torch.zeros(9, 6), symbolic_context=rows_alone)
    left, right = whole.narrow(1, 0, 2), whole.narrow(1, 2, 4)
    asked = len(env.guards)
    assert may_overlap(left, right) and not is_inside(left, whole)
    assert len(env.guards) == asked
    assert not may_overlap(left, right, decide=True)
