"""What is remembered of one call holds for another, whichever of their arguments are one tensor."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.graph.fakes import fakes
from braze.graph.rules import memo


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_are_arguments_are_those_of_their_own_call(backend, dynamic):
    """After a call with one tensor twice, whose results are both that tensor."""

    def fn(x, y):
        torch.atleast_1d(x, x)
        a, b = torch.atleast_1d(x, y)
        b.add_(5)
        return x * 2, y * 2, a, b

    found = []
    for call in (fn, braze.compile(fn, backend=backend, dynamic=dynamic)):
        x, y = torch.arange(3.0), torch.arange(3.0)
        results = call(x, y)
        found.append([x, y, *results])
        assert results[2] is x and results[3] is y
    assert all(map(torch.equal, *found))


def test_a_view_of_what_two_arguments_share_is_not_remembered():
    """Of which of them another call's would be, nothing tells."""
    mode = fakes.new_mode()
    with fakes.on_fakes(mode):
        whole = mode.fake(torch.arange(4.0))
        left, right = whole[:2], whole[2:]
        view = right.view(1, 2)
    assert memo._describe(view, memo._Places([left, right]), frozenset()) is None
    assert memo._describe(view, memo._Places([right]), frozenset()) is not None


def test_results_of_a_long_list_are_remembered_in_time_that_grows_with_it(monkeypatch):
    """Each result was compared with each argument: 1,600 parameters took 7.8 s."""
    asked = []
    storage_key = memo.torch_compat.storage_key
    monkeypatch.setattr(memo.torch_compat, "storage_key", lambda t: (asked.append(1), storage_key(t))[1])
    mode = fakes.new_mode()
    with fakes.on_fakes(mode):
        tensors = [mode.fake(torch.ones(2)) for _ in range(200)]
        results = [t + 1 for t in tensors]
        asked.clear()
        recipe = memo._describe(results, memo._Places(tensors), frozenset())
    assert recipe is not None and len(recipe[1]) == 200
    assert len(asked) <= 400
