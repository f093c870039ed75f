"""Strides, offsets, shared memory and history of what a call leaves are eager's: the caller's next write goes there."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F

import braze
from tests.end_to_end.layouts import difference
from tests.helpers import logged

OPTIONS = {"verify": 2}


def check(program, makes, dynamic=None, backend="aot_eager", options=OPTIONS):
    compiled = braze.compile(program, dynamic=dynamic, backend=backend, options=options)
    for make in makes:
        found = difference(compiled, program, make)
        assert not found, found


# -- what is written whole ----------------------------------------------------------------------


def copied_and_viewed(x, y):
    v = x.neg()
    v.copy_(y)
    return v, v[:1]


def copied_into_zeros(x):
    v = torch.zeros(3, 3)
    v.copy_(x)
    return v


def copied_and_turned(x):
    v = torch.empty(2, 3)
    v.copy_(x)
    return v.t()


def columns(*sizes):
    return [
        lambda n=n: (torch.arange(3.0 * n).view(3, n).t(), torch.arange(float(n)).view(n, 1).expand(n, 3))
        for n in sizes
    ]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    ("program", "makes"),
    [
        (copied_and_viewed, columns(4, 5, 6)),
        (copied_into_zeros, [lambda: (torch.tensor(5.0),)]),
        (copied_and_turned, [lambda: (torch.arange(6.0).view(3, 2).t(),), lambda: (torch.arange(3.0),)]),
    ],
)
def test_what_is_copied_lies_as_what_it_was_copied_into(program, makes, backend):
    compiled = braze.compile(program, dynamic=True, backend=backend, options=OPTIONS)
    for make in makes:
        ours, theirs = compiled(*make()), program(*make())
        for a, b in zip(*([t] if isinstance(t, torch.Tensor) else t for t in (ours, theirs)), strict=True):
            assert a.stride() == b.stride() and torch.equal(a, b)


def broadcast_flags_and(x, y):
    total = (x > 0) + y
    return total, total.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_repeated_is_cast_before_dims_are_ordered_at_all_sizes(dynamic):
    """Also where the other operand has dims of one element whose strides point elsewhere."""
    compiled = braze.compile(broadcast_flags_and, dynamic=dynamic, options=OPTIONS)
    for n in (8, 5, 1, 2):
        given = torch.ones(1, 1, 1).expand(n, n, n), torch.ones(1, n, n).transpose(0, 2)
        total, strides = compiled(*given)
        assert (total.stride(), strides) == (broadcast_flags_and(*given)[1],) * 2
        flat = torch.ones(1, n).expand(n, n).long().view(n, 1, n), torch.ones(n, 1, 1).permute(2, 1, 0)
        assert compiled(*flat)[1] == broadcast_flags_and(*flat)[1]


def twice_in_its_own_sizes(x):
    turned = x.permute(2, 1, 0)
    one, other = turned + 1, turned + 1
    again = (
        one.reshape(one.shape),
        other.reshape(other.shape),
        x.view(x.shape),
        x.clone(),
        (turned * 2).double(),
    )
    return *again, [t.stride() for t in again]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_has_no_elements_keeps_the_strides_that_eager_gives_it(dynamic, backend):
    """Row by row sizes of 0 count for one, in other orders for nothing; in its own sizes a tensor keeps what it has."""
    compiled = braze.compile(twice_in_its_own_sizes, dynamic=dynamic, backend=backend, options=OPTIONS)
    for x in (
        torch.empty_strided((0, 3, 1), (7, 2, 5)),
        torch.ones(4, 0, 3),
        torch.ones(0, 4, 3).permute(1, 2, 0),
        torch.ones(2, 0, 3).transpose(0, 2),
    ):
        *ours, said = compiled(x)
        *theirs, known = twice_in_its_own_sizes(x)
        assert [t.stride() for t in ours] == said == known == [t.stride() for t in theirs]


# -- inputs that begin inside their memory ------------------------------------------------------


def windows(*offsets, shape=(3, 3)):
    """Inputs that begin at each of these places."""
    return [lambda o=o: (torch.arange(40.0)[o : o + torch.Size(shape).numel()].view(shape),) for o in offsets]


def diagonal_filled(x):
    x.fill_diagonal_(-3)
    return x


def place_written(x):
    x.as_strided((2,), (1,), 4).add_(1)
    return x * 2


def own_place_written(x):
    x[1].as_strided((2,), (1,)).add_(1)
    return x * 2


def place_returned(x):
    return x.as_strided((2,), (1,), 4), x * 2


def place_of_a_copy(x):
    return x.clone().as_strided((2,), (1,), 0) * 2


def place_of_a_part(x):
    y = x.exp().cumsum(0) * 2
    return torch.softmax(x, 0), y[1:].as_strided((2,), (1,), 0) + 1


def windows_on_what_is_copied(x):
    v, w = torch.empty(x.shape), torch.empty(x.shape)
    before = w.as_strided((2, 3), (1, 1), 1)
    w.copy_(x)
    return v.copy_(x).as_strided((2, 3), (1, 1)), before


def part_of_what_is_copied(x):
    v = torch.empty(x.shape)
    v.copy_(x)
    return v.as_strided((2, 2), (3, 1), 1) * 2


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "program",
    [
        diagonal_filled,
        place_written,
        own_place_written,
        place_returned,
        place_of_a_copy,
        place_of_a_part,
        windows_on_what_is_copied,
        part_of_what_is_copied,
    ],
)
def test_places_in_the_memory_of_an_input_that_begins_elsewhere_in_each_call(program, backend):
    check(program, windows(0, 3, 4), backend=backend)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_windows_on_copies_of_what_is_drawn_show_the_same_numbers(backend):
    """The copies are found to be one value, of which another is made for the second: the value is not drawn again."""

    def program(x):
        drawn = torch.rand_like(x)
        v, w = torch.empty(x.shape), torch.empty(x.shape)
        before = w.as_strided((2, 3), (1, 1), 1)
        w.copy_(drawn)
        return v.copy_(drawn).as_strided((2, 3), (1, 1)), before

    first, second = braze.compile(program, backend=backend)(torch.zeros(3, 4))
    assert torch.equal(first[:, 1:], second[:, :-1])
    before = second.clone()
    first.zero_()
    assert torch.equal(second, before)


def test_a_window_sees_what_lies_between_the_elements_of_a_part_that_a_scatter_copies():
    """Eager's scatter copies that, too."""

    def program(x):
        v = x.slice_scatter(x[:1], 0, 2, 3)
        return v.as_strided((1, 4), (1, 1)), v

    check(program, [lambda: (torch.arange(40.0).view(4, 10)[..., ::2],)], backend="braze")


@pytest.mark.parametrize(
    "make", windows(3, shape=(3, 3, 3)) + [lambda: (torch.arange(40.0).view(8, 5)[1:5, 1:5],)]
)
def test_diagonals_of_cubes_and_of_parts_of_a_matrix_are_filled(make):
    check(diagonal_filled, [make])


# -- what writes refuse or take ------------------------------------------------------------------


def number_copied(x):
    x[0].copy_(5)
    return x


def scattered_and_added(x):
    return torch.select_scatter(x, torch.ones(3), 0, 1).contiguous().add_(5)


@pytest.mark.parametrize("program", [number_copied, scattered_and_added])
def test_writes_that_are_proved_again(program):
    check(program, windows(0, shape=(2, 3)), options={"verify": 1})


def row_added(x):
    x[0].add_(1)
    return x * 2


def element_set(x):
    x[:, 1] = 3
    return x * 2


@pytest.mark.parametrize("program", [row_added, element_set])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_write_to_a_part_of_an_expanded_input_runs_as_captured(program, dynamic):
    check(
        program, [lambda: (torch.arange(3.0).expand(2, 3),), lambda: (torch.ones(1).expand(4, 3),)], dynamic
    )


# -- views of inputs, and their gradients --------------------------------------------------------

VIEWS = {
    "permute": lambda x: x.permute(1, 0),
    "squeeze": lambda x: x.squeeze(),
    "expand_as": lambda x: x.expand_as(x),
    "rows": lambda x: x[1:],
    "split": lambda x: x.split(1)[1],
    "turned in place": lambda x: x[:].t_(),
}


def repeated_leaf():
    return (torch.arange(3.0).expand(2, 3).detach().requires_grad_(),)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_each_element_of_a_view_of_an_expanded_leaf_has_a_gradient_of_its_own(view):
    check(view, [repeated_leaf])


UNDER = {
    "mT": lambda x: x.mT,
    "diagonal": lambda x: x.diagonal(),
    "rows": lambda x: x[1:],
    "view": lambda x: x.view(-1),
    "detach": lambda x: x.detach(),
    "row of detached": lambda x: x.detach()[1:],
    "data": lambda x: x.data,
}


@pytest.mark.parametrize("view", UNDER.values(), ids=UNDER.keys())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad], ids=["no_grad", "enable_grad"])
def test_views_have_the_history_that_their_mode_gives_them(view, mode):
    def program(x):
        with mode():
            v = view(x)
        return v, x * 2, v[0]

    def alone(x):
        with mode():
            return view(x)

    makes = [
        lambda: (torch.arange(9.0).view(3, 3).clone().requires_grad_(),),
        lambda: (torch.arange(9.0).view(3, 3).requires_grad_(),),
        lambda: (torch.arange(9.0).requires_grad_().view(3, 3),),
    ]
    for f in (program, alone):
        check(f, makes)


def test_two_detached_results_are_two_tensors_and_a_view_of_one_is_of_that_one():
    def program(x):
        a, b = x.detach(), x.detach()
        return a, b, a[1:]

    check(program, [lambda: (torch.arange(9.0).view(3, 3).requires_grad_(),)])


def test_a_result_of_which_another_is_a_view_is_its_base():
    def program(x):
        y = x * 2
        return y.t(), y, y[0]

    for grad in (False, True):
        check(program, [lambda grad=grad: (torch.arange(9.0).view(3, 3).clone().requires_grad_(grad),)])


def test_parts_of_a_split_input_refuse_writes_as_in_eager():
    def program(x):
        return x.split(1)

    x = torch.arange(3.0).requires_grad_() * 1
    for call in (program, braze.compile(program, backend="aot_eager")):
        with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
            call(x)[0].add_(1)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x * 1).split(1),
        lambda x: (x * 1).unbind(1)[:2],
        lambda x: (lambda y: (y, y.chunk(3)[1][0]))(x * 1),
        lambda x: (x, x.unbind()[1]),
        lambda x: (lambda y: (y, y[1]))(x * 1),
    ],
    ids=["split", "unbind", "view_of_a_chunk", "of_an_input", "made_alone"],
)
def test_what_is_made_of_several_views_at_once_may_come_to_no_history_behind_the_graph(program):
    """Autograd refuses such views where their whole is written with a history, though nothing had one in the graph."""
    said = []
    for call in (program, braze.compile(program, backend="aot_eager")):
        *_, part = call(torch.ones(3, 3))
        part._base.mul_(torch.ones(3, 3, requires_grad=True))
        try:
            said.append(type(part.grad_fn).__name__)
        except RuntimeError as error:
            said.append(str(error))
    assert said[0] == said[1]


def test_views_made_again_have_sizes_of_their_call():
    def program(x):
        with torch.no_grad():
            return x.view(-1)[1 : x.shape[0]], x * 2

    compiled = braze.compile(program, backend="aot_eager", dynamic=True, options=OPTIONS)
    for n in (2, 4, 7):
        found = difference(
            compiled, program, lambda n=n: (torch.arange(3.0 * n).view(n, 3).clone().requires_grad_(),)
        )
        assert not found, found


@pytest.mark.parametrize("outer", [contextlib.nullcontext, torch.inference_mode, torch.no_grad])
def test_views_of_a_parameter_in_each_mode_of_the_caller(outer):
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))

    def program(w):
        return w.t(), w[0]

    compiled = braze.compile(program, backend="aot_eager", options=OPTIONS)
    with outer():
        found = difference(compiled, program, lambda: (weight,))
    assert not found, found


def written_without_inputs(x):
    v = torch.zeros(2, 3).add_(1)
    w = v.detach()
    return v, w[0]


def test_a_graph_without_inputs_that_writes():
    check(written_without_inputs, [lambda n=n: (torch.zeros(n),) for n in (2, 4, 5)])


def test_a_copy_that_is_expanded_has_one_row_in_memory():
    def program(y):
        v = torch.empty_like(y)
        v.copy_(y)
        return v.expand(2, *y.shape)

    for dynamic in (False, True):
        compiled = braze.compile(program, dynamic=dynamic, backend="aot_eager", options=OPTIONS)
        y = torch.arange(6.0).view(3, 2).t()
        assert compiled(y).stride() == program(y).stride() and torch.equal(compiled(y), program(y))


def test_a_reshape_that_copies_is_the_base_of_its_views():
    def program(x):
        y = x.t().reshape(-1)
        return y[1:], y

    check(program, [lambda: (torch.arange(6.0).view(2, 3),)])


def part_replaced(x):
    v = x.as_strided((3, 2), (1, 1))
    return v.select_scatter(v.select(0, 0), 0, -1), v.slice_scatter(v[:1] * 2, 0, 1, 2)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_part_is_replaced_in_a_copy_whose_elements_share_memory(dynamic):
    """The copy keeps the strides: what is written shows in all rows that see it."""
    makes = [lambda: (torch.arange(10.0).view(5, 2)[1:-1],), lambda: (torch.arange(14.0).view(7, 2)[2:],)]
    check(part_replaced, makes, dynamic, backend="braze")


def written_without_elements(x, m):
    v = x.isfinite()
    part = v[2:]
    v.copy_(m.mean())
    part.copy_(m.mean())
    part.index_put_((torch.tensor([0, 0]),), torch.tensor(True), accumulate=True)
    return v, part, x.mean().expand(2, *x.shape)


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_number_is_copied_into_what_has_no_elements(dynamic):
    """It has strides of 0, along which nothing can differ."""
    makes = [lambda n=n: (torch.ones(3, n), torch.tensor(0.5)) for n in (0, 2, 0, 3)]
    check(written_without_elements, makes, dynamic, backend="braze")


def window_of_several(x, y, n):
    return x.repeat_interleave(2, 2).narrow(-2, n, 1).logical_and(x.select(-1, 3))


def window_with_a_number(x, y, n):
    return torch.add(x.narrow(1, n, 1), y, alpha=n)


@pytest.mark.parametrize(
    ("program", "sizes"), [(window_of_several, (3, 8, 8, 3)), (window_with_a_number, (6, 1, 2))]
)
def test_what_is_made_of_a_window_at_a_varying_place_lies_as_in_eager(program, sizes):
    """No size is a symbol, but for where the window begins, and in dims of one element too."""
    x, y = torch.arange(float(math.prod(sizes))).view(sizes).movedim(-1, 0), torch.ones(1, 2, 1, 1)
    compiled = braze.compile(program, options=OPTIONS)
    for n in (2, 1, 3, 2):
        found, wanted = compiled(x, y, n), program(x, y, n)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


def test_a_view_of_numbers_of_elements_steps_as_in_eager_where_its_memory_has_sizes_that_vary():
    """PyTorch's kernel in Python for it, before 2.12, lets a dim of one element step over one, by which that of rows then lies innermost."""

    def program(x):
        return x.as_strided((1, 2), (1, 1)).unflatten(-1, (-1, 2)) * x

    compiled = braze.compile(program, dynamic=True, options=OPTIONS)
    for n in (11, 8):
        x = torch.arange(2.0 * n).view(n, 2)[1:-1].requires_grad_()
        found, wanted = compiled(x), program(x)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


USES = {
    "computed": lambda v, x: v * 2,
    "computed beside": lambda v, x: (v * 2, x * 3),
    "viewed": lambda v, x: (v[...], v[...] * 2),
    "copied": lambda v, x: (v * 2).add_(v),
    "written": lambda v, x: v.add_(1),
    "detached": lambda v, x: v.detach() * x.sum(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("view", ["slice", "mT", "unbind"])
def test_a_view_made_under_no_grad_is_used_on_as_the_leaf_that_it_is(view, use):
    """Autograd takes it for a tensor of its own: what is computed of it has a history, which does not lead to its base."""
    views = {"slice": lambda x: x[1:], "mT": lambda x: x.mT, "unbind": lambda x: x.unbind()[0]}

    def program(x):
        with torch.no_grad():
            v = views[view](x)
        return use(v, x)

    def told(call):
        leaf = torch.arange(6.0).view(3, 2).requires_grad_()
        try:
            made = call(leaf * 1)
        except RuntimeError as error:
            return str(error)
        made = made if isinstance(made, tuple) else (made,)
        sum(part.sum() for part in made).backward()
        return [(part.requires_grad, part.is_leaf) for part in made], str(leaf.grad)

    assert told(braze.compile(program, backend="aot_eager")) == told(program)


@pytest.mark.parametrize("dynamic", [None, True])
def test_new_contents_without_a_history_are_a_result_that_has_one(dynamic):
    def program(x):
        with torch.no_grad():
            x.exp_()
        return torch.empty_like(x).copy_(x), x.clone()

    for call in (program, braze.compile(program, dynamic=dynamic, backend="aot_eager")):
        leaf = torch.zeros(3, requires_grad=True)
        x = leaf * 1
        copied, cloned = call(x)
        assert copied.requires_grad and cloned.requires_grad and type(x.grad_fn).__name__ == "MulBackward0"
        (copied * 2 + cloned).sum().backward()
        assert leaf.grad.tolist() == [3, 3, 3] and x.tolist() == [1, 1, 1]


def bits_returned(x):
    return x.view(torch.int32), x * 2


def bits_written(x):
    x.view(torch.int32).bitwise_and_(-256)
    return x.view(torch.int32)[1:]


@pytest.mark.parametrize("program", [bits_returned, bits_written])
def test_views_in_another_type_of_an_input_that_begins_inside_its_memory(program):
    check(program, windows(3, 0, 4))


def test_why_a_call_runs_as_captured_is_told():
    compiled = braze.compile(place_written, backend="aot_eager")
    with logged() as messages:
        for make in windows(0, 3):
            compiled(*make())
    (told,) = [m for m in messages if "BZ2017" in m]
    assert "begins elsewhere in its memory" in told


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_view_of_a_copy_that_begins_where_its_pattern_does(backend: str) -> None:
    """ATen's copy of an input that keeps its strides keeps its offset, too; a kernel's result begins at 0."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x.diagonal_scatter(x.diagonal() * 2)
        w = x.select_scatter(x[0] * 2, 0, 0)
        return v, v.unfold(0, 1, 1), w, w[1:]

    x = torch.randn(9, 3)[1:]
    compiled = braze.compile(program, backend=backend)
    for found, wanted in zip(compiled(x), program(x), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("order", [0, 1, 2, float("inf")])
def test_a_norm_over_one_element_of_an_empty_tensor_has_eagers_shape(order):
    def program(x):
        x.diagonal().fill_(0.5)
        return torch.linalg.vector_norm(x, order, -1)

    with logged() as heard:
        ours = braze.compile(program)(torch.zeros(0, 1, 1))
    assert ours.shape == program(torch.zeros(0, 1, 1)).shape == (0, 1)
    assert not any("BZ6013" in message for message in heard)


def normed(x):
    made = x.new_zeros(4, 6)
    made.copy_(x.t())
    return F.group_norm(made, 2)


def normed_with_one_weight(x):
    weight = x.new_zeros(4)
    weight.copy_(x[0, 0])
    return F.group_norm(x, 2, weight, weight)


def apart(x):
    made = x.new_zeros(4, 6)
    made.copy_(x.t())
    return F.pdist(made)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [normed, normed_with_one_weight, apart])
def test_kernels_that_read_memory_in_order_get_new_contents_in_order(fn, grad, backend):
    def run(call):
        x = torch.sin(torch.arange(24.0, dtype=torch.float64).view(6, 4) ** 2).requires_grad_(grad)
        made = call(x)
        return [made, *(torch.autograd.grad(made.cos().sum(), x) if grad else ())]

    with logged() as messages:
        ours = run(braze.compile(fn, backend=backend))
    for mine, its in zip(ours, run(fn), strict=True):
        torch.testing.assert_close(mine, its)
    assert not [m for m in messages if "BZ6013" in m]


def test_a_view_laid_out_as_in_eager_makes_no_number_of_a_size_that_varies():
    def program(x):
        whole = x.triu()
        part = whole[..., 1:]
        x.index_put_((torch.tensor([0, 0]),), torch.tensor(-2.0), accumulate=True)
        whole.sub_(x.amax())
        return (part.view_as(part),)

    compiled = braze.compile(program, options=OPTIONS)
    for shape in [(3, 3, 17), (3, 1, 2), (3, 7, 4), (3, 1, 6)]:
        x = torch.arange(float(math.prod(shape))).view(shape)
        assert difference(compiled, program, lambda x=x: (x.clone(),)) == ""


def viewed_as_the_copy_lies(x):
    y = torch.empty(x.shape).copy_(x)
    y[1:] = 2
    return y.exp().view(*reversed(y.shape))


def viewed_as_it_lies(x):
    return x.view(*reversed(x.shape))


@pytest.mark.parametrize("program", [viewed_as_the_copy_lies, viewed_as_it_lies])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_view_across_a_dim_of_one_element_is_eagers_or_refused_as_there(program, dynamic, backend):
    """PyTorch's fakes know views there that no tensor has."""

    def seen(called):
        try:
            return called(torch.arange(20.0).view(5, 1, 4).permute(2, 1, 0)).tolist()
        except RuntimeError as error:
            return str(error)

    theirs = seen(program)
    with logged() as heard:
        ours = seen(braze.compile(program, backend=backend, dynamic=dynamic))
    assert ours == theirs if isinstance(theirs, str) else torch.allclose(*map(torch.tensor, (ours, theirs)))
    assert not any("BZ6013" in text for text in heard)


def _turned_row(w):
    return w.contiguous()[:, 1:2].t()


ONE_WINDOW = {
    "masked_fill": lambda w: w.masked_fill(w > 0, 1.0),
    "masked_fill of more": lambda w: w.masked_fill(torch.ones(2, 1, 1) > 0, 1.0),
    "prelu": lambda w: F.prelu(w, torch.tensor([0.5])),
    "seen on": lambda w: w.masked_fill(w > 0, 1.0)[:, 1:].t(),
    "loss of a row that is turned": lambda w: F.mse_loss(_turned_row(w), w[:, :1].t() + 1, reduction="none"),
    "loss of two": lambda w: F.mse_loss(_turned_row(w), _turned_row(w + 1), reduction="none")[:, 1:].t(),
    "smooth loss": lambda w: F.smooth_l1_loss(_turned_row(w), _turned_row(w * 2), reduction="none", beta=0.5),
}


@pytest.mark.parametrize("case", ONE_WINDOW)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_an_operator_is_made_of_lies_as_the_operator_in_dims_of_one_element(case, dynamic, backend):
    """Nothing in memory hangs on it, but ``stride()`` tells."""

    def program(x):
        return ONE_WINDOW[case](x.unfold(0, 4, 1))

    compiled = braze.compile(program, backend=backend, dynamic=dynamic, options={"verify": 2})
    for rows in (4, 4, 6, 9):
        x = torch.linspace(-1, 1, rows)
        ours, theirs = compiled(x), program(x)
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)
