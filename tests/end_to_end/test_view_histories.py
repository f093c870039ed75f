"""Views and what is done in place to what they are views of: their history and their shape are eager's."""

import itertools

import pytest
import torch

import braze
from tests.helpers import logged


def scaled(x, w):
    whole = x * 2
    row = whole[1]
    whole.mul_(w)
    return row * 3


def set_in_part(x, w):
    whole = torch.zeros(3, 4)
    turned = whole.t()
    whole[1] = w
    return turned.exp()


def written_through_another(x, w):
    whole = torch.zeros(3, 4)
    row, flat = whole.select(0, 1), whole.view(-1)
    flat.add_(w.repeat(3))
    return row * 2


def through_a_list(x, w):
    whole = x * 1
    part = whole[..., 1:]
    torch._foreach_mul_([whole], [w])
    return part.sum()


def turned_after_a_view(x, w):
    whole = w * x
    part = whole[..., ::2]
    whole.transpose_(0, -1)
    return part * 1, whole * 1


def turned_and_returned(x, w):
    whole = w * x
    part = whole[..., ::2]
    whole.transpose_(0, -1)
    return part, whole


def squeezed_after_a_view(x, w):
    whole = (w * x)[None]
    part = whole.diagonal(0, -2, -1)
    whole.squeeze_(0)
    return part * 2


PROGRAMS = [
    scaled,
    set_in_part,
    written_through_another,
    through_a_list,
    turned_after_a_view,
    turned_and_returned,
    squeezed_after_a_view,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_follows_what_becomes_of_its_base(program, dynamic):
    found = []
    for call in (program, braze.compile(program, dynamic=dynamic, backend="aot_eager")):
        x, w = torch.arange(12.0).view(3, 4), torch.arange(4.0).requires_grad_()
        made = call(x, w)
        made = made if isinstance(made, tuple) else (made,)
        sum((part * part).sum() for part in made).backward()
        found.append(([(part.shape, part.stride(), part.tolist()) for part in made], w.grad.tolist()))
    assert found[1] == found[0]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_as_strided_finds_beyond_its_tensor_has_no_gradient_there(backend):
    """Autograd gives that of the tensor on which it was called, not of the memory."""

    def program(x):
        whole = x.std(2)
        return whole.select(-1, -1).as_strided((4,), (3,), 0), whole

    found = []
    for call in (program, braze.compile(program, backend=backend)):
        x = torch.arange(36.0).view(2, 2, 3, 3).sin().requires_grad_()
        sum(part.sum() for part in call(x)).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_a_view_requires_grad_from_when_its_base_does():
    def program(x):
        whole = x * 2
        row = whole[1]
        whole.requires_grad_()
        return row * 1, row

    for call in (program, braze.compile(program, backend="eager")):
        assert [part.requires_grad for part in call(torch.ones(2, 3))] == [True, True]


@pytest.mark.parametrize("size", [0, 1, 2])
def test_what_was_turned_in_place_and_a_view_of_it_are_both_results_with_gradients(size: int) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        v = x * 2
        v.t_()
        return v, v.unsqueeze(-1)

    x = torch.randn(size, 3, requires_grad=True)
    results = braze.compile(program, backend="aot_eager")(x)
    assert [r.requires_grad for r in results] == [True, True]
    (found,) = torch.autograd.grad([r.sum() for r in results], x)
    assert torch.equal(found, torch.full_like(x, 4))


def pooled(x: torch.Tensor) -> torch.Tensor:
    """Of channels-last pictures the mean is laid out in place."""
    return torch.nn.functional.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1)


def turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).transpose_(0, 1)


@pytest.mark.parametrize("program", [pooled, turned])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_without_gradients_of_what_was_turned_in_place_requires_what_that_does(program, dynamic):
    def seen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = program(x)
        with torch.no_grad():
            part = whole[:1]
        return part, x.sum()

    facts = []
    for call in (seen, braze.compile(seen, dynamic=dynamic)):
        x = torch.arange(48.0).view(2, 3, 4, 2).requires_grad_()
        part, total = call(x)
        (part.sum() + total).backward()
        facts.append((part.requires_grad, part.grad_fn is None, part.tolist(), x.grad.tolist()))
    assert facts[1] == facts[0]


def test_another_name_of_a_written_result_is_turned_and_a_view_of_it_is_a_result_too() -> None:
    def program(x):
        v = x * 2
        v.logical_not_()
        other = v.detach()
        row = other.unsqueeze(1)
        other.t_()
        return v, row

    x = torch.tensor([[0.0, 1.0, 0.0]], requires_grad=True)
    v, row = braze.compile(program, backend="aot_eager", options={"verify": 1})(x)
    assert v.tolist() == [[1, 0, 1]] and row.tolist() == [[[1, 0, 1]]]
    assert v.requires_grad and v.data_ptr() == row.data_ptr() and not row.requires_grad


def test_a_view_that_is_turned_without_gradients_has_the_history_that_eager_gives_it() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = x[0]
        with torch.no_grad():
            part.swapaxes_(0, -1)
        return part, x.sum()

    facts = []
    for call in (program, braze.compile(program, backend="aot_eager")):
        x = torch.arange(24.0).view(2, 3, 4).requires_grad_()
        part, total = call(x)
        facts.append([part.requires_grad, part.grad_fn is not None, part.shape])
        (part.sum() + total).backward()
        assert x.grad is not None
        facts[-1].append(x.grad.tolist())
    assert facts[1] == facts[0]


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_padded_or_rolled_without_gradients_has_no_history(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> tuple[object, ...]:
        with torch.no_grad():
            padded, rolled = torch.nn.functional.pad(x, (1, 0)), torch.roll(x, 1)
        return padded, rolled, padded.requires_grad, rolled.requires_grad

    padded, rolled, *asked = braze.compile(program, dynamic=dynamic)(torch.ones(3, 4, requires_grad=True))
    assert [padded.requires_grad, rolled.requires_grad, *asked] == [False] * 4


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_an_input_with_a_history_is_written_in_inference_mode(backend):
    """Of a view that was written to there PyTorch cannot tell the history."""

    def program(x):
        x.swapaxes(0, -1)
        x.detach().mul_(2)

    x = torch.arange(8.0)[None].movedim(-1, 0).detach().requires_grad_() * 1
    with logged() as lines, torch.inference_mode():
        braze.compile(program, backend=backend)(x)
    assert x.flatten().tolist() == [2.0 * n for n in range(8)]
    assert not any("eagerly" in line for line in lines)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_view_that_autograd_has_given_up_leaves_no_sizes_to_guard(backend):
    """After a break its fake is refused; symbols made for it stood in guards, which no call could meet."""

    def f(x):
        part = x.as_strided((4, 3), (1, 1))
        x.t_()
        return part

    x = torch.randn(6, requires_grad=True) * 2
    compiled = braze.compile(f, backend=backend, dynamic=True, options={"verify": 2})
    with torch.inference_mode():
        assert torch.equal(compiled(x), f(x))


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_an_input_with_a_history_is_detached_in_place_as_the_call_says(backend):
    def only(x):
        x.detach_()

    def first(x):
        x.detach_()
        return x * 2

    for f in (only, first):
        compiled = braze.compile(f, backend=backend, options={"verify": 2})
        x = torch.randn(6, requires_grad=True) * 2
        given = x.detach().clone()
        out = compiled(x)
        assert not x.requires_grad and x.grad_fn is None
        assert out is None or (torch.equal(out, given * 2) and not out.requires_grad)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.detach_() * 2,
        lambda x: torch.detach_(x) * 2,
        lambda x: x[1:].detach_() * 2,
        lambda x: (x * 2)[1:].detach_() * 2,
    ],
    ids=["method", "function", "part", "part of a result"],
)
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_detached_in_place_is_a_view_in_some_calls(program, grad):
    """Whether an argument is a view differs between calls, and its fake is none."""

    def told(call, make):
        x = make().requires_grad_(grad) * 1 if grad else make()
        x = x[1:] if x.shape == (4,) else x
        try:
            return call(x).tolist()
        except RuntimeError as error:
            return str(error)

    kinds = [lambda: torch.ones(3), lambda: torch.ones(4)]
    for first in (kinds, kinds[::-1]):
        call = braze.compile(program)
        assert [told(call, kind) for kind in first] == [told(program, kind) for kind in first]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_leaf_that_is_detached_in_place_may_be_written(backend):
    def f(x):
        twice = x * 2
        x.detach_()
        x.sub_(twice)
        return twice

    compiled = braze.compile(f, backend=backend, options={"verify": 2})
    ours, theirs = torch.arange(1.0, 4.0, requires_grad=True), torch.arange(1.0, 4.0, requires_grad=True)
    given, wanted = compiled(ours), f(theirs)
    assert torch.equal(given, wanted) and torch.equal(ours, theirs)
    assert (ours.is_leaf, ours.requires_grad) == (theirs.is_leaf, theirs.requires_grad)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_an_input_that_is_detached_in_place_is_detached_where_no_gradient_comes_to_it(backend):
    def other(x, y):
        x.detach_()
        return y * 2

    def turned(x, y):
        x.detach_()
        x.transpose_(0, -1)
        return x

    for f, grad in itertools.product((other, turned), (True, False)):
        compiled = braze.compile(f, backend=backend, options={"verify": 2})
        x, y = torch.ones(2, 3, requires_grad=grad), torch.ones(2)
        given = compiled(x, y)
        assert not x.requires_grad and not given.requires_grad
        assert x._version == 0 or f is turned


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_part_of_an_input_that_is_detached_in_place_counts_as_no_write_to_it(backend):
    def f(x):
        part = x[1:].detach()
        part.detach_()
        return part, part * 2

    compiled = braze.compile(f, backend=backend, options={"verify": 2})
    unwritable = torch.arange(4)[:, None].expand(4, 3)
    for x in (torch.arange(4.0), unwritable):
        before = x._version
        part, twice = compiled(x)
        assert x._version == before
        assert part.data_ptr() == x[1:].data_ptr() and torch.equal(twice, x[1:] * 2)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_a_view_is_not_detached_in_place(backend: str, grad: bool) -> None:
    """Of what comes in, too, which is a view in one call and none in the next."""

    def given(x):
        x.detach_()
        return x * 2

    def part(x):
        row = x[1:]
        row.detach_()
        return row * 2

    def of_data(x):
        row = x.data[1:]
        try:
            row.detach_()
        except RuntimeError:
            return row * 3
        return row * 2

    for f in (given, part, of_data):
        compiled = braze.compile(f, backend=backend)
        for base in (torch.arange(4.0), torch.arange(4.0)[1:], torch.arange(8.0)[::2].detach()):
            results = []
            for function in (compiled, f):
                with torch.set_grad_enabled(grad):
                    try:
                        results.append(function(base).tolist())
                    except RuntimeError as error:
                        results.append(str(error).split(".")[0])
            assert results[0] == results[1]


def test_what_is_no_view_is_detached_within_one_graph() -> None:
    def f(x):
        h = x.tanh()
        part = h.detach()
        h.detach_()
        part.detach_()
        x.detach_()
        return h * 2, part, x * 3

    compiled = braze.compile(f, fullgraph=True)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True) * 2):
        assert [r.requires_grad for r in compiled(x)] == [False] * 3


def test_windows_of_what_was_filled_since_share_memory_as_in_eager():
    """What is filled is of stride 0 to the graph, whose windows have no memory to share: eager makes them."""

    def f(x):
        whole = x * 2
        windows = whole.unfold(-1, 2, 1)
        whole.copy_(3.0)
        return windows

    with logged() as messages:
        ours, theirs = braze.compile(f, options={"verify": 2})(torch.ones(5)), f(torch.ones(5))
    assert ours.stride() == theirs.stride() and torch.equal(ours, theirs)
    assert not [m for m in messages if "BZ90" in m]


def view_in_inference_mode(x):
    row = x[None]
    x.mul_(0.5)
    return (row,)


def view_of_a_view_in_inference_mode(x):
    row = x.view(-1)
    row.fill_(0.5)
    return row, row[1:]


def views_around_two_writes(x):
    before = x[0]
    x.add_(1)
    between = x[1]
    x.mul_(2)
    return before, between, x.t(), before[1:]


def read(view):
    """What autograd says of a view, or that it refuses to."""
    try:
        return view.requires_grad, view.grad_fn is not None
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("modes", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize(
    "program", [view_in_inference_mode, view_of_a_view_in_inference_mode, views_around_two_writes]
)
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_made_where_nothing_is_watched_and_written_since_says_of_its_history_what_eagers_does(
    program, modes, leaf, dynamic
):
    told = []
    for fn in (program, braze.compile(program, backend="aot_eager", dynamic=dynamic)):
        w = torch.arange(12.0).view(4, 3).requires_grad_()
        x = w if leaf else w * 1
        with modes():
            found = fn(x)
        told.append(([read(view) for view in found], [view.tolist() for view in found]))
    assert told[0] == told[1]


def test_a_view_that_is_written_with_the_numbers_of_an_argument_has_not_its_history():
    """Passes find that both are one value."""

    def program(x, y):
        x.copy_(torch.arange(2))
        made = y * 2
        with torch.no_grad():
            view = made[:]
        view.copy_(torch.arange(2))
        return view, view.tanh()

    told = []
    for fn in (program, braze.compile(program, backend="aot_eager")):
        x = torch.ones(2, requires_grad=True) * 1
        found = fn(x, torch.ones(2))
        told.append([*map(read, (x, *found)), *(made.tolist() for made in found)])
        told[-1].append([read(made.add_(1)) for made in found])
    assert told[0] == told[1]


def test_a_view_that_was_made_before_a_write_has_a_history_once_its_base_requires_one():
    def program(x):
        row = x.view(-1)
        x[..., :3] += 1
        late = x.view(-1)
        x.requires_grad_()
        return row, late

    x, y = torch.zeros(1, 4), torch.zeros(1, 4)
    theirs, ours = program(x), braze.compile(program)(y)
    assert [read(view) for view in ours] == [read(view) for view in theirs] == [(True, True), (True, False)]


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x.chunk(2, -1)[-1],
        lambda x: x.split(1)[0],
        lambda x: x.split(1)[0].view(-1),
        lambda x: x.unbind(0)[1].view(-1),
        lambda x: x.tensor_split(2)[0],
    ],
    ids=["chunk", "split", "view of a part", "view of a row", "tensor_split"],
)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_one_of_several_parts_of_a_leaf_tells_no_history_once_another_argument_has_been_written(backend, cut):
    """The other shares no element with the leaf, but its count of writes."""

    def program(x, y):
        part = cut(x)
        y.mul_(2)
        return part, x * 2

    def told(call):
        x = torch.arange(4.0).requires_grad_()
        results = call(x, x.detach()[4:])
        try:
            return [t.grad_fn is None for t in results]
        except RuntimeError as error:
            return str(error)

    assert told(braze.compile(program, backend=backend)) == told(program)


def test_a_view_of_an_argument_without_elements_is_older_than_a_write_through_another_argument():
    def program(x, y):
        with torch.no_grad():
            row = x.diagonal()
        y.add_(1)
        return row

    told = []
    for fn in (program, braze.compile(program)):
        x = torch.zeros(2, 0).requires_grad_()
        told.append(read(fn(x, x.detach().mT)))
    assert told[0] == told[1]
    assert "A view was created in no_grad mode" in told[0]


def a_part_of_the_turned_written(x):
    part = x[1]
    part.swapaxes_(0, -1)
    part[-2] = 1


def the_turned_written(x):
    part = x[1]
    part.t_()
    part.mul_(torch.arange(16.0).view(4, 4))


def the_whole_written(x):
    part = x[1]
    part.swapaxes_(0, -1)
    x.mul_(2)
    return part * torch.arange(16.0).view(4, 4)


@pytest.mark.parametrize("verify", [0, 2])
@pytest.mark.parametrize("fn", [a_part_of_the_turned_written, the_turned_written, the_whole_written])
def test_gradients_of_what_is_written_around_a_view_turned_in_place_are_eagers(fn, verify):
    """Of fakes, autograd makes views again by how they were made: a part turned in place would not be turned."""

    def gradients(called):
        leaf = torch.arange(48.0).view(3, 4, 4).requires_grad_()
        x = leaf * 1
        result = called(x)
        loss = (x * (leaf.detach() + 1)).sum()
        (loss if result is None else loss + (result * (leaf.detach()[0] + 1)).sum()).backward()
        return leaf.grad

    compiled = braze.compile(fn, options={"verify": verify})
    assert torch.equal(gradients(compiled), gradients(fn))


def seen(results: tuple[torch.Tensor, ...]) -> list[tuple[bool, bool, bool]]:
    return [(t.requires_grad, t.grad_fn is not None, t.is_leaf) for t in results]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("grad", [True, False])
def test_views_of_what_is_made_a_leaf_afterwards_require_a_gradient(backend, grad):
    """A view requires one where its base does, whenever the base was marked."""

    def program(x):
        whole = x + 1
        part, row = whole[3:], whole.view(4, 4)[1]
        whole.requires_grad_()
        return part, row

    with torch.set_grad_enabled(grad):
        theirs = seen(program(torch.rand(16)))
        assert seen(braze.compile(program, backend=backend)(torch.rand(16))) == theirs
    assert theirs == [(True, False, True)] * 2


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("order", [("whole", "part"), ("part", "whole")])
def test_a_view_without_gradients_of_a_leaf_requires_what_the_leafs_base_does(backend, order):
    """A part of what requires none, marked as a leaf, is a view whose base requires none: so are views of it."""

    def program(x):
        x.requires_grad_()
        with torch.no_grad():
            view = x.unsqueeze(-1)
        return view, view * view

    make = {"whole": lambda: torch.rand(3), "part": lambda: torch.rand(4)[1:]}
    compiled = braze.compile(program, backend=backend)
    for which in order:
        theirs = seen(program(make[which]()))
        assert seen(compiled(make[which]())) == theirs
        assert theirs[1][0] is (which == "whole")


@pytest.mark.parametrize("make", [lambda leaf: leaf[1:], lambda leaf: leaf.view(5)])
def test_a_result_of_what_requires_a_gradient_by_its_base_alone_has_a_history_in_a_later_call(make):
    """Made without gradients it has no history, and nothing of its own says that it requires one: its base does."""

    def program(x):
        return x * x

    compiled = braze.compile(program)
    size = make(torch.empty(5)).shape
    for _ in range(2):
        assert not compiled(torch.rand(size)).requires_grad
    with torch.no_grad():
        view = make(torch.rand(5, requires_grad=True))
    assert seen((compiled(view),)) == seen((program(view),)) == [(True, True, False)]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_result_whose_history_leads_to_no_argument_asks_nothing_of_what_made_the_arguments(backend):
    """A view made under ``no_grad`` requires a gradient, which comes no further: not to an operation that has no derivative, nor to a hook."""

    def program(x):
        with torch.no_grad():
            part = x[:2]
        return -part

    asked = []
    whole = torch.ones(3, requires_grad=True) * 1
    whole.register_hook(asked.append)
    set_ = torch.ones(3, requires_grad=True) * 1
    set_.set_(torch.ones(3) * 2)
    compiled = braze.compile(program, backend=backend)
    for x in (whole, set_):
        for run in (program, compiled):
            result = run(x)
            assert result.requires_grad
            result.sum().backward()
    assert not asked


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_history_that_leads_to_no_argument_raises_where_eagers_does(backend, dynamic):
    """Eager's backward comes by operations from which it goes no further: what one of them has kept was written since."""

    def program(x):
        with torch.no_grad():
            part = x[:2]
        powers = part.exp()
        squares = powers * powers
        powers.add_(1)
        return squares

    for run in (program, braze.compile(program, backend=backend, dynamic=dynamic)):
        result = run(torch.ones(3, requires_grad=True))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def a_window_beside_a_part(x):
    whole = x * 1
    part = whole[:2]
    window = part.as_strided((1,), (4,), 4)
    part /= 2
    return window


def a_window_in_the_gaps_of_a_part(x):
    whole = x * 1
    window = whole[::2].as_strided((2,), (1,), 4)
    whole[:1] *= x[0]
    return window


def a_window_on_a_window(x):
    whole = x * 1
    window = whole.as_strided((1, 2), (1, 1)).as_strided((3,), (2,), 1)
    whole.view(-1, 1)[..., 1:].mul_(2)  # which has no elements
    return window, whole


def a_window_written_after_a_break(x):
    whole = x * 1
    part = whole.as_strided((2,), (1,), 5)
    braze.graph_break()
    window = part.as_strided((3,), (2,))
    braze.graph_break()
    window.mul_(2)
    return whole, window


def a_part_of_a_window_written_after_a_break(x):
    whole = x * 1
    window = whole[5:7].as_strided((2, 2), (1, 2), 0)
    braze.graph_break()
    window[1].add_(x[0])
    return whole, window


@pytest.mark.parametrize(
    "program",
    [
        a_window_beside_a_part,
        a_window_in_the_gaps_of_a_part,
        a_window_on_a_window,
        a_window_written_after_a_break,
        a_part_of_a_window_written_after_a_break,
    ],
)
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_what_a_window_sees_beside_what_it_was_taken_of_has_eagers_gradient_once_that_is_written(
    program, backend
):
    """Eager makes it again of the whole, and a fake of the part, which leads no gradient to what it does not see."""

    def gradient(called):
        x = torch.arange(1.0, 13.0).requires_grad_()
        results = called(x)
        pairs = results if isinstance(results, tuple) else (results,)
        sum(((i + 2) * result).sum() for i, result in enumerate(pairs)).backward()
        return x.grad

    theirs = gradient(program)
    assert theirs.any()
    assert torch.equal(gradient(braze.compile(program, backend=backend)), theirs)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_window_that_the_caller_writes_has_eagers_gradient(backend):
    """Eager then makes it again of the whole, where it sees what the part it was taken of did not."""

    def program(x):
        return (x * 1)[:2].as_strided((2,), (1,), 7)

    def gradient(called):
        x = torch.arange(1.0, 13.0).requires_grad_()
        called(x).mul_(3).sum().backward()
        return x.grad

    theirs = gradient(program)
    assert theirs.any()
    assert torch.equal(gradient(braze.compile(program, backend=backend)), theirs)


def doubled_in_place(x, w):
    x.mul_(w)
    return x * 2


def a_part_doubled_in_place(x, w):
    x[1:].mul_(w)
    return x * 2


@pytest.mark.parametrize("program", [doubled_in_place, a_part_doubled_in_place])
@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("asked", ["hook", "retain_grad"])
def test_hooks_and_kept_gradients_of_what_a_graph_writes_are_eagers(program, view, asked):
    """Eager leads the gradient of what a view held past hooks on it, and keeps the gradient of what a tensor then holds."""

    def seen(called):
        x, w = torch.arange(1.0, 7.0).requires_grad_(), torch.tensor(1.5, requires_grad=True)
        whole = x * 3
        written, heard = whole[2:5] if view else whole, []
        if asked == "hook":
            written.register_hook(lambda gradient: heard.append(gradient.tolist()) or gradient * 2)
        else:
            written.retain_grad()
        (called(written, w).sum() + whole.sum()).backward()
        if asked == "retain_grad":
            heard.append(written.grad.tolist())
        return heard, x.grad.tolist(), w.grad.item()

    theirs = seen(program)
    assert seen(braze.compile(program)) == theirs
    assert (not theirs[0]) == (view and asked == "hook")


def looked_at_in_the_graph_before(b, v):
    b.mul_(2)
    assert not v.is_leaf
    v.register_hook(lambda gradient: gradient * 3)


def looked_at_behind_a_break(b, v):
    b[:1].mul_(2)
    assert not v.is_leaf
    braze.graph_break()
    register = v.register_hook
    register(hook=lambda gradient: gradient * 3)


@pytest.mark.parametrize("program", [looked_at_in_the_graph_before, looked_at_behind_a_break])
@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_a_hook_comes_to_a_view_whose_history_the_program_has_looked_at_since_it_was_written(
    program, backend
):
    """PyTorch dies of a first hook on a view that was written and not looked at since; a trace answers the look itself."""

    def gradient(called):
        x = torch.arange(6.0).requires_grad_()
        b = x * 2
        v = b.view(2, 3)
        called(b, v)
        v.sum().backward()
        return x.grad.tolist()

    theirs = gradient(program)
    compiled = braze.compile(program, backend=backend)
    assert [gradient(compiled) for _ in range(3)] == [theirs] * 3


def hooked_again_in_one_piece(v):
    v.register_hook(lambda gradient: gradient * 3)
    v[2:] = 2
    v.register_hook(lambda gradient: gradient * 3)
    return v


def hooked_again_behind_a_break(v):
    v.register_hook(lambda gradient: gradient * 3)
    v[2:] = 2
    braze.graph_break()
    v.register_hook(lambda gradient: gradient * 3)
    return v.sin()


@pytest.mark.parametrize("program", [hooked_again_in_one_piece, hooked_again_behind_a_break])
@pytest.mark.parametrize("written_outside", [False, True])
@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_a_second_hook_on_a_view_that_was_written_is_called_in_each_call(program, written_outside, backend):
    """Eager loses it, unless the program looks at the view (prints it, asks whether it is a leaf) before: here it is as if it did."""

    def gradient(called, look):
        x = torch.arange(6.0).requires_grad_()
        v = (x * 2).view(2, 3).reshape(6)
        if written_outside:
            v.register_hook(lambda gradient: gradient * 5)
            v[3:] = 1
        if look:
            v.register_hook(lambda gradient: gradient * 3)
            v[2:] = 2
            assert not v.is_leaf
            v.register_hook(lambda gradient: gradient * 3)
            v = v.sin() if program is hooked_again_behind_a_break else v
        else:
            v = called(v)
        v.sum().backward()
        return x.grad.tolist()

    compiled = braze.compile(program, backend=backend)
    assert [gradient(compiled, False) for _ in range(3)] == [gradient(program, True)] * 3


def turned_then_seen(y):
    y.t_()
    return y, y.expand(-1, -1)


def turned_twice_then_seen(y):
    y.t_()
    y.unsqueeze_(0)
    return y, y[0]


def turned_and_written_then_seen(y):
    y.transpose_(0, 1)
    y.add_(1)
    return y, y[1:]


def seen_then_turned(y):
    v = y.view(-1)
    y.t_()
    return y, v


def seen_then_squeezed_and_written(y):
    v = y[0]
    y.squeeze_()
    v.fill_(3)
    return y, v


def written_then_turned(y):
    y.mul_(2)
    y.add_(1)
    y.swapaxes_(0, 1)
    return y, y.expand(-1, -1)


TURNED = [
    turned_then_seen,
    written_then_turned,
    turned_twice_then_seen,
    turned_and_written_then_seen,
    seen_then_turned,
    seen_then_squeezed_and_written,
]


@pytest.mark.parametrize("make", TURNED)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_is_turned_in_place_is_no_view_and_what_sees_it_becomes_a_leafs(make, backend) -> None:
    """``make`` gives what was turned, and a view of it: autograd tells of a view what it tells of its base."""

    def fn(x):
        y, seen = make(x * 2)
        y.requires_grad_()
        part = seen[:1]
        return y, seen, part

    compiled = braze.compile(fn, backend=backend)
    made = [run(torch.arange(9.0).view(3, 3)) for run in (compiled, fn)]
    for y, seen, part in made:
        assert y.is_leaf and not y._is_view() and seen._base is y and part._base is y
        (part * 3).sum().backward()
    for ours, theirs in zip(*made, strict=True):
        assert ours.requires_grad is theirs.requires_grad and ours.is_leaf is theirs.is_leaf
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    gradients = [y.grad for y, _, _ in made]
    assert (gradients[0] is None) is (gradients[1] is None)
    if gradients[0] is not None:
        torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_product_is_no_view_of_what_it_was_made_of(dynamic: bool) -> None:
    """Eager may detach it in place; PyTorch's composite in Python, by which products of varying sizes go before 2.12, gives views."""

    def apart(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = a @ b
        part = y[..., :1]
        y.detach_()
        return part, y

    for left, right in (
        ((3, 4), (4,)),
        ((3, 3, 4), (3, 4, 5)),
        ((2, 3, 3, 4), (4, 5)),
        ((3, 2, 4), (4,)),
        ((4,), (4, 5)),
        ((4,), (3, 4, 5)),
    ):
        fn = braze.compile(apart, dynamic=dynamic, fullgraph=True)
        for grad in (False, True):
            a, b = torch.randn(left, requires_grad=grad), torch.randn(right, requires_grad=grad)
            for mine, its in zip(fn(a, b), apart(a, b), strict=True):
                torch.testing.assert_close(mine, its)
                assert mine.requires_grad == its.requires_grad
                assert (mine.grad_fn is None) is (its.grad_fn is None)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("size", [0, 4])
def test_a_view_of_what_was_made_under_no_grad_is_given_beside_a_write_to_its_memory(size, backend):
    """Eager refuses who asks for the view's history, not the call, also where no element lies in both."""

    def program(view, other):
        part = view[..., 0]
        other.add_(1)
        return part

    for call in (program, braze.compile(program, backend=backend)):
        x = torch.ones(size, requires_grad=True) * 1
        with torch.no_grad():
            view = torch.atleast_3d(x)
        part = call(view, x.unsqueeze(0).mT)
        assert part.shape == (1, size) and part._version == 1
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            part.grad_fn


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_views_between_writes_and_a_gradient_that_is_asked_for_later(backend):
    """A view of a view that is older than the last write, taken behind it, looks no history up."""

    def program(x):
        x.sub_(1)
        row = x.select(0, 1)
        x[1:].exp_()
        turned = row.swapaxes(0, -1)
        x.requires_grad_()
        return row, turned, turned[1:], x[2]

    found = []
    for call in (program, braze.compile(program, backend=backend)):
        views = call(torch.ones(4, 3))
        found.append([(v.requires_grad, v.grad_fn is None, v.is_leaf) for v in views])
    assert found[0] == found[1]
