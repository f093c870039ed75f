"""Steps of compiled optimizers are as near to float64 as PyTorch's own loop over tensors is, or the very same."""

from __future__ import annotations

import pytest
import torch

import braze

CASES = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw-no-decay": (torch.optim.AdamW, {"weight_decay": 0}),
    "adamw-amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "adam": (torch.optim.Adam, {}),
    "adam-l2-amsgrad": (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    "adam-maximize": (torch.optim.Adam, {"maximize": True, "weight_decay": 0.1}),
    "adam-heavy-lerp": (torch.optim.Adam, {"betas": (0.3, 0.7), "eps": 1e-3}),
    "adam-decoupled": (torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "sgd": (torch.optim.SGD, {}),
    "sgd-l2-maximize": (torch.optim.SGD, {"weight_decay": 0.1, "maximize": True}),
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "sgd-nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "sgd-dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
}
SHAPES = [(), (1,), (0,), (3, 5), (33, 7), (1, 1, 1), (5000,), (130, 129)]


def parameters(dtype, seed=0):
    """Parameters of all sorts of sizes, the same for a seed whatever the dtype."""
    g = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=g).to(torch.bfloat16).to(dtype)) for s in SHAPES]


def give_gradients(params, seed):
    g = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g).to(torch.bfloat16).to(p.dtype)


def trained(cls, options, dtype, compiled, steps=5, **more):
    """Parameters and state after some steps."""
    params = parameters(dtype)
    optimizer = cls(params, lr=0.05, **options, **more)
    if compiled:
        optimizer = braze.compile_optimizer(optimizer)
    for seed in range(steps):
        give_gradients(params, seed)
        optimizer.step()
    return params, optimizer


def error(params, exact):
    """Distance to the exact values over all parameters, in relation to their size."""
    ours, there = (torch.cat([p.detach().double().ravel() for p in ps]) for ps in (params, exact))
    return ((ours - there).norm() / there.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_no_further_from_float64_than_eager(case, dtype):
    """Five steps; eager is the loop over single tensors."""
    cls, options = CASES[case]
    if dtype == torch.float16:
        # 1e-8 is zero in float16, and the parameters of eager infinite
        options = {"eps": 1e-3, **options} if cls is not torch.optim.SGD else options
    exact, _ = trained(cls, options, torch.float64, False, foreach=False)
    eager, theirs = trained(cls, options, dtype, False, foreach=False)
    ours, mine = trained(cls, options, dtype, True)
    rounding = torch.finfo(dtype).eps / 4
    assert error(ours, exact) <= error(eager, exact) * 1.05 + rounding
    for p, q in zip(eager, ours):
        before, after = theirs.state[p], mine.state[q]
        assert list(before) == list(after)
        for key, value in before.items():
            found = after[key]
            assert (value.dtype, value.shape, value.stride()) == (found.dtype, found.shape, found.stride())
        if "step" in before:
            assert torch.equal(before["step"], after["step"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("sgd")])
def test_sgd_is_bit_for_bit_eagers(case, dtype):
    """Operation by operation the same roundings."""
    cls, options = CASES[case]
    eager, _ = trained(cls, options, dtype, False, foreach=False)
    ours, _ = trained(cls, options, dtype, True)
    assert all(torch.equal(a, b) for a, b in zip(eager, ours))


@pytest.mark.parametrize("case", CASES)
def test_special_values_as_in_eager(case):
    """Signed zeros, infinities and nan in parameters and gradients end where eager's end."""
    cls, options = CASES[case]
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38])
    grid = torch.cartesian_prod(values, values)
    results = []
    for compiled in (False, True):
        p = torch.nn.Parameter(grid[:, 0].clone())
        optimizer = cls([p], lr=0.05, foreach=False, **options)
        if compiled:
            optimizer = braze.compile_optimizer(optimizer)
        for _ in range(3):
            p.grad = grid[:, 1].clone()
            optimizer.step()
        results.append(p.detach())
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=0, equal_nan=True)
    assert torch.equal(results[0].signbit() & (results[0] == 0), results[1].signbit() & (results[1] == 0))


def test_an_average_without_memory_is_the_gradient():
    """Of a large one before nothing is left, not even a rounding error."""
    p = torch.nn.Parameter(torch.zeros(5))
    optimizer = braze.compile_optimizer(torch.optim.Adam([p], lr=0.05, betas=(0.0, 0.9)))
    for gradient in (1e8, 1.0):
        p.grad = torch.full((5,), gradient)
        optimizer.step()
    assert torch.equal(optimizer.state[p]["exp_avg"], torch.ones(5))


def test_a_maximum_that_is_nan_stays_nan():
    results = []
    for wrap in (lambda o: o, braze.compile_optimizer):
        p = torch.nn.Parameter(torch.zeros(5))
        optimizer = wrap(torch.optim.Adam([p], lr=0.05, amsgrad=True, foreach=False))
        for turn in range(2):
            p.grad = torch.ones(5)
            optimizer.step()
            if not turn:
                optimizer.state[p]["max_exp_avg_sq"][2] = float("nan")
        results.append((p.detach(), optimizer.state[p]["max_exp_avg_sq"]))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        assert ours.isnan().tolist() == [False, False, True, False, False]


def test_more_rows_than_spans_and_spans_within_rows():
    """Rows that begin and end within a thread's share, and one over many shares."""
    sizes = [1, 63, 64, 65, 16384, 16385, 200_000, 0, 7]
    results = []
    for compiled in (False, True):
        g = torch.Generator().manual_seed(3)
        params = [torch.nn.Parameter(torch.randn(n, generator=g)) for n in sizes]
        optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        if compiled:
            braze.compile_optimizer(optimizer)
        for _ in range(2):
            for p in params:
                p.grad = torch.randn(p.shape, generator=g)
            optimizer.step()
        results.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*results))
