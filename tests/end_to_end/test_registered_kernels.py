"""A kernel that the program registers for an operator of ATen's runs in compiled code as often as in eager, and no other."""

from __future__ import annotations

import pytest
import torch

import braze
from braze import api
from braze.support.errors import CaptureError

X, W = torch.randn(3, 4), torch.randn(4, 4)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*[Oo]verrid"),
    pytest.mark.parametrize("backend", ["aot_eager", "braze"]),
]


@pytest.fixture
def calls():
    return []


@pytest.fixture
def register(calls):
    """Registers kernels that say when they run; they are gone after the test."""
    with torch.library._scoped_library("aten", "IMPL") as library:

        def add(name, function, key="CPU"):
            def kernel(*args):
                calls.append(name)
                return function(*args)

            library.impl(name, kernel, key)

        yield add
    api._follow()


def compare(program, compiled, calls, *given, grad=False):
    """The same values, gradients and calls of kernels, twice."""
    for _ in range(2):
        found = []
        for call in (program, compiled):
            calls.clear()
            x = given[0].clone().requires_grad_(grad)
            y = call(x, *given[1:])
            slope = torch.autograd.grad(y.sum(), x)[0] if grad else None
            found.append((y.detach(), slope, list(calls)))
        (a, da, theirs), (b, db, ours) = found
        assert torch.allclose(a, b) and (not grad or torch.allclose(da, db))
        assert theirs and ours == theirs


def plain(x):
    return torch.relu(x + 1) * 2


def in_a_composition(x, w):
    return torch.nn.functional.linear(x, w).exp()


def in_place(x):
    y = x * 1
    y.relu_()
    return y + 1


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_kernel_for_the_cpu_is_called(backend, grad, after, register, calls):
    programs = [(plain, (X,)), (in_a_composition, (X, W)), (in_place, (X,))]
    compiled = [braze.compile(program, backend=backend, fullgraph=True) for program, _ in programs]
    if after:
        for call, (_, given) in zip(compiled, programs, strict=True):
            call(given[0].clone().requires_grad_(grad), *given[1:])
    register("relu", lambda x: x.clamp(min=-0.5))
    register("relu_", lambda x: x.clamp_(min=-0.25))
    register("exp", lambda x: x.clone())
    for call, (program, given) in zip(compiled, programs, strict=True):
        compare(program, call, calls, *given, grad=grad)


@pytest.mark.parametrize("key", ["AutogradCPU", "CompositeImplicitAutograd"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_kernel_above_autograd_ends_the_graph(backend, key, grad, register, calls):
    program = braze.compile(in_a_composition, backend=backend)
    program(X, W)
    register("linear", lambda x, w, b=None: x @ w.t() + 1, key)
    compare(in_a_composition, program, calls, X, W, grad=grad)
    with pytest.raises(CaptureError, match="BZ2032"):
        braze.compile(in_a_composition, backend=backend, fullgraph=True)(X.clone().requires_grad_(grad), W)


def test_parts_of_operators_of_ours_meet_no_kernel_that_eager_does_not(backend, register, calls):
    """PyTorch's own kernel of this one calls no others."""
    program = braze.compile(lambda x: torch.nn.functional.softplus(x), backend=backend)
    register("exp", lambda x: x.clone())
    register("log1p", lambda x: x.clone())
    assert torch.allclose(program(X), torch.nn.functional.softplus(X)) and not calls


def test_a_kernel_for_an_overload_that_is_named_as_a_type_is_called(register, calls, backend):
    """``add.Tensor``: that name stands before the arguments' types in its schema."""
    register("add.Tensor", lambda x, y: torch.sub(x, y))
    compare(
        lambda x: torch.add(x, W[:3]) * 2,
        braze.compile(lambda x: torch.add(x, W[:3]) * 2, backend=backend),
        calls,
        X,
    )
