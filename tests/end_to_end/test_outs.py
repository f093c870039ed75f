"""``out=`` of a tensor that has another shape: eager gives it that of the result, and other memory where it needs more."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.helpers import logged


def longer(x, y):
    v = x * 1
    torch.add(y, 1, out=v)
    return v


def read_before(x, y):
    v = x.frac()
    made = v.sum(0)
    torch.add(y, 1, out=v)
    return made, v


def of_a_view(x, y):
    v = x * 2
    part = v[1:]
    torch.add(y, 1, out=part)
    return v, part


def of_an_argument(x, y):
    part = x[1:]
    torch.add(y, 1, out=part)
    return (part,)


@pytest.mark.parametrize("fn", [longer, read_before, of_a_view, of_an_argument])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.filterwarnings("ignore:.*was resized.*")
def test_an_out_of_another_shape_takes_the_results(fn, backend):
    """Such a graph runs as captured, and says so."""
    compiled = braze.compile(fn, backend=backend, options={"verify": 2})
    with logged() as messages:
        for sizes in ((2, 3), (4,), (1, 3), (7, 1)):
            (given, theirs), y = (torch.arange(12.0).view(4, 3) for _ in range(2)), torch.rand(sizes)
            torch.testing.assert_close(compiled(given, y), fn(theirs, y), rtol=0, atol=0)
            torch.testing.assert_close(given, theirs, rtol=0, atol=0)
    assert any("BZ2009" in message for message in messages)


@pytest.mark.filterwarnings("ignore:.*was resized.*")
def test_what_fakes_alone_refuse_comes_to_no_handler_of_the_program():
    """``out=`` of a varying size gets another; fakes cannot follow, which is no error of the program's."""

    def fn(x, out):
        try:
            torch.add(x, 1, out=out)
        except Exception as error:
            return repr(error)
        return out

    compiled = braze.compile(fn, backend="eager")
    for size in (3, 4, 5, 0):
        given = torch.zeros(size)
        assert compiled(torch.ones(3), given) is given
        assert given.tolist() == [2.0] * 3


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_an_out_without_elements_of_another_shape_leaves_its_views_as_they_were(backend):
    def program(x):
        v = x.swapaxes(0, -1).sort(1).values
        turned = v.mT
        torch.add(x, 1, out=v)
        return turned, v

    compiled = braze.compile(program, backend=backend, options={"verify": 2})
    ours, theirs = (call(torch.ones(0, 2, 4)) for call in (compiled, program))
    assert [t.shape for t in ours] == [t.shape for t in theirs] == [(4, 0, 2), (0, 2, 4)]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.filterwarnings("ignore:.*was resized.*")
def test_an_out_without_elements_of_another_shape_was_read_as_it_was_by_what_is_written(backend):
    def program(x, y):
        v, w = x * 1, x + 1
        w.div_(v)
        torch.add(y, 1, out=v)
        return w, v

    compiled = braze.compile(program, backend=backend, options={"verify": 2})
    ours, theirs = (call(torch.ones(0, 0, 2), torch.ones(0, 2, 0)) for call in (compiled, program))
    assert [t.shape for t in ours] == [t.shape for t in theirs] == [(0, 0, 2), (0, 2, 0)]


def of_itself(x):
    torch.mul(x, 2, out=x)


def of_a_view_of_it(x):
    part = x.view(-1)
    torch.exp(part, out=part)


def of_a_part(x):
    torch.add(x[:0], 1, out=x[:0])


def of_all_without_gradients(x):
    with torch.no_grad():
        part = x.unsqueeze(-1)
        torch.mul(part, 2, out=part)


def of_a_sum(x):
    torch.sum(x[None], 0, out=x.t().t())


@pytest.mark.parametrize("fn", [of_itself, of_a_view_of_it, of_a_part, of_all_without_gradients, of_a_sum])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_out_without_elements_is_marked_as_written(fn, backend, dynamic):
    """Of the result's own shape it takes no memory: autograd counts such a write as any other."""
    compiled = braze.compile(fn, backend=backend, dynamic=dynamic, options={"verify": 2})
    for sizes in ((0, 3), (2, 3), (0, 4)):
        ours, theirs = torch.ones(sizes), torch.ones(sizes)
        compiled(ours), fn(theirs)
        assert ours._version == theirs._version
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.filterwarnings("ignore:.*was resized.*")
def test_an_out_that_is_a_view_without_elements_and_takes_another_shape_marks_what_it_was_a_view_of(backend):
    def program(x, y):
        part = x.view(-1)
        torch.add(y, 1, out=part)
        return part

    compiled = braze.compile(program, backend=backend, options={"verify": 2})
    ours, theirs = torch.ones(0, 3), torch.ones(0, 3)
    torch.testing.assert_close(compiled(ours, torch.ones(2)), program(theirs, torch.ones(2)), rtol=0, atol=0)
    assert (ours._version, ours.shape) == (theirs._version, theirs.shape)
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
