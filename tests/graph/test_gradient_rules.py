"""Gradients of activations and losses lie as in eager, however what comes in and what they are of is turned."""

from __future__ import annotations

import itertools

import pytest
import torch

import braze
from braze.graph.fakes import fakes
from braze.graph.rules.gradient_rules import GRADIENTS
from tests.graph.test_allocations import OPERANDS, differs, laid

F = torch.nn.functional
aten = torch.ops.aten

_LOOPS = [op for op, rule in GRADIENTS.items() if rule.__name__ == "_loop"]
#: calls of a gradient and what it is of
CALLS = {
    **{op.name(): op for op in _LOOPS if len(op._schema.arguments) == 2},
    "gelu": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1, 1),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
    "logit": lambda g, x: aten.logit_backward(g, x, 1e-3),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0),
    "elu": lambda g, x: aten.elu_backward(g, 1.0, 1, 1.0, False, x),
    "elu by what it gave": lambda g, x: aten.elu_backward(g, 1.0, 1, 1.0, True, x),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False),
    "rrelu": lambda g, x: aten.rrelu_with_noise_backward(g, x, x, 0.1, 0.3, True, False),
    "rrelu by turned noise": lambda g, x: aten.rrelu_with_noise_backward(g, g, x, 0.1, 0.3, True, False),
    "rrelu in evaluation": lambda g, x: aten.rrelu_with_noise_backward(g, x, g, 0.1, 0.3, False, False),
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, x),
    "prelu": lambda g, x: aten._prelu_kernel_backward(g, x, torch.ones([1] * x.dim())),
    **{
        f"{name} {reduced}": lambda g, x, loss=loss, k=k: loss(g if k == 0 else g.sum(), x, g, k)
        for name, loss in {
            "mse_loss": aten.mse_loss_backward,
            "smooth_l1_loss": lambda g, x, y, k: aten.smooth_l1_loss_backward(g, x, y, k, 1.0),
            "huber_loss": lambda g, x, y, k: aten.huber_loss_backward(g, x, y, k, 1.0),
            "soft_margin_loss": aten.soft_margin_loss_backward,
            "soft_margin_loss turned": lambda g, x, y, k: aten.soft_margin_loss_backward(g, y, x, k),
            "binary_cross_entropy": lambda g, x, y, k: aten.binary_cross_entropy_backward(g, x, y, None, k),
        }.items()
        for k, reduced in enumerate(("one by one", "their mean"))
    },
    "softmax": lambda g, x: aten._softmax_backward_data(g, x, -1, x.dtype),
    "log_softmax": lambda g, x: aten._log_softmax_backward_data(g, x, 0, x.dtype),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_lies_as_the_kernel_lays_it(name):
    for g, x in itertools.product(OPERANDS, repeat=2):
        if g.shape == x.shape:
            assert differs(CALLS[name], g, x) is None, (g.shape, g.stride(), x.stride())


def test_each_rule_has_a_call():
    called = set()

    class Noted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func)
            return func(*args, **(kwargs or {}))

    with Noted():
        for call in CALLS.values():
            call(torch.rand(3, 4), torch.rand(3, 4))
    # a convolution's operands are of several shapes: test_metadata.py has its calls
    assert set(GRADIENTS) - {aten.convolution_backward.default} <= called


@pytest.mark.parametrize("name", CALLS)
def test_a_gradient_of_varying_sizes_lies_as_the_kernel_lays_it(name):
    g, x = laid(3, 4, 5, strides=(5, 15, 1)), laid(3, 4, 5, strides=(20, 5, 1))
    for given in ((g, x), (x, g), (g, g)):
        mode = fakes.new_mode(dynamic=True)
        with torch.no_grad():
            fake = [mode.fake(t, symbolic_dims={0, 1}) for t in given]
            with mode:
                got = CALLS[name](*fake)
            want = CALLS[name](*given)
        for ours, theirs in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            assert [*map(int, ours.shape), *map(int, ours.stride())] == [*theirs.shape, *theirs.stride()]


ACTIVATIONS = {
    "celu": F.celu, "elu": F.elu, "selu": F.selu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh, "relu6": F.relu6, "softplus": F.softplus, "logit": lambda h: torch.logit(h.sigmoid(), 1e-3),
    "logsigmoid": F.logsigmoid, "leaky_relu": F.leaky_relu, "rrelu": F.rrelu, "gelu": F.gelu, "silu": F.silu, "mish": F.mish,
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_gradient_of_an_activation_is_turned_as_what_comes_in(name, backend, dynamic):
    """It is shaped anew by what made the activation's operand, which says whether it can be."""

    def step(x, w):
        h = (x.flatten(0, 1) @ w).view(*x.shape)
        return ACTIVATIONS[name](h * 0.7).transpose(0, 1).reshape(-1, x.shape[-1]).sin().sum()

    torch.manual_seed(0)
    drawn = [torch.randn(3, 6, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)]
    kept = []
    for fn in (step, braze.compile(step, backend=backend, dynamic=dynamic)):
        given = [t.clone().requires_grad_() for t in drawn]
        kept.append(torch.autograd.grad(fn(*given), given))
    for ours, theirs in zip(*kept, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)
