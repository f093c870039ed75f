"""A call that writes an argument beside others in one memory: what its backward keeps, and what autograd counts."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_write_beside_what_a_backward_keeps_leaves_that_readable(rows, backend):
    """Parts of one memory, or none of it: autograd counts their writes together, and eager keeps a number after the write."""

    def program(kept, written):
        written.mul_(-2)
        return kept.sin()

    for run in (program, braze.compile(program, backend=backend)):
        leaf = torch.ones(4, 3, requires_grad=True)
        whole = leaf * 1
        kept, written = whole[:2], whole.detach()[rows:]
        before = written._version
        run(kept, written).sum().backward()
        assert written._version == before + 1
        torch.testing.assert_close(leaf.grad[:2], torch.ones(2, 3).cos())


@pytest.mark.parametrize("then", ["nothing", "whole", "kept"])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_write_with_a_history_beside_what_a_backward_keeps_leaves_that_readable(then, backend):
    """And what is written later has its part in the gradients: a view notes at which count of writes it got its history."""

    def program(kept, written, factor):
        written.mul_(factor)
        return kept.sin()

    found = []
    for run in (program, braze.compile(program, backend=backend)):
        leaf, factor = torch.ones(4, 3, requires_grad=True), torch.full((), 2.0, requires_grad=True)
        whole = leaf * 1
        kept, written = whole[:2], whole[2:]
        before = whole._version
        made = run(kept, written, factor)
        assert whole._version == before + 1
        if then == "nothing":
            made.sum().backward(retain_graph=True)
        else:
            (whole if then == "whole" else kept).mul_(factor)
        (written.sum() + kept.sum() * 0.5 + whole.sum() * 0.25).backward()
        found.append((leaf.grad, factor.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_columns_in_turns_are_written_apart(backend, dynamic):
    """Of five columns every other one: rows are no whole number of steps, so that no one period tells the two apart."""

    def program(written, x):
        written.add_(1)
        return x * 3

    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    with logged() as said:
        for rows in (4, 6, 8):
            made = []
            for run in (compiled, program):
                whole = torch.arange(5.0 * rows).reshape(rows, 5)
                made.append((run(whole[:, ::2], whole[:, 1::2]), whole))
            assert all(map(torch.equal, *made))
    assert not said


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_call_that_runs_as_captured_is_in_the_callers_grad_mode(backend):
    """A graph that turns gradients on by itself is differentiated; what it does before that has no history."""

    def program(x, written):
        written.add_(1)
        plain = x.exp()
        with torch.enable_grad():
            return plain, x * 2

    compiled = braze.compile(program, backend=backend)
    for shares in (False, True):
        x = torch.ones(4, 3, requires_grad=True) * 1
        with logged() as said, torch.no_grad():
            plain, differentiated = compiled(x, x.detach() if shares else torch.ones(4, 3))
        assert any("BZ2017" in m for m in said) is shares
        assert not plain.requires_grad and differentiated.requires_grad


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_graph_made_for_tensors_apart_may_write_beside_what_its_backward_keeps(backend, dynamic):
    """No guard asks where a tensor begins in its memory."""

    @braze.compile(backend=backend, dynamic=dynamic)
    def program(kept, written):
        written.mul_(-2)
        return kept.sin()

    for together in (False, True):
        whole = torch.ones(4, 3, requires_grad=True) * 1
        written = whole.detach()[2:] if together else torch.ones(2, 3)
        program(whole[:2], written).sum().backward()
        assert written._version == 1


def test_a_write_after_the_call_beside_what_a_backward_keeps_is_still_seen():
    whole = torch.ones(4, 3, requires_grad=True) * 1
    kept, written = whole[:2], whole.detach()[2:]

    def program(kept, written):
        written.mul_(-2)
        return kept.sin()

    result = braze.compile(program)(kept, written)
    kept.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
