"""Views that are made in inference mode: autograd counts the writes to what they are of, and of a view that was turned in place."""

import pytest
import torch

import braze
from tests.helpers import logged


def turned(x):
    view = x[None]
    view.swapaxes_(0, -1)
    return (view,)


def turned_then_seen(x):
    view = x[None]
    view.swapaxes_(0, -1)
    return view, view.unsqueeze(-1), x[1]


def seen_then_turned(x):
    view = x[None]
    part = view[..., 0]
    view.swapaxes_(0, -1)
    return view, part


def turned_beside(x):
    part, view = x[0], x[1:]
    view.t_()
    return part, view


def a_window_turned(x):
    view = x.t()
    view.squeeze_()
    view.t_()
    return (view,)


def told(view):
    """What autograd says of a view, or that it refuses to."""
    try:
        return view.requires_grad, view.grad_fn is not None
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize(
    "program", [turned, turned_then_seen, seen_then_turned, turned_beside, a_window_turned]
)
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_is_older_than_a_change_in_place_of_its_own_shape_or_anothers(program, leaf, dynamic):
    """Autograd counts that as a write, and refuses to look for the history of what was made before it."""
    found = []
    for fn in (program, braze.compile(program, backend="aot_eager", dynamic=dynamic)):
        w = torch.arange(12.0).view(4, 3).requires_grad_()
        x = w if leaf else w * 1
        with torch.inference_mode():
            views = fn(x)
        found.append(([told(view) for view in views], [view.tolist() for view in views], x._version))
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("modes", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("size", [0, 2])
def test_channels_of_nothing_that_are_shuffled_are_a_view_whose_writes_are_counted(backend, modes, size):
    def program(x):
        shuffled = torch.channel_shuffle(x, 2)
        shuffled.add_(1)
        return shuffled, x * 2

    found = []
    for fn in (program, braze.compile(program, backend=backend)):
        x = torch.arange(12.0 * size).view(3, size, 4)
        with modes():
            shuffled, doubled = fn(x.mT)
        found.append((x._version, shuffled._is_view(), shuffled.tolist(), doubled.tolist()))
    assert found[0] == found[1]
    assert (found[0][0] > 0) == (size == 0 and modes is torch.inference_mode)


def test_channels_of_nothing_that_make_no_groups_are_refused_in_inference_mode():
    program = braze.compile(lambda x: torch.channel_shuffle(x, 3), backend="aot_eager")
    with torch.inference_mode(), pytest.raises(RuntimeError, match="divisible"):
        program(torch.zeros(2, 4, 0))


def written_and_seen(x):
    x.mul_(2)
    return x.unsqueeze(-1), x * 2


def seen_and_written(x):
    view = x.unsqueeze(-1)
    view.sub_(1)
    return view, view * 2


@pytest.mark.parametrize("program", [written_and_seen, seen_and_written])
@pytest.mark.parametrize("sizes", [(3, 1), (3, 4), (0, 4)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_has_a_history_and_gaps_or_no_elements_is_written_in_inference_mode(program, sizes, dynamic):
    found = []
    for fn in (program, braze.compile(program, dynamic=dynamic, options={"verify": 1})):
        x = (torch.arange(sizes[0] * 5.0).view(-1, 5).requires_grad_() * 1)[:, : sizes[1]]
        with torch.inference_mode():
            results = fn(x)
        found.append([(told(r), r.is_inference(), r.tolist()) for r in (x, *results)])
    assert found[0] == found[1]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "view", [lambda x: x.mT, lambda x: x[1:], lambda x: x.view(-1, 2), lambda x: x.detach(), lambda x: x.data]
)
def test_views_in_a_region_of_inference_mode_are_compiled(view, dynamic):
    """What a trace remembers of a view, or knows by its rules, is told again while the mode is on."""

    @torch.inference_mode()
    def f(x):
        part = view(x)
        part[0] *= 2
        return part, view(x) + 1

    compiled = braze.compile(
        f, dynamic=dynamic, options={"verify": 1}
    )  # which raises where a graph cannot be compiled
    for make in (lambda: torch.arange(8.0).view(4, 2), lambda: torch.arange(24.0).view(2, 12)[:, ::6]):
        x, y = make(), make()
        with logged() as told:
            ours, theirs = compiled(x), f(y)
        assert not [message for message in told if "as captured" in message]
        assert [(t.tolist(), t.stride(), t.requires_grad) for t in (*ours, x)] == [
            (t.tolist(), t.stride(), t.requires_grad) for t in (*theirs, y)
        ]
        assert [t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in ours] == [
            True,
            False,
        ]
