"""What operators give, and views of it: whose they are, and what history they have, is eager's."""

import pytest
import torch

import braze
from tests.helpers import logged


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.logsumexp(0),
        lambda x: torch.nn.functional.mish(x).logsumexp(-2),
        lambda x: x.logsumexp((0, 1)),
        lambda x: x.var(1),
        lambda x: x.exp(),
    ],
    ids=["logsumexp", "of mish", "of all", "var", "exp"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_an_operator_gives_is_no_view_of_what_it_is_made_of_in_the_graph(made, dynamic):
    """What is viewed without gradients requires one as in eager, and what it is a view of is a view of nothing."""

    def alone(x):
        whole = made(x)
        with torch.no_grad():
            return whole.view_as(whole)

    def beside(x):
        whole = made(x)
        return whole, whole[...]

    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    part = braze.compile(alone, dynamic=dynamic)(x)
    assert alone(x).requires_grad and part.requires_grad
    assert part.grad_fn is None
    whole, part = braze.compile(beside, dynamic=dynamic)(x)
    assert part._base is whole and not whole._is_view()


@pytest.mark.parametrize(
    "make", [torch.empty_like, lambda x: x.new_empty(x.shape), lambda x: torch.zeros(3, 4), torch.rand_like]
)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_view_without_gradients_of_what_was_made_empty_and_filled_requires_what_the_whole_does(
    make, backend
):
    """What ``torch.empty`` and its like hand out is what they made, and no other name of it without a history."""

    def alone(x):
        whole = make(x).copy_(x * 2)
        with torch.no_grad():
            return whole.view_as(whole)

    def beside(x):
        whole = make(x)
        whole[1:] = x[1:]
        with torch.no_grad():
            part = whole[1:]
        return whole, part

    for program in (alone, beside):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        with logged() as lines:
            found = braze.compile(program, backend=backend)(x)
        assert not lines, lines
        *_, part = found if isinstance(found, tuple) else (found,)
        assert part.requires_grad and part.grad_fn is None
        if program is beside:
            assert part._base is found[0]
            found[0].sum().backward()
            assert x.grad.tolist() == [[0.0] * 4] + [[1.0] * 4] * 2


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_another_name_of_what_was_made_empty_has_no_history_where_the_program_gives_it_one(backend):
    def program(x):
        whole = x.new_empty(x.shape)
        name, other = whole.detach(), torch.empty_like(x)
        whole.copy_(x * 2)
        last = other.detach()
        other.copy_(x * 3)
        return whole, name, other, last[1:]

    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    for fn in (program, braze.compile(program, backend=backend)):
        found = fn(x)
        assert [part.requires_grad for part in found] == [True, False, True, False]
        assert [part.tolist() for part in found] == [(x * 2).tolist()] * 2 + [
            (x * 3).tolist(),
            (x[1:] * 3).tolist(),
        ]


def written_whole(x):
    whole = x.nanmean(-1)
    part = whole.view(whole.shape[0], -1)
    x.add_(x)
    whole.exp_()
    return whole, [part]


def written_through_the_view(x):
    whole = x * 2
    part = whole[1:]
    part.exp_()
    return whole, [part]


def seen_before_and_after(x):
    whole = x * 2
    first = whole[1:]
    whole.mul_(3)
    return whole, [whole[:2], first, first[:1]]


def in_parts(x):
    whole = x.sum(-1)
    part = whole.chunk(2)[0]
    whole.zero_()
    return whole, [part]


def never_written(x):
    whole = x * 2
    return whole, [whole[1:]]


def without_gradients(x):
    whole = x * 2
    with torch.no_grad():
        part = whole[1:]
    whole.exp_()
    return whole, [part]


@pytest.mark.parametrize(
    "made",
    [
        written_whole,
        written_through_the_view,
        seen_before_and_after,
        in_parts,
        never_written,
        without_gradients,
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_views_of_what_becomes_a_leaf_have_its_history_if_it_was_written_since(made, backend):
    """Autograd looks the history of a view up again once what it is of has been written, and refuses where it cannot."""

    def program(x):
        whole, parts = made(x)
        whole.requires_grad_()
        return whole, *parts

    def seen(called):
        whole, *parts = called(torch.arange(60.0).reshape(3, 4, 5) / 60)
        found = []
        for part in parts:
            try:
                found.append((part.requires_grad, part.grad_fn is None, part._base is whole))
                if part.grad_fn is not None:
                    part.sum().backward()
            except RuntimeError as error:
                found.append(str(error))
        return found, None if whole.grad is None else whole.grad.tolist(), whole._version > 0

    compiled = braze.compile(program, backend=backend)
    for _ in range(2):
        assert seen(compiled) == seen(program)


@pytest.mark.parametrize(
    "made",
    [written_whole, written_through_the_view, seen_before_and_after, in_parts, without_gradients],
)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_a_backward_keeps_of_what_is_returned_with_a_view_older_than_a_write_is_not_taken_for_written(
    made, backend
):
    """The program's write came before that was kept: nobody has written it since."""

    def program(x, w):
        whole, parts = made(x * 1)
        return parts[0] * w, whole, *parts

    def seen(called):
        w = torch.tensor(2.0, requires_grad=True)
        results = called(torch.arange(60.0).reshape(3, 4, 5) / 60, w)
        results[0].sum().backward()
        return w.grad, results[0]

    found, wanted = seen(braze.compile(program, backend=backend)), seen(program)
    torch.testing.assert_close(found, wanted)


PARTS = {
    "real": lambda x: x.real,
    "imag": lambda x: x.imag[1:],
    "pairs": torch.view_as_real,
    "turned pairs": lambda x: torch.view_as_real(x).transpose(0, -1)[1],
    "detached": lambda x: torch.view_as_real(x.detach())[..., 0],
    "complex again": lambda x: torch.view_as_complex(torch.view_as_real(x))[1:],
}


@pytest.mark.parametrize("made", PARTS)
@pytest.mark.parametrize("given", [lambda z: z, lambda z: z[2:], lambda z: z[::2], lambda z: z[4:]])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_real_view_of_complex_numbers_counts_the_writes_to_them(made, given, backend):
    """They are written in a later graph, or by the caller."""

    def told(function):
        x = given(torch.arange(4.0) * (1 - 2j))
        part = function(x)
        before = part._base is not None, part._version, part.storage_offset(), part.stride()
        part.add_(1)
        return before, x._version, part._version, x.tolist()

    assert told(braze.compile(PARTS[made], backend=backend)) == told(PARTS[made])


def _told(x, kept):
    if kept is not None:
        kept.copy_(x.sum())


_library = torch.library.Library("views_of_results", "DEF")
_library.define("told(Tensor x, Tensor(a!)? kept) -> ()")
_library.impl("told", _told, "CompositeExplicitAutograd")
told = torch.ops.views_of_results.told


def kept_without_gradients(x, kept):
    whole = x * 2
    with torch.no_grad():
        kept.add_(whole.sum())
    return whole.unbind(0)[0]


def read_by_what_may_write(x, kept):
    whole = x * 2
    with torch.no_grad():
        told(whole, None)
    return whole.unbind(0)[0]


def counted_and_seen_without_gradients(x, kept):
    whole = x * 2
    with torch.no_grad():
        told(whole, kept)
        return whole.view(-1)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "f", [kept_without_gradients, read_by_what_may_write, counted_and_seen_without_gradients]
)
def test_a_view_to_which_autograd_lets_nobody_write_is_one_whatever_was_noted_of_the_whole(f, backend):
    """What is written without gradients beside it makes no second gradient of the whole."""
    found = []
    for call in (f, braze.compile(f, fullgraph=True, backend=backend)):
        x, kept = torch.ones(2, 3, requires_grad=True), torch.zeros(())
        part = call(x, kept)
        with pytest.raises(RuntimeError, match="is being modified inplace") as refused:
            part.add_(1)
        (part * 3).sum().backward()
        found.append((part.tolist(), kept.item(), part._is_view(), str(x.grad), str(refused.value)))
    assert found[0] == found[1]


def last_of_each(x, weight):
    h = x @ weight
    with torch.no_grad():
        last = h[:, -1]
    return h.relu().sum(), last


def turned_and_twice(x, weight):
    h = (x @ weight).exp()
    with torch.no_grad():
        seen = h[1:, :2].mT
    return (h * 2).sin(), seen, seen


def read_again(x, weight):
    h = x @ weight
    with torch.no_grad():
        first = h[0]
    return h.sum() + (first * 3).sum(), first


def nothing_else_with_a_history(x, weight):
    h = x @ weight
    with torch.no_grad():
        first, total = h[0], h.sum()
    return total, first, h.detach() * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("f", [last_of_each, turned_and_twice, read_again, nothing_else_with_a_history])
def test_a_view_made_without_gradients_is_returned_beside_a_loss(f, backend, dynamic, capfd):
    """It says that it requires a gradient, and leads nowhere; the graph that gives it ran as captured."""
    found = []
    for call in (f, braze.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
        weight = torch.linspace(0.5, 2, 16, dtype=torch.float64).view(4, 4).requires_grad_()
        results = call(x, weight)
        seen = [(r.requires_grad, r.is_leaf, r._is_view(), r.stride()) for r in results]
        with pytest.raises(RuntimeError, match="view was created in no_grad mode") as refused:
            results[1].add_(1)
        sum((r * k).sum() for k, r in enumerate(results, 1)).backward()
        found.append(([seen, str(refused.value)], [*map(torch.detach, results), x.grad, weight.grad]))
    assert "BZ2" not in capfd.readouterr().err
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1])
