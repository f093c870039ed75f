"""Parameters that no kernel can step, or only after a copy, end as PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze
from braze.support import trace
from tests.helpers import logged

OPTIONS = [
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
]


def both(make, cls=torch.optim.AdamW, steps=3, gradient=torch.randn_like, **options):
    """(PyTorch's parameters, ours) after some steps with the same random gradients."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        params = make()
        optimizer = cls(params, lr=0.1, foreach=False, **options)
        if compiled:
            braze.compile_optimizer(optimizer)
        for _ in range(steps):
            for p in params:
                p.grad = gradient(p)
            optimizer.step()
        results.append([p.detach() for p in params])
    return results


def check(results):
    for a, b in zip(*results):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
        assert a.stride() == b.stride()


@pytest.mark.parametrize(("cls", "options"), OPTIONS)
def test_other_orders_of_dims(cls, options):
    """Parameters and gradients may each be laid out in any order; gradients in another order are copied."""

    def make():
        return [
            nn.Parameter(torch.randn(4, 5).t()),
            nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)),
            nn.Parameter(torch.randn(3, 4)),
        ]

    def contiguous(p):
        return torch.randn_like(p, memory_format=torch.contiguous_format)

    with logged() as said:
        check(both(make, cls, **options))
        check(both(make, cls, gradient=contiguous, **options))
        check(both(make, cls, gradient=lambda p: torch.randn(p.numel(), 2)[:, 0].view(p.shape), **options))
        check(both(make, cls, gradient=lambda p: torch.randn(1).expand(p.shape), **options))
    assert not said


@pytest.mark.parametrize(("cls", "options"), OPTIONS)
def test_windows_and_overlaps(cls, options):
    """A window of a bigger tensor, two parameters on the same memory, one that reaches into another."""

    def make():
        big, line = torch.randn(6, 8), torch.randn(20)
        return [
            nn.Parameter(big[:, :4]),
            nn.Parameter(line[:10]),
            nn.Parameter(line[5:15]),
            nn.Parameter(line[15:]),
            nn.Parameter(line[15:]),
            nn.Parameter(torch.randn(3)),
        ]

    with logged() as said:
        check(both(make, cls, **options))
    assert any("BZ0031" in line for line in said)


def test_the_rest_of_the_group_is_compiled():
    """One odd parameter does not send its neighbours to PyTorch."""
    params = [nn.Parameter(torch.randn(3, 3)) for _ in range(4)]
    params.insert(2, nn.Parameter(torch.randn(4, 8)[:, :2]))
    optimizer = braze.compile_optimizer(torch.optim.Adam(params))
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    (plan,) = vars(optimizer)["_braze_stepper"].plans
    assert [p is params[2] for p in plan.odd] == [True]
    assert len(plan.buckets[0][0].params) == 4


def test_gradient_that_is_its_parameters_memory():
    """Eager reads the gradient after it has written the parameter; so must we."""
    check(
        both(lambda: [nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(5))], gradient=lambda p: p.data)
    )
    check(both(lambda: [nn.Parameter(torch.randn(7))], gradient=lambda p: p.data, weight_decay=0.5))


def test_one_gradient_for_two_parameters():
    """Shared memory that is only read is no obstacle."""
    shared = torch.randn(6)
    with logged() as said:
        check(
            both(
                lambda: [nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))],
                gradient=lambda p: shared,
            )
        )
    assert not said


def test_complex_parameters():
    """Complex ones go PyTorch's way beside real ones that do not."""
    with logged() as said:
        check(
            both(lambda: [nn.Parameter(torch.randn(4, dtype=torch.complex64)), nn.Parameter(torch.randn(4))])
        )
    assert any("complex64" in line for line in said)


def test_all_types_in_one_group():
    """One kernel for each type."""

    def make():
        return [nn.Parameter(torch.randn(5).to(d)) for d in (torch.float32, torch.float64, torch.float32)]

    check(both(make))


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD])
def test_sparse_gradients(cls):
    """SGD takes them, Adam raises: PyTorch's answer either way."""

    def sparse(p):
        return torch.randn_like(p).to_sparse() if p.dim() == 2 else torch.randn_like(p)

    def make():
        return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))]

    if cls is torch.optim.SGD:
        check(both(make, cls, gradient=sparse))
        return
    messages = []
    for compiled in (False, True):
        params = make()
        optimizer = cls(params)
        if compiled:
            braze.compile_optimizer(optimizer)
        for p in params:
            p.grad = sparse(p)
        before = params[1].detach().clone()
        with pytest.raises(RuntimeError) as error:
            optimizer.step()
        messages.append(str(error.value))
        assert torch.equal(before, params[1])
    assert messages[0] == messages[1]


def test_sparse_for_once():
    """A gradient that becomes sparse, and dense again, with the plan made anew each time."""
    turns = iter([False, True, False, False] * 2)

    def gradient(p):
        return torch.randn_like(p).to_sparse() if next(turns) else torch.randn_like(p)

    with logged() as said:
        check(both(lambda: [nn.Parameter(torch.randn(4, 3))], torch.optim.SGD, 4, gradient, momentum=0.9))
    assert [m for m in said if "its gradient is sparse" in m]


@pytest.mark.parametrize("option", ["capturable", "differentiable"])
def test_options_that_pytorch_keeps(option):
    """Their effects, and their errors, are PyTorch's."""
    outcomes = []
    for compiled in (False, True):
        p = nn.Parameter(torch.arange(4.0))
        optimizer = torch.optim.Adam([p], lr=0.1, **{option: True})
        if compiled:
            braze.compile_optimizer(optimizer)
        # a differentiable step is through a tensor that is no leaf
        p.grad = torch.ones(4)
        try:
            with torch.no_grad() if option == "capturable" else torch.enable_grad():
                optimizer.step()
            outcomes.append(p.detach().tolist())
        except (RuntimeError, AssertionError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


def test_differentiable_step_has_gradients():
    """Autograd goes through a step with differentiable=True."""
    gradients = []
    for compiled in (False, True):
        start = torch.arange(1.0, 4.0, requires_grad=True)
        p = start.clone()
        optimizer = torch.optim.SGD([p.detach().requires_grad_()], lr=0.1, differentiable=True)
        optimizer.param_groups[0]["params"][0] = p
        if compiled:
            braze.compile_optimizer(optimizer)
        p.retain_grad()
        p.grad = torch.ones(3) * 2
        optimizer.step()
        (g,) = torch.autograd.grad(p.square().sum(), start)
        gradients.append(g)
    assert torch.equal(*gradients)


def test_missing_state_raises_as_eager():
    """amsgrad that is switched on later lacks its state."""
    for compiled in (False, True):
        p = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([p])
        if compiled:
            braze.compile_optimizer(optimizer)
        p.grad = torch.ones(3)
        optimizer.step()
        optimizer.param_groups[0]["amsgrad"] = True
        with pytest.raises(KeyError, match="max_exp_avg_sq"):
            optimizer.step()


def test_tensor_subclasses():
    """A parameter of a class of the user's is PyTorch's to step."""

    class Marked(nn.Parameter):
        pass

    with logged() as said:
        check(both(lambda: [Marked(torch.randn(3)), nn.Parameter(torch.randn(3))]))
    assert [m for m in said if "it is a Marked" in m]


def test_without_a_c_compiler(monkeypatch, tmp_path):
    """PyTorch steps, and the reason is told once."""
    from braze.optim import build as kernels
    from braze.runtime.libraries import build

    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "compiler", build.compiler.__wrapped__)
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kernels, "_made", {})
    with logged() as said:
        check(both(lambda: [nn.Parameter(torch.randn(3))]))
    assert len([line for line in said if "no C compiler" in line]) == 1


def test_many_odd_parameters_are_sorted_out_at_once():
    """Dealing is linear in their number."""
    params = [nn.Parameter(torch.randn(2, 4)[:, :2]) for _ in range(300)]
    optimizer = braze.compile_optimizer(torch.optim.SGD(params, lr=0.1))
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert trace.snapshot()[0]["optimizer_plans"] == 1
