"""Few elements written at computed positions of an input are stored by a loop of ours, as eager's kernels would store them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze

Tensor = torch.Tensor
I = torch.tensor


def same(f: Any, *args: Any, **options: Any) -> list[Tensor]:
    """What a compiled call leaves in its arguments, which is what eager leaves."""
    compiled = braze.compile(f, **{"options": {"verify": 2}, **options})
    ours, eager = [a.clone() for a in args], [a.clone() for a in args]
    got, want = compiled(*ours), f(*eager)
    for a, b in zip((*ours, got), (*eager, want), strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    return ours


def rows(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x.index_copy_(1, i, y)
    return x.sum(0)


def elements(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x[:, i] = y
    return x.sum(0)


@pytest.mark.parametrize("f", [rows, elements])
@pytest.mark.parametrize("positions", [[5], [0], [7], [3, 1, 6], [2, 2, 2], []])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@torch.no_grad()
def test_positions_are_written_as_in_eager(f: Any, positions: list[int], dtype: torch.dtype) -> None:
    x = torch.randn(3, 8, 17).to(dtype)
    y = torch.randn(3, len(positions), 17).to(dtype)
    same(f, x, I(positions, dtype=torch.int64), y)


@pytest.mark.parametrize("f", [rows, elements])
@torch.no_grad()
def test_there_is_no_call_of_atens(f: Any) -> None:
    g = braze.compile(f)
    args = torch.zeros(3, 8, 17), I([5]), torch.randn(3, 1, 17)
    g(*args)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        g(*args)
    assert not [e.key for e in seen.key_averages() if "index" in e.key]


@pytest.mark.parametrize("f", [rows, elements])
@pytest.mark.parametrize("bad", [8, -9, 1 << 40])
@torch.no_grad()
def test_a_position_that_does_not_exist_leaves_what_eager_leaves(f: Any, bad: int) -> None:
    """Eager may write what stands before it."""
    g = braze.compile(f)
    x, eagers, y = torch.zeros(3, 8, 4), torch.zeros(3, 8, 4), torch.ones(3, 2, 4)
    with pytest.raises(IndexError):
        f(eagers, I([1, bad]), y)
    with pytest.raises(IndexError):
        g(x, I([1, bad]), y)
    assert torch.equal(x, eagers)
    same(f, x, I([1, 2]), y)


@torch.no_grad()
def test_negative_positions_count_from_the_end_where_eager_counts_them() -> None:
    x, y = torch.zeros(3, 8, 4), torch.ones(3, 2, 4)
    same(elements, x, I([-1, -8]), y)
    with pytest.raises(IndexError):
        braze.compile(rows)(x, I([-1, 1]), y)


def two_places(x: Tensor, i: Tensor, y: Tensor) -> None:
    x[i, :, i + 1] = y


def a_table_of_places(x: Tensor, i: Tensor, y: Tensor) -> None:
    x[i[:, None], i[None, :]] = y[0]


def of_a_window(x: Tensor, i: Tensor, y: Tensor) -> None:
    x[1:][:, i] = y[1:]


def of_itself(x: Tensor, i: Tensor, y: Tensor) -> None:
    x[:, i] = x[:, i + 1] + x[:, :1]
    x.index_copy_(1, i, x[:, 3:5].clone())


def in_turn(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    before = x[:, i] * 1
    x.index_copy_(1, i, y)
    between = x[:, 2].clone()
    x[:, i + 1] = y * before
    return before + between[:, None]


def one_number(x: Tensor, i: Tensor, y: Tensor) -> None:
    x[i] = 3
    x[0, i, i] = y[0, :, 0]


def positions_made_here(x: Tensor, i: Tensor, y: Tensor) -> None:
    x[:, (i * 3 + 1) % 8] = y
    x.index_copy_(1, torch.arange(2, device=x.device) + 4, y)


def last_dim(x: Tensor, i: Tensor, y: Tensor) -> None:
    x.index_copy_(-1, i, y.transpose(1, 2))
    x[..., i + 1] = y.transpose(1, 2) * 2


CASES = [
    two_places,
    a_table_of_places,
    of_a_window,
    of_itself,
    in_turn,
    one_number,
    positions_made_here,
    last_dim,
]


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", ["plain", "within", "turned", "spread"])
@torch.no_grad()
def test_forms_and_layouts(f: Any, layout: str) -> None:
    whole = torch.randn(6, 16, 16)
    x = {
        "plain": whole[:3, :8, :8].clone(),
        "within": whole[2:5, 3:11, 1:9],
        "turned": whole[:3, :8, :8].transpose(1, 2).contiguous().transpose(1, 2),
        "spread": whole[:3, :8, :1].expand(3, 8, 8).clone(),
    }[layout]
    y, i = torch.randn(3, 2, 8), I([0, 2])
    if f is a_table_of_places:
        y = torch.randn(3, 2, 2, 8)
    elif f is two_places:
        y = torch.randn(2, 8)
    g = braze.compile(f, options={"verify": 2})
    memory = whole.clone()
    ours = memory[2:5, 3:11, 1:9] if layout == "within" else x.clone()
    eager = x.clone()
    got, want = g(ours, i, y), f(eager, i, y)
    assert torch.equal(ours, eager)
    assert want is None or torch.equal(got, want)
    if layout == "within":
        memory[2:5, 3:11, 1:9] = whole[2:5, 3:11, 1:9]
        assert torch.equal(memory, whole)


@torch.no_grad()
def test_special_values_are_stored_as_they_are() -> None:
    y = I([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    (x, _, _) = same(rows, torch.ones(1, 8, 5), I([4]), y.view(1, 1, 5))
    assert torch.signbit(x[0, 4, 3]) and x[0, 4, 4] > 0 and x[0, 4, 0].isnan()


@pytest.mark.parametrize("f", [rows, elements])
@torch.no_grad()
def test_sizes_that_differ_from_call_to_call(f: Any) -> None:
    g = braze.compile(f, dynamic=True, options={"verify": 2})
    for b, n, length in ((3, 1, 8), (5, 1, 9), (4, 2, 11), (4, 3, 8)):
        x, y, i = torch.randn(b, length, 6), torch.randn(b, n, 6), torch.randperm(length)[:n]
        want = x.clone()
        f(want, i, y)
        g(x, i, y)
        assert torch.equal(x, want)


@pytest.mark.parametrize("n", [1, 64])
@torch.no_grad()
def test_many_elements(n: int) -> None:
    """One position has one value however long. Many are stored by ATen's kernel: of values for one position any stays, as its threads have it."""
    x, y, i = torch.zeros(2, 32, 5000), torch.randn(2, n, 5000), torch.randint(32, (n,))
    got = braze.compile(rows, options={"verify": 2})(x, i, y)
    for position in range(32):
        given, stored = y[:, i == position], x[:, position : position + 1]
        assert (given == stored).any(1).all() if given.shape[1] else not stored.any()
    assert torch.equal(got, x.sum(0))


@torch.no_grad()
def test_one_element_and_no_dimension() -> None:
    same(lambda x, i, y: x.index_copy_(0, i, y) + 0, torch.zeros(()), I(0), torch.ones(()))
    same(lambda x, i, y: x.index_copy_(0, i, y) + 0, torch.zeros(3), I(1), torch.ones(()))
    same(lambda x, i, y: x.index_put_((i,), y) + 0, torch.zeros(3), I(1), torch.ones(()))
    same(lambda x, i, y: x.index_put_((i > 0,), y) + 0, torch.zeros(3), I([1, 0, 1]), torch.ones(()))
    same(lambda x, i, y: x.index_put_((i,), y, accumulate=True) + 0, torch.zeros(3), I([1, 1]), torch.ones(2))


@pytest.mark.parametrize("value", [2, I(3.0)])
@pytest.mark.parametrize("places", [[0, -1], [-5, 4], [], -2])
def test_places_that_are_filled_may_be_counted_from_the_end(places: Any, value: Any) -> None:
    """``index_copy``, of which PyTorch makes it for those who ask, takes no such place."""

    def f(x: Tensor, i: Tensor) -> Tensor:
        return x.index_fill(1, i, value) * 2

    x, i = torch.arange(20.0).view(4, 5), torch.tensor(places, dtype=torch.long)
    same(f, x, i)
    same(f, x.t().contiguous().t(), i, dynamic=True)
    assert torch.equal(braze.compile(f, backend="aot_eager", fullgraph=True)(x, i), f(x, i))


@pytest.mark.parametrize("place", [5, -6])
def test_a_place_beyond_what_is_filled_is_told_in_eagers_words(place: int) -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        x.add_(1)  # so that nothing can be run again
        return x.index_fill(1, i, 2)

    told = []
    for call in (f, braze.compile(f)):
        with pytest.raises(IndexError) as error:
            call(torch.zeros(4, 5), torch.tensor([place]))
        told.append(str(error.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("row", [I([2]), I(2), I([[2], [0]])], ids=["one", "number", "column"])
@torch.no_grad()
def test_a_row_for_all_places_stands_beside_places_of_their_own(row: Tensor) -> None:
    """Of a vector's places one index is the same, the other each one's."""

    def f(x: Tensor, i: Tensor, j: Tensor, y: Tensor) -> None:
        x[i, j] = y

    same(f, torch.randn(4, 40), row, torch.randperm(40)[:33], torch.randn(33))
