"""A part is written of what holds one number, repeated: the others keep theirs."""

import pytest
import torch

import braze


def last(v):
    v[..., -1] = torch.full((), 3.0)


def rows(v):
    v[1:] = torch.full((), 5.0)


def diagonal(v):
    v.diagonal().fill_(7)


@pytest.mark.parametrize("write", [last, rows, diagonal])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_copied_everywhere_is_written_in_part(write, dynamic):
    def program(x, y):
        v = x.positive()
        v.copy_(y)
        write(v)
        return v * 2

    compiled = braze.compile(program, dynamic=dynamic, options={"verify": 2})
    for size in (3, 4, 1):
        x, y = torch.randn(size, size), torch.randn(())
        ours, theirs = x.clone(), x.clone()
        assert torch.equal(compiled(ours, y), program(theirs, y))
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_written_of_what_has_no_elements_and_repeats_one(dynamic):
    def program(x):
        x[1:] = torch.full((), 5.0)
        return x * 2

    compiled = braze.compile(program, dynamic=dynamic, options={"verify": 2})
    for x in (
        torch.zeros(4, 3, 1).expand(4, 3, 0),
        torch.zeros(4, 1, 1).expand(4, 1, 0),
        torch.zeros(4, 1, 8),
    ):
        theirs = x.clone()
        assert torch.equal(compiled(x), program(theirs))
        assert torch.equal(x, theirs)


def test_one_element_of_what_is_repeated_is_written():
    """Eager writes it: it overlaps nothing. That the window that it is of does must not fail the proof."""

    def program(x, y):
        x.diagonal(3).sub_(y.mean())
        return x * 1

    compiled = braze.compile(program, backend="aot_eager", options={"verify": 2})
    y = torch.ones(6, 6, requires_grad=True)
    ours, theirs = (torch.arange(6.0).view(6, 1).expand(6, 4) for _ in range(2))
    assert torch.equal(compiled(ours, y), program(theirs, y))
    assert torch.equal(ours, theirs)
