"""What a tensor of varying sizes is cut into: its parts are views, that are read after writes and written themselves."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.runtime.operators.operators import operator
from tests.helpers import logged


def split_then_written(x):
    v = x * 2
    part = v.split(2)[0]
    v.view(-1)[0] = 3
    return part


def chunk_then_written(x):
    first, last = x.chunk(2)
    x[torch.tensor([0, 0])] = -1
    return first[-0:], last.clone()


def parts_written(x):
    v = x * 2
    first, second = v.split([2, v.shape[0] - 2])
    first.add_(1)
    second.mul_(3)
    return v


def last_part_of_an_input_written(x):
    x.chunk(3)[-1].neg_()
    return x + 1


def rows_written(x):
    v = x + 1
    for i, row in enumerate(v.unbind()):
        row.add_(i)
    return v


CASES = [split_then_written, chunk_then_written, parts_written, last_part_of_an_input_written, rows_written]


@pytest.mark.parametrize("fn", CASES)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_parts_share_the_whole_memory_at_each_size(fn, backend):
    compiled = braze.compile(fn, backend=backend, dynamic=True, options={"verify": 2})
    for n in (4, 5, 3, 9, 33, 2):
        given, theirs = (torch.arange(2.0 * n).view(n, 2) for _ in range(2))
        found, wanted = compiled(given), fn(theirs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        torch.testing.assert_close(given, theirs, rtol=0, atol=0)


def test_what_divides_a_dim_is_known_after_a_view_of_it() -> None:
    """What is written through the view is of the sizes that the program told."""

    def program(x: torch.Tensor) -> torch.Tensor:
        pairs = x.unflatten(-1, (-1, 2))
        pairs.neg_()
        return pairs.sum(-1)

    compiled = braze.compile(program, dynamic=True, backend="aot_eager")
    with logged() as lines:
        for n in (8, 2, 4, 6):
            x = torch.arange(float(n))[None]
            y = x.clone()
            assert torch.equal(compiled(x), program(y))
            assert torch.equal(x, y)
    assert not any("eagerly" in line for line in lines)


def test_a_write_through_a_window_on_spread_memory_is_refused_while_compiling() -> None:
    def program(x: torch.Tensor) -> None:
        window = x.as_strided(x.shape, x.stride())
        torch.add(window, 1, out=window)

    x = torch.arange(21).view(3, 7)[..., 2:-1]
    with logged() as lines:
        braze.compile(program, dynamic=True, backend="aot_eager")(x)
    assert torch.equal(x, torch.arange(1, 22).view(3, 7)[..., 2:-1])
    assert any("BZ2014" in line for line in lines)


def every_third_written(x, n, m):
    v = x * 2
    v[n:m:3].zero_()
    v[:, 1:].neg_()
    return v


@pytest.mark.parametrize(("n", "m"), [(1, None), (0, 4), (2, -1), (-2, None), (3, 1), (40, 50), (0, 0)])
def test_a_part_of_a_computed_tensor_is_written_at_each_size(n, m):
    compiled = braze.compile(every_third_written, dynamic=True)
    for size in (4, 5, 3, 1, 9, 33, 2):
        x = torch.randn(size, size)
        found = compiled(x, n, m)
        assert torch.equal(found, every_third_written(x, n, m))
        assert found.storage_offset() == 0
        assert found.untyped_storage().nbytes() == 4 * size * size


def test_a_part_is_replaced_by_aten_in_a_copy_of_no_more_than_the_tensor() -> None:
    """ATen copies the whole storage: for an intermediate that is the arena."""
    memory = torch.arange(40.0)
    for sizes, strides in (
        ((3, 4), (4, 1)),
        ((3, 4), (2, 1)),
        ((3, 4), (0, 3)),
        ((0, 4), (4, 1)),
        ((1, 1), (7, 7)),
    ):
        x = memory.as_strided(sizes, strides, 5)
        for name, *args in (("slice", 1, 1, 9, 2), ("slice", 0, -2), ("select", 1, 0), ("diagonal", 0, 0, 1)):
            view, scatter = getattr(torch, name, torch.ops.aten.slice), getattr(torch, f"{name}_scatter")
            src = -view(x, *args).clone()
            made = operator(f"aten.{name}_scatter.default")(x, src, *args)
            assert torch.equal(made, scatter(x, src, *args))
            assert made.storage_offset() == 0
            assert made.stride() == scatter(x, src, *args).stride()
            assert made.untyped_storage().nbytes() <= 4 * 12
    with pytest.raises(RuntimeError, match="expected src to have a size equal"):
        operator("aten.select_scatter.default")(memory.view(4, 10), torch.ones(1), 0, 1)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_moments_of_a_part_that_is_empty_at_some_sizes_are_no_numbers() -> None:
    """A place of the first infinite element is looked for besides; of none there is none, and nothing to refuse."""

    def moments(x):
        part = (x * 2).diagonal(3, -2, -1)
        return (*torch.var_mean(part, -1), *torch.std_mean(part, -1))

    compiled = braze.compile(moments, dynamic=True, options={"verify": 2})
    for sizes in ((2, 33), (6, 12), (6, 2), (3, 7)):
        x = torch.randn(sizes)
        for ours, theirs in zip(compiled(x), moments(x), strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)


DIAGONALS = {
    "above": lambda x: x.diagonal(3),
    "below": lambda x: x.diagonal(-2, -2, -1),
    "of a part": lambda x: x[1:].diagonal(1),
    "of a turned one": lambda x: x.mT.diagonal(2),
    "by a size": lambda x: x.diagonal(x.shape[0] - 1),
    "of a diagonal": lambda x: x.unsqueeze(-1).expand(-1, -1, 3).diagonal(1).diagonal(2),
}


@pytest.mark.parametrize("name", DIAGONALS)
@pytest.mark.parametrize("unbacked", [False, True])
def test_a_diagonal_that_has_no_elements_begins_where_its_whole_does(name: str, unbacked: bool) -> None:
    view = DIAGONALS[name]
    compiled = braze.compile(view, backend="aot_eager", dynamic=True)
    for sizes in ((4, 4), (3, 3), (6, 6), (2, 2), (5, 3), (2, 6), (0, 3), (3, 0), (1, 1)):
        x = torch.arange(1.0 * sizes[0] * sizes[1]).view(sizes)
        if unbacked:
            for dim in (0, 1):
                braze.mark_unbacked(x, dim)
        found, wanted = (
            (tuple(y.shape), y.stride(), y.storage_offset()) for y in (compiled(x), view(x.clone()))
        )
        assert found == wanted, sizes


def test_what_a_diagonal_without_elements_is_resized_to_writes_where_eager_does() -> None:
    def fn(x):
        x.diagonal(3, -2, -1)[:4].resize_(2, 1).fill_(1)

    compiled = braze.compile(fn, backend="aot_eager")
    for n in (4, 3, 5, 2, 3):
        given, theirs = (torch.arange(n * n).view(n, n) for _ in range(2))
        compiled(given)
        fn(theirs)
        assert torch.equal(given, theirs), n


def filled_by_its_diagonal(x):
    x[...] = x.clone().diagonal()


def filled_by_what_is_like_it(x):
    x[...] = x.clone().diagonal().unsqueeze(0).expand_as(x)


def filled_by_what_is_made_of_its_diagonal(x):
    x.copy_(x.exp().diagonal() * 2)


@pytest.mark.parametrize(
    "fill", [filled_by_its_diagonal, filled_by_what_is_like_it, filled_by_what_is_made_of_its_diagonal]
)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_is_expanded_has_the_sizes_that_it_is_expanded_to_however_its_own_are_written(
    fill, backend
) -> None:
    """The diagonal has as many elements as columns, where these are no more than the rows: a write of it asks for that."""
    compiled = braze.compile(fill, backend=backend, options={"verify": 2})
    with logged() as told:
        for sizes in ((8, 5), (8, 2), (3, 3), (8, 8), (8, 1), (8, 4)):
            given = torch.randn(sizes)
            theirs = given.clone()
            compiled(given)
            fill(theirs)
            torch.testing.assert_close(given, theirs)
    assert not [line for line in told if "BZ9026" in line]


def written_then_seen_beside(x):
    x.fill_(1)
    window = x.as_strided((1, 1), (1, 1))
    return torch.copysign(window, window)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_window_beside_what_has_no_elements_sees_its_memory_after_a_write_to_it(backend) -> None:
    """A graph's new value of what is empty has no memory in which a window could count."""
    compiled = braze.compile(written_then_seen_beside, backend=backend, dynamic=True, options={"verify": 2})
    for rows, columns in ((0, 3), (0, 2), (3, 4), (2, 2), (0, 0), (1, 3)):
        given, theirs = (torch.arange(7.0, 37.0) for _ in range(2))
        made = [
            fn(memory.as_strided((rows, columns), (columns, 1)))
            for fn, memory in ((compiled, given), (written_then_seen_beside, theirs))
        ]
        assert torch.equal(*made) and torch.equal(given, theirs), (rows, columns)


def written_then_seen_beyond(x):
    window = x.as_strided((2, 3), (1, 1))
    x.mul_(2)
    return window + 1, window.sort(1).values


def written_through_a_window_beyond(x):
    x.as_strided((2, 3), (1, 1)).mul_(2)
    return x + 1


@pytest.mark.parametrize("fn", [written_then_seen_beyond, written_through_a_window_beyond])
@pytest.mark.parametrize("lengths", [(3, 8, 2, 5), (8, 3, 5), (5, 4, 3)])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_window_beyond_what_is_written_sees_the_callers_memory_at_every_length(
    fn, lengths, backend
) -> None:
    """A graph's new value of what is written has its elements alone: whether they are enough is asked of each length."""
    compiled = braze.compile(fn, backend=backend, dynamic=True, options={"verify": 2})
    for length in lengths:
        memory, theirs = (torch.arange(1.0, 13.0) for _ in range(2))
        made, wanted = compiled(memory[2 : 2 + length]), fn(theirs[2 : 2 + length])
        torch.testing.assert_close(made, wanted, rtol=0, atol=0)
        assert torch.equal(memory, theirs), length


def test_a_window_beyond_what_a_graph_makes_is_refused_at_the_lengths_at_which_eager_refuses_it() -> None:
    compiled = braze.compile(
        lambda x: (x * 2).as_strided((2,), (4,), 2) + 1, dynamic=True, options={"verify": 2}
    )
    for length in (4, 9, 6, 7):
        x = torch.arange(float(length))
        if length < 7:
            with pytest.raises(RuntimeError, match="out of bounds for storage"):
                compiled(x)
        else:
            assert compiled(x).tolist() == [5.0, 13.0]
