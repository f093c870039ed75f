"""What a compiled function does to memory is what the function does: arguments, views, results, versions, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from tests.end_to_end.writes import hold_to_eager, numbers
from tests.helpers import logged

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("fresh")


def pair() -> list[Tensor]:
    return [numbers(4, 4), numbers(4, 4, seed=1)]


def clone_then_source_written(x, y):
    c = x.clone()
    x.add_(1)
    return c, x * 2


def clone_of_a_view_then_written(x, y):
    c = x[1].clone()
    x[1].mul_(y[0])
    return c + x[0]


def contiguous_is_the_same_memory(x, y):
    x.contiguous().add_(1)
    x.t().contiguous().add_(1)
    return x * 1


def reshape_may_be_a_view(x, y):
    c, d = x.reshape(16), x.t().reshape(16)
    c.add_(1)
    d.add_(1)
    return c, d


def copy_into_rows_from_a_copy(x, y):
    b = x.flatten()
    b[2:].copy_(b[:-2].clone())
    return b


def detached_writes(x, y):
    x.detach().add_(1)
    return x * 2


def data_writes(x, y):
    x.data.add_(1)
    y.data[1:].mul_(2)
    return x * y


def data_and_counted_writes(x, y):
    x.data.add_(1)
    x[0].mul_(2)
    return x * y


def data_replaced(x, y):
    z = x * 1
    z.data = y
    return z * 2


def set_of_a_value(x, y):
    z = x * 1
    z.set_(y)
    return z * 2


def resized_value(x, y):
    z = x * 1
    z.resize_(4)
    return z * 2


def out_of_values(x, y):
    o = torch.empty(4, 4, dtype=torch.float64)
    torch.add(x, y, out=o)
    torch.mul(o, y, out=o)
    return o


def out_that_gets_memory(x, y):
    o = torch.empty(0, dtype=torch.float64)
    torch.add(x, y, out=o)
    v = o[1]
    v.mul_(2)
    return o, v


def two_outs_that_get_memory(x, y):
    v, i = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    torch.max(x, 1, out=(v, i))
    return v, i, v + i


def out_is_an_argument(x, y):
    torch.add(x, y, out=x)
    return x


def out_is_a_view(x, y):
    b = torch.zeros(8, 4, dtype=torch.float64)
    torch.add(x, y, out=b[::2])
    return b


def strided_over_a_view(x, y):
    b = x * 1
    v = b.view(2, 8)
    s = v.as_strided((3,), (2,), 1)
    s.add_(1)
    v[0].mul_(2)
    return b, s


def overlapping_strides_written(x, y):
    b = x * 1
    b.as_strided((3, 2), (1, 1)).copy_(torch.ones(3, 2, dtype=torch.float64))
    return b


def window_beside_a_view(x, y):
    b = x * 1
    v = b.view(16)[4:8]
    s = v.as_strided((4,), (1,), 2)
    b.add_(1)
    return s * 2, v.as_strided((4,), (1,), 2) * 3


def overlapping_strides_added(x, y):
    b = x * 1
    b.as_strided((3, 2), (1, 1)).add_(1)
    return b


def nothing_of_an_expansion_written(x, y):
    b = x[0, :1] * 1
    b.expand(0).add_(1)
    return b


def swapped(x, y):
    k = x.clone()
    x.copy_(y)
    y.copy_(k)
    return x - y


def halves_rotated(x, y):
    a, b = x[:2], x[2:]
    k = a.clone()
    a.copy_(b)
    b.copy_(k)
    return a * 1, b * 1


def filled_by_foreach(x, y):
    a, b = x * 1, y * 1
    torch._foreach_mul_([a, b], [b, a])
    torch._foreach_add_([a, x], 1.0)
    return a, b


def each_chunk(x, y):
    for i, c in enumerate(x.chunk(3)):
        c.mul_(i)
    for i, c in enumerate(y.unbind(1)):
        c.add_(i)
    return x + y


def split_and_mixed(x, y):
    a, b = x.split(2)
    a.copy_(a + b)
    b.copy_(a - b)
    return x


def other_names_of_dimensions(x, y):
    x.movedim(0, 1).diagonal().zero_()
    x.mT[0] = 3
    x.T[1] = 4
    return x


def parts_of_complex_numbers(x, y):
    c = torch.complex(x, y)
    c.real.add_(1)
    c.imag.mul_(2)
    return c


def bits(x, y):
    x.view(torch.int64).bitwise_xor_(1 << 63)
    return x * 1


def nothing_written(x, y):
    v = x[2:2]
    v.add_(1)
    return x, v


def results_that_share(x, y):
    z = x + 1
    v = z[0]
    v.add_(1)
    return z, v, z.t(), x, x[1], z


def metadata_of_a_value(x, y):
    z = x[:2] * 1
    z.t_()
    z.unsqueeze_(0).mul_(3)
    return z


def metadata_of_an_argument(x, y):
    x.t_()
    y.unsqueeze_(0)
    return x * 2


def memory_of_an_argument(x, y):
    x.set_(y)
    return x * 2


PROGRAMS = [
    clone_then_source_written, clone_of_a_view_then_written, contiguous_is_the_same_memory, reshape_may_be_a_view,
    copy_into_rows_from_a_copy, detached_writes, data_writes, data_and_counted_writes, data_replaced, set_of_a_value,
    resized_value, out_of_values, out_that_gets_memory, two_outs_that_get_memory, out_is_an_argument, out_is_a_view,
    strided_over_a_view, window_beside_a_view, overlapping_strides_written, overlapping_strides_added, nothing_of_an_expansion_written, swapped,
    halves_rotated, filled_by_foreach, each_chunk, split_and_mixed, other_names_of_dimensions, parts_of_complex_numbers, bits, nothing_written, results_that_share,
    metadata_of_a_value, metadata_of_an_argument, memory_of_an_argument,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_program_leaves_behind_what_it_does_in_eager(program: Callable[..., Any], backend: str) -> None:
    compiled = braze.compile(program, backend=backend, options={"verify": 2})
    for _ in range(2):
        hold_to_eager(compiled, program, pair)


# -- arguments that share memory ---------------------------------------------------------------------


def first_written(x, y):
    x.add_(1)
    return y * 2


def part_written(x, y):
    x[1:].add_(1)
    return y * 2


def second_written(x, y):
    y.add_(1)
    return x * 2


def both_written(x, y):
    x.add_(y.sum())
    y.mul_(2)
    x.sub_(y.sum())
    return x.sum(), y * 1


def second_returned(x, y):
    x.mul_(3)
    return y, y[1:], x[:1]


SHARED: dict[str, Callable[[], Sequence[Tensor]]] = {
    "halves": lambda: numbers(8).split(4),
    "overlapping": lambda: (lambda b: (b[:5], b[3:]))(numbers(8)),
    "one inside the other": lambda: (lambda b: (b, b[2:5]))(numbers(8)),
    "the same": lambda: (lambda b: (b[:], b[:]))(numbers(8)),
    "columns": lambda: (lambda b: (b[:, 0], b[:, 1]))(numbers(4, 2)),
    "a column and a row": lambda: (lambda b: (b[:, 0], b[1]))(numbers(4, 4)),
    "transposed": lambda: (lambda b: (b, b.t()))(numbers(4, 4)),
    "every other": lambda: (lambda b: (b[::2], b[1::2]))(numbers(8)),
    "behind an offset": lambda: (lambda b: (b[2:5], b[3:7]))(numbers(8)),
    "versions of their own": lambda: (lambda b: (b, b.data[1:]))(numbers(8)),
}


@pytest.mark.parametrize(
    "program",
    [first_written, part_written, second_written, both_written, second_returned],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize("case", SHARED)
def test_arguments_that_share_memory(case: str, program: Callable[..., Any]) -> None:
    """They are compiled, and each write to one is seen through the other."""
    compiled = braze.compile(program, fullgraph=True, options={"verify": 2})
    with logged() as said:
        for _ in range(2):
            hold_to_eager(compiled, program, SHARED[case])
    assert not [m for m in said if "as captured" in m]


@pytest.mark.parametrize("program", [first_written, both_written, second_returned], ids=lambda p: p.__name__)
def test_arguments_that_come_to_share_memory_and_cease_to(program: Callable[..., Any]) -> None:
    """One function for all: who shares what is asked at each call."""
    apart = lambda: (numbers(8)[:4], numbers(8, seed=2)[4:])
    halves = lambda: numbers(8).split(4)
    overlapping = lambda: (lambda b: (b[:4], b[2:6]))(numbers(8))
    inside = lambda: (lambda b: (b[:4], b[4:]))(numbers(8).as_strided((8,), (1,)))
    elsewhere = lambda: (numbers(8)[:4], numbers(8, seed=2)[2:6])  # where the overlapping ones begin
    for order in (
        (overlapping, elsewhere),
        (apart, halves, overlapping),
        (overlapping, apart, halves),
        (halves, overlapping, inside, apart),
    ):
        braze.reset()
        compiled = braze.compile(program, fullgraph=True)
        for make in (*order, *order):
            hold_to_eager(compiled, program, make)


def test_a_call_that_runs_as_captured_says_so() -> None:
    compiled = braze.compile(first_written, fullgraph=True)
    whole = numbers(8)
    with torch.no_grad(), logged() as said:
        compiled(whole.clone()[:4], whole.clone()[:4])
        for _ in range(3):
            compiled(whole[:4], whole[:4])
    assert sum("BZ2017" in m for m in said) <= 1


def test_a_view_of_the_second_of_two_arguments_over_one_memory() -> None:
    """It was rebuilt from the first: with other arguments, a view of the wrong tensor."""

    def views(x, y):
        return x + 1, y[1:], y.view(-1)

    compiled = braze.compile(views, fullgraph=True)
    hold_to_eager(compiled, views, lambda: (lambda b: (b[:4], b[4:]))(numbers(8)))
    hold_to_eager(compiled, views, lambda: (numbers(8)[:4], numbers(8, seed=1)[4:]))


@pytest.mark.parametrize("grad", [False, True])
def test_views_of_arguments_that_begin_elsewhere_at_each_call(grad: bool) -> None:
    def views(x):
        return x[1:3], x.view(torch.int32 if x.dtype is torch.float32 else x.dtype)[1:], x.detach()[2:]

    compiled = braze.compile(views, fullgraph=True)
    for begin in (2, 0, 5):
        for dtype in (torch.float32, torch.float64):
            hold_to_eager(compiled, views, lambda: (numbers(12).to(dtype)[begin : begin + 4],), grad)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.complex64])
def test_views_of_another_element_size_of_arguments_that_begin_elsewhere(dtype: torch.dtype) -> None:
    views = lambda x: (x.view(dtype)[1:], x.view(dtype))
    compiled = braze.compile(views, fullgraph=True)
    for begin in (2, 0, 4):
        hold_to_eager(compiled, views, lambda: (numbers(16).float()[begin : begin + 4],))


def test_strides_beyond_an_argument() -> None:
    """What as_strided sees of the storage may be another argument's."""

    def beyond(x, y):
        y.add_(1)
        return x.as_strided((8,), (1,), 0) * 1

    compiled = braze.compile(beyond, fullgraph=True)
    hold_to_eager(compiled, beyond, lambda: (numbers(8)[:4], numbers(8, seed=1)[4:]))
    hold_to_eager(compiled, beyond, lambda: (lambda b: (b[:4], b[4:]))(numbers(8)))
    braze.reset()
    compiled = braze.compile(beyond, fullgraph=True)
    hold_to_eager(compiled, beyond, lambda: (lambda b: (b[:4], b[4:]))(numbers(8)))


def test_a_write_near_strides_beyond_an_argument_of_varying_size_is_refused_by_name():
    """Fakes of varying sizes know of no more memory than their elements take."""

    def beyond(x, y):
        x.gt_(y)
        return x.as_strided((1,), (0,), 1)

    with logged() as heard:
        ours, theirs = (
            fn(torch.ones(2)[..., ::2], torch.ones(()))
            for fn in (braze.compile(beyond, dynamic=True), beyond)
        )
    assert torch.equal(ours, theirs)
    assert ["BZ2014" in message for message in heard if "BZ" in message] == [True]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_window_on_what_a_scatter_has_copied_beside_a_part_is_refused_by_name(written, dynamic):
    """Eager's copy of a part of memory has what lies before the part, too."""

    def beside(x):
        made = x.select_scatter(x[0], 0, 1)
        window = made.as_strided((3,), (1,), 1)
        if written:
            window[2] = 1
        return made * window.sum()

    with logged() as heard:
        ours, theirs = (fn(numbers(5)[3:]) for fn in (braze.compile(beside, dynamic=dynamic), beside))
    assert torch.equal(ours, theirs)
    assert ["BZ2014" in message for message in heard if "BZ" in message] == [True]


def transposed_overwritten(x, y):
    x.copy_(y)
    return x.as_strided((3,), (1,), 0) * 1


def transposed_overwritten_twice(x, y):
    x.copy_(y)
    x.as_strided((16,), (1,), 0).copy_(torch.arange(16.0))
    return x * 1


def strides_handed_on(x, y):
    a = x * 1
    a.copy_(y.t())
    b = a + 1
    return b.as_strided((3,), (1,), 0) * 1


def a_part_with_strides_handed_on(x, y):
    a = x * 1
    a.copy_(y.t())
    return a[1:].as_strided((3,), (1,), 4) * 1


def seen_before_the_write(x, y):
    window = x.as_strided((8,), (1,), 0)
    x.add_(1)
    return window * 2


def seen_after_the_write(x, y):
    x.add_(1)
    return x.as_strided((8,), (1,), 0) * 1


def written_through_the_window(x, y):
    x.as_strided((8,), (1,), 0).mul_(2)
    return x * 1


def seen_over_another(x, y):
    y.add_(1)
    return x.as_strided((8,), (1,), 0) * 1


def written_between_columns(x, y):
    x.as_strided((4, 4), (4, 1), 0).mul_(2)
    return x * 1


def seen_beside_nothing(x, y):
    x.mul_(y[:0])
    return x.as_strided((1,), (1,)) * 1


HALVES = lambda: numbers(8).split(4)
#: (program, arguments, the code that is given, the line that is named)
WINDOWS = [
    (transposed_overwritten, lambda: (numbers(4, 4).t(), numbers(4, 4, seed=1)), "BZ2014", "x.as_strided"),
    (transposed_overwritten, lambda: (numbers(300, 300).t(), numbers(300, 300, seed=1)), "BZ2014", "x.as_strided"),
    (transposed_overwritten_twice, lambda: (numbers(4, 4).t(), numbers(4, 4, seed=1)), "BZ2014", "x.as_strided"),
    (strides_handed_on, pair, "BZ2014", "b.as_strided"),
    (strides_handed_on, lambda: (numbers(300, 300), numbers(300, 300, seed=1)), "BZ2014", "b.as_strided"),
    (a_part_with_strides_handed_on, pair, "BZ2014", "a[1:].as_strided"),
    (seen_after_the_write, lambda: (numbers(16)[1:9], numbers(4)), "BZ2014", "x.as_strided"),
    (seen_after_the_write, lambda: (numbers(8)[:4], numbers(4)), "BZ2014", "x.as_strided"),
    (seen_before_the_write, lambda: (numbers(8)[:4], numbers(4)), "BZ2014", "window * 2"),
    (written_between_columns, lambda: (numbers(4, 4)[:, :2], numbers(4)), "BZ2014", "x.as_strided"),
    (written_through_the_window, lambda: (numbers(8)[:4], numbers(4)), "BZ2014", "x.as_strided"),
    (seen_beside_nothing, lambda: (numbers(8)[3:3], numbers(4)), "BZ2014", "x.as_strided"),
    (seen_over_another, HALVES, "BZ2005", "x.as_strided"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "make", "code", "line"), WINDOWS, ids=lambda p: getattr(p, "__name__", None)
)
def test_windows_on_memory_that_is_not_laid_out_as_it_was(
    program: Callable[..., Any], make: Any, code: str, line: str
) -> None:
    """A value has no memory beside it, and may have other strides: such graphs run as captured, and say where."""
    compiled = braze.compile(program)
    with logged() as said:
        hold_to_eager(compiled, program, make)
    (told,) = [m for m in said if "as captured" in m]
    assert code in told and line in told


def product_into_an_operand(x, y):
    return torch.mm(x, y, out=x)


def sum_into_an_operand(x, y):
    return torch.addmm(y, x, y, out=x)


def sums_down_into_their_argument(x, y):
    return torch.cumsum(x, 0, out=x)


@pytest.mark.parametrize(
    "program",
    [product_into_an_operand, sum_into_an_operand, sums_down_into_their_argument],
    ids=lambda p: p.__name__,
)
def test_an_operator_that_overwrites_what_it_still_reads(program: Callable[..., Any]) -> None:
    """What comes of it hangs on the order in which the kernel goes, so it is eager's kernel that goes."""
    compiled = braze.compile(program)
    with logged() as said:
        compiled(*pair())
    assert any("BZ2027" in m and "out=x" in m for m in said)


def test_a_sum_added_into_its_first_argument_is_compiled() -> None:
    def added(x, y):
        return torch.addmm(x, y, y, out=x)

    compiled = braze.compile(added, fullgraph=True)
    with logged() as said:
        hold_to_eager(compiled, added, pair)
    assert not said


def test_memory_seen_in_two_types_is_written() -> None:
    def bits(x, y):
        x.add_(1)
        return y * 1

    compiled = braze.compile(bits)
    hold_to_eager(compiled, bits, lambda: (lambda b: (b, b.view(torch.int64)))(numbers(8)))


def test_three_arguments_that_overlap_in_a_chain() -> None:
    def chained(x, y, z):
        y.mul_(2)
        x.add_(1)
        z.sub_(y.sum())
        return x + 1, z + 1

    make = lambda: (lambda b: (b[:4], b[6:], b[3:7]))(numbers(10))
    compiled = braze.compile(chained, fullgraph=True, options={"verify": 2})
    with logged() as said:
        hold_to_eager(compiled, lambda x, y, z: chained(x, y, z), make)
    assert not said


def only_written(x, y):
    x.mul_(1.5)


def written_and_returned(x, y):
    x.mul_(y)
    return x


def a_part_written(x, y):
    x[0].mul_(2)
    return y


@pytest.mark.parametrize(
    "program", [only_written, written_and_returned, a_part_written], ids=lambda p: p.__name__
)
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_result_written_in_place_has_the_history_of_the_write(
    program: Callable[..., Any], backend: str
) -> None:
    """Where nothing else of the graph needs a gradient, the write had none: gradients were silently those before it."""
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        hold_to_eager(compiled, program, pair, grad=True)


def rows_shifted(x, y):
    x[1:].copy_(x[:-1])


def product_of_neighbours(x, y):
    x[:, 1:].mul_(x[:, :-1])
    return x


def taken_from_itself(x, y):
    x[torch.tensor([1, 0])] = x[:2]
    return x


def added_to_itself(x, y):
    x.add_(x).mul_(x)
    return x


@pytest.mark.parametrize(
    "program",
    [rows_shifted, product_of_neighbours, taken_from_itself, added_to_itself],
    ids=lambda p: p.__name__,
)
def test_an_operand_that_overlaps_what_is_written(program: Callable[..., Any]) -> None:
    """Eager refuses some of these, and does others in an order of its own: with the same error, or the same result."""
    compiled = braze.compile(program)
    for _ in range(2):
        hold_to_eager(compiled, program, pair)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_number_is_copied_as_a_tensor_of_it_is(backend: str, dtype: torch.dtype) -> None:
    """Wrapped where it is too large, which ``fill_`` refuses; an integer that changes stays a symbol."""

    def program(x: Tensor, number: Any) -> Tensor:
        x.copy_(number)
        return x * 2

    compiled = braze.compile(program, backend=backend, options={"verify": 2})
    for number in (True, 2.7, 300, 301, 302, 303):
        ours, theirs = torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype)
        assert torch.equal(compiled(ours, number), program(theirs, number))
        assert torch.equal(ours, theirs)


def test_a_view_of_shared_memory_is_returned_after_a_write_through_the_other_argument() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        rows = y[-2:]
        x.narrow(-2, 0, 1).zero_()
        return rows

    def turned() -> list[Tensor]:
        x = numbers(3, 5, 2)[..., ::2]
        return [x, x.mT]

    hold_to_eager(braze.compile(program, options={"verify": 2}), program, turned)


def test_the_gradient_of_a_written_argument_is_its_own_alone() -> None:
    """No zeros are added to it, which would take the sign off a zero."""

    def halved(x, w):
        x /= 2
        return x.mul_(w).neg_()

    def replaced(x, w):
        x.copy_(w)
        return x * 1

    for program in (halved, replaced):
        gradients = []
        for call in (program, braze.compile(program, backend="aot_eager")):
            leaves = [torch.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2)]
            made = call(leaves[0] * 1, leaves[1] * 1)
            (made * torch.tensor([0.0, 1.0, -0.0])).sum().backward()
            gradients.append(str([leaf.grad for leaf in leaves]))
        assert gradients[0] == gradients[1]


def test_a_backward_from_one_written_argument_does_not_come_by_the_history_of_another() -> None:
    """Of what has no derivative that would raise, and a function of the program's would be called for it."""

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, calls: list[int]) -> Tensor:
            ctx.calls = calls
            return x * 3

        @staticmethod
        def backward(ctx: Any, tangent: Tensor) -> Any:
            ctx.calls.append(1)
            return tangent * 3, None

    def program(x: Tensor, made: Tensor, other: Tensor) -> Tensor:
        x.mul_(2)
        made.lerp_(x, 0.5)
        other.mul_(x).sub_(x)
        return x * x

    compiled = braze.compile(program, backend="aot_eager", options={"verify": 2})
    for from_all in (False, True):
        seen = []
        for call in (program, compiled):
            leaf, calls = torch.tensor([1.0, -2.0], requires_grad=True), []
            x = leaf * 1
            made, other = x.unique(), Seen.apply(x, calls)
            result = call(x, made, other)
            (result + x + other if from_all else result + x).sum().backward()
            seen.append((str(leaf.grad), made.tolist(), calls))
        assert seen[0] == seen[1]


def test_an_argument_whose_contents_are_a_result_has_its_own_place_in_the_operation() -> None:
    """Where a view of the result keeps both in one operation: what the argument was before gets zeros, which are not None."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = y.exp()
        x.copy_(z)
        y.copy_(z)
        return z.detach(), z

    seen = []
    for call in (program, braze.compile(program, backend="aot_eager", options={"verify": 2})):
        leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
        x, y = (leaf * 1 for leaf in leaves)
        results = (*call(x, y)[1:], x, y)
        found = [
            torch.autograd.grad(each.sum(), leaves, allow_unused=True, retain_graph=True) for each in results
        ]
        seen.append(str(found))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_hook_on_what_is_written_later_sees_the_gradient_of_the_old_contents_alone(backend) -> None:
    """Behind the hook's graph break; one that is put on after the write sees that of the new ones, and either may be taken off."""

    def program(x, heard, taken_off):
        first = x.register_hook(lambda g: heard.append(("old", str(g))) or g * 2)
        x.abs_()
        second = x.register_hook(lambda g: heard.append(("new", str(g))))
        if taken_off:
            (first if taken_off == 1 else second).remove()
        return x * 1

    for taken_off in range(3):
        seen = []
        for call in (program, braze.compile(program, backend=backend)):
            leaf, heard = torch.tensor([1.0, -2.0, 0.0, -0.0], requires_grad=True), []
            made = call(leaf * 1, heard, taken_off)
            (made * torch.tensor([3.0, 1.0, -1.0, -1.0])).sum().backward()
            seen.append((str(leaf.grad), heard))
        assert seen[0] == seen[1]


def test_one_of_two_outs_has_memory_already() -> None:
    """An argument's, which is written there."""

    def greatest(x, places):
        values = torch.empty(0, dtype=torch.float64)
        torch.max(x, 1, out=(values, places))
        return values * 1

    x = numbers(4, 3)
    ours, theirs = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert torch.equal(braze.compile(greatest)(x, ours), greatest(x, theirs))
    assert torch.equal(ours, theirs) and theirs.any()


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_what_is_not_written_of_new_memory_is_nan_as_in_eager_where_numbers_are_to_be_the_same(deterministic):
    def rows(x):
        made = torch.empty(4, 3)
        made[1] = x
        return made + 1

    x = torch.randn(3)
    torch.testing.assert_close(braze.compile(rows)(x), rows(x), equal_nan=True)
