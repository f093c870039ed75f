"""Tensors of zeros that have no memory, as some of PyTorch's derivatives give: kernels would read at address 0."""

import pytest
import torch

import braze


def program(x, w):
    return (x @ w).sin() * w


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_gradient_of_zeros_without_memory_comes_in(backend, dynamic):
    x, w = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
    result = braze.compile(program, backend=backend, dynamic=dynamic)(x, w)
    result.backward(torch._efficientzerotensor(3, 3))
    for tensor in (x, w):
        torch.testing.assert_close(tensor.grad, torch.zeros(3, 3))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_zeros_without_memory_are_given_to_a_compiled_function(before, grad):
    """Also where a variant for such tensors with memory is there."""
    compiled = braze.compile(program)
    w = torch.rand(3, 3, requires_grad=grad)
    if before:
        compiled(torch.rand(3, 3), w)
    zeros = torch._efficientzerotensor(3, 3)
    torch.testing.assert_close(compiled(zeros, w), program(zeros.clone(), w))
