"""``optimizer.step()`` in a compiled function runs whole, outside the graph, and the function goes on behind it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze
from tests.helpers import explained

OPTIMIZERS = [
    lambda p: torch.optim.AdamW(p, lr=0.05),
    lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    lambda p: torch.optim.RMSprop(p, lr=0.05),
    lambda p: torch.optim.Adagrad(p, lr=0.05),
]


def loop(make, compiled_step, compile_function, scheduled=False, closure=False):
    """Losses and parameters of five training steps, each one call of a function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = make(model.parameters())
    if compiled_step:
        braze.compile_optimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if scheduled else None

    def forward(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    def step(x):
        if closure:
            loss = optimizer.step(lambda: forward(x))
        else:
            loss = forward(x)
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return loss.detach() * 2 + 1

    run = braze.compile(step) if compile_function else step
    inputs = [torch.randn(4, 6, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    return [run(x) for x in inputs], [p.detach() for p in model.parameters()], run


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_training_step_is_right(make):
    eager, compiled = loop(make, False, False), loop(make, False, True)
    torch.testing.assert_close(compiled[:2], eager[:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", OPTIMIZERS[:2])
@pytest.mark.parametrize("how", [{}, {"scheduled": True}, {"closure": True}])
def test_with_a_compiled_optimizer(make, how):
    eager, compiled = loop(make, False, False, **how), loop(make, True, True, **how)
    torch.testing.assert_close(compiled[:2], eager[:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_changed_learning_rate_makes_no_new_variant(scheduled):
    """What the optimizer reads is not guarded: later steps find their code."""
    _, _, run = loop(OPTIMIZERS[0], True, True, scheduled)
    before = run.misses
    run(torch.randn(4, 6))
    assert run.misses == before


def test_the_break_is_told():
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)

    def f(x):
        optimizer.step()
        return x * 2

    p.grad = torch.ones(3)
    told = explained(f, torch.ones(3))
    assert "BZ1022" in str(told)
    assert "compile_optimizer" in str(told)
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))


@pytest.mark.parametrize("clip", [braze.clip_grad_norm_, nn.utils.clip_grad_norm_])
def test_clipping_in_a_compiled_function(clip):
    """Ours runs whole; PyTorch's is captured or breaks. Both are right."""

    def run(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            norm = clip(model.parameters(), 0.1)
            optimizer.step()
            return norm

        if compiled:
            braze.compile_optimizer(optimizer)
            step = braze.compile(step)
        norms = [step(torch.ones(4, 6)) for _ in range(4)]
        return norms, list(model.parameters())

    torch.testing.assert_close(run(True), run(False), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RAdam", "NAdam", "Adamax", "Adagrad"])
@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_captured_step_is_no_further_from_doubles_than_eagers(name, foreach, dtype):
    """Counts and rates are numbers in eager, and tensors under a compiler: in single precision `1 - beta2**step` has lost four digits of seven."""
    torch.manual_seed(0)
    begin, *gradients = (torch.randn(64, 64).to(dtype) for _ in range(4))
    begin = begin / 20

    def stepped(of, compiled):
        p = nn.Parameter(begin.to(of, copy=True))
        optimizer = getattr(torch.optim, name)([p], lr=0.05, foreach=foreach)
        step = braze.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for gradient in gradients:
            p.grad = gradient.to(of)
            step()
        return p.detach().double()

    exact = stepped(torch.float64, False)
    ours, eagers = (float((stepped(dtype, compiled) - exact).abs().max()) for compiled in (True, False))
    # NAdam's product of its momenta is kept in single precision, in doubles too
    assert ours <= 1.5 * eagers + (1e-7 if dtype is torch.float32 else 5e-9)
