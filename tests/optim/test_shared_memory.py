"""Parameters that share memory, with each other or with gradients, are stepped in eager's order, one after another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze
from braze.support import trace
from tests.helpers import logged

D = torch.float64


def whole_then_window():
    big = torch.randn(6, 8, dtype=D)
    a, b = nn.Parameter(big), nn.Parameter(big[:, :4])
    return [a, b], lambda: (torch.randn(6, 8, dtype=D), torch.randn(6, 4, dtype=D))


def a_gradient_that_is_a_window():
    """The window, with holes, is PyTorch's to step; the parameter before it reads its memory."""
    big = torch.randn(6, 8, dtype=D)
    a, b = nn.Parameter(torch.randn(6, 8, dtype=D)), nn.Parameter(big[:, :4])
    return [a, b], lambda: (big, torch.randn(6, 4, dtype=D))


def a_window_whose_gradient_is_a_parameter():
    a, b = nn.Parameter(torch.randn(6, 8, dtype=D)), nn.Parameter(torch.randn(6, 8, dtype=D)[:, :4])
    return [a, b], lambda: (torch.randn(6, 8, dtype=D), a.data[:, :4])


def a_gradient_that_is_the_parameter_before():
    a, b = (nn.Parameter(torch.randn(5, dtype=D)) for _ in range(2))
    return [a, b], lambda: (torch.randn(5, dtype=D), a.data)


def a_gradient_in_another_order_that_is_the_parameter_before():
    """The kernel gets a copy of such a gradient."""
    a, b = (nn.Parameter(torch.randn(5, 5, dtype=D)) for _ in range(2))
    return [a, b], lambda: (torch.randn(5, 5, dtype=D), a.data.t())


def two_types_over_one_memory():
    memory = torch.randn(8, dtype=D)
    a, b = nn.Parameter(memory[:6]), nn.Parameter(memory.view(torch.float32)[8:])
    return [a, b], lambda: (torch.randn(6, dtype=D), torch.randn(8))


def the_same_twice():
    a, b = nn.Parameter(torch.randn(5, dtype=D)), nn.Parameter(torch.randn(3, dtype=D))
    return [b, a, a], lambda: (torch.randn(3, dtype=D), *[torch.randn(5, dtype=D)] * 2)


CASES = [
    whole_then_window,
    a_gradient_that_is_a_window,
    a_window_whose_gradient_is_a_parameter,
    a_gradient_that_is_the_parameter_before,
    a_gradient_in_another_order_that_is_the_parameter_before,
    two_types_over_one_memory,
    the_same_twice,
]


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}], ids=["sgd", "momentum"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_order_is_eagers(case, options):
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        params, gradients = case()
        # one that stands apart stays compiled
        params.append(nn.Parameter(torch.ones(3, dtype=D)))
        optimizer = torch.optim.SGD(params, lr=0.1, weight_decay=0.5, foreach=False, **options)
        if compiled:
            braze.compile_optimizer(optimizer)
        for _ in range(3):
            for p, grad in zip(params, (*gradients(), torch.ones(3, dtype=D))):
                p.grad = grad
            optimizer.step()
        results.append([p.detach().clone() for p in params])
        if compiled:
            (plan,) = vars(optimizer)["_braze_stepper"].plans
            assert any(p is params[-1] for bucket, _ in plan.buckets for p in bucket.params)
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-14, equal_nan=True)


def test_neighbours_in_one_memory_are_compiled():
    """Windows of rows of one tensor, of two types, and gradients beside them, do not overlap."""
    memory = torch.randn(40, dtype=D)
    params = [nn.Parameter(memory[:5]), nn.Parameter(memory[5:10])]
    params.append(nn.Parameter(memory[10:15].view(torch.float32)))
    for p, part in zip(params, (memory[15:20], memory[20:25], memory[25:30].view(torch.float32))):
        p.grad = part
    optimizer = braze.compile_optimizer(torch.optim.SGD(params, lr=0.1))
    with logged() as said:
        optimizer.step()
        optimizer.step()
    assert not said
    assert trace.snapshot()[0]["optimizer_plans"] == 1


def test_memory_that_comes_to_be_shared():
    """Gradients move between steps: each step looks where they are."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(4, dtype=D)) for _ in range(3)]
        odd = nn.Parameter(torch.randn(4, 2, dtype=D)[:, 0])
        optimizer = torch.optim.SGD([*params, odd], lr=0.1, foreach=False)
        if compiled:
            braze.compile_optimizer(optimizer)
        for turn in range(4):
            for p in (*params, odd):
                p.grad = torch.randn(4, dtype=D)
            if turn == 1:
                params[2].grad = params[0].data
            elif turn == 2:
                odd.grad = params[1].data
            optimizer.step()
        results.append([p.detach() for p in (*params, odd)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-14)
