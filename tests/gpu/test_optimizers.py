"""Compiled optimizers on a GPU: as near to float64 as eager, faster than fused, and no waiting for the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw-fused": (torch.optim.AdamW, {"fused": True}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "sgd": (torch.optim.SGD, {}),
    "sgd-nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd-dampening": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
}
SHAPES = [(), (1,), (0,), (3, 5), (8192,), (8193,), (300, 400), (7, 11, 13)]


def trained(cls, options, dtype, compiled, steps=5):
    """Parameters after some steps with gradients that are the same for all."""
    g = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=g).bfloat16().to("cuda", dtype)) for s in SHAPES]
    options = dict(options)
    if not options.get("fused"):  # which refuses gradients of another layout
        params.append(nn.Parameter(torch.randn(40, 60, generator=g).bfloat16().to("cuda", dtype).t()))
    if not options.get("fused"):
        options["foreach"] = False
    optimizer = cls(params, lr=0.05, **options)
    if compiled:
        braze.compile_optimizer(optimizer)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=g).bfloat16().to("cuda", dtype)
        optimizer.step()
    return params, optimizer


def error(params, exact):
    ours, there = (torch.cat([p.detach().double().reshape(-1) for p in ps]) for ps in (params, exact))
    return ((ours - there).norm() / there.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_no_further_from_float64_than_eager(case, dtype):
    cls, options = CASES[case]
    exact, _ = trained(cls, options, torch.float64, False)
    eager, theirs = trained(cls, options, dtype, False)
    ours, mine = trained(cls, options, dtype, True)
    assert not vars(mine)["_braze_stepper"].plans[0].odd
    assert error(ours, exact) <= error(eager, exact) * 1.05 + 2 * torch.finfo(dtype).eps
    for p, q in zip(eager, ours):
        for key, value in theirs.state[p].items():
            found = mine.state[q][key]
            assert (value.dtype, value.device, value.shape) == (found.dtype, found.device, found.shape)
            if key == "step":
                assert torch.equal(value, found)


@pytest.mark.parametrize("fused", [True, None])
def test_grad_scaler(fused):
    """Scaled gradients, one step of which finds an infinity and is skipped."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        if compiled:
            braze.compile_optimizer(optimizer)
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
        for turn in range(5):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.ones(4, 64, device="cuda")).square().sum()
            scaler.scale(loss).backward()
            if turn == 2:
                model[0].weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        results.append([*model.parameters(), *(s["step"].cuda() for s in optimizer.state.values())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_faster_than_fused():
    """A thousand parameters of ten thousand elements."""
    optimizers = {}
    for name in ("fused", "braze", "braze-fused"):
        params = [nn.Parameter(torch.randn(10_000, device="cuda")) for _ in range(1000)]
        for p in params:
            p.grad = torch.randn_like(p)
        made = torch.optim.AdamW(params, fused=name != "braze")
        optimizers[name] = made if name == "fused" else braze.compile_optimizer(made)
        made.step()
    torch.cuda.synchronize()
    import time

    spent = {name: [] for name in optimizers}
    for _ in range(11):
        for name, optimizer in optimizers.items():
            start = time.perf_counter()
            for _ in range(5):
                optimizer.step()
            torch.cuda.synchronize()
            spent[name].append((time.perf_counter() - start) / 5)
    medians = {name: sorted(times)[5] * 1e3 for name, times in spent.items()}
    print("milliseconds per step:", medians)
    assert medians["braze-fused"] <= medians["fused"]
    assert medians["braze"] <= medians["fused"] * 1.2


def clipped(clip, dtype, *args):
    """Gradients of several chunks, of none and of one element, clipped, and what that gives."""
    g = torch.Generator("cuda").manual_seed(0)
    sizes = ((300, 401), (0,), (1,), (8192,), (3, 5))
    params = [nn.Parameter(torch.zeros(s, device="cuda", dtype=dtype)) for s in sizes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=g, device="cuda").to(dtype)
    return clip(params, *args), [p.grad for p in params]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_are_clipped_as_pytorchs(dtype):
    near = {"rtol": {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, 1e-5), "atol": 1e-7}
    for largest in (0.5, 1e6):
        ours, theirs = (clipped(m.clip_grad_norm_, dtype, largest) for m in (braze, nn.utils))
        torch.testing.assert_close(ours[0], theirs[0], **near)
        torch.testing.assert_close(ours[1], theirs[1], **near)
    ours, theirs = (clipped(m.clip_grad_value_, dtype, 0.3) for m in (braze, nn.utils))
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0)


def test_clipping_in_a_recording_is_pytorchs():
    """A table of addresses that was sent once would be read at each replay."""
    p = nn.Parameter(torch.zeros(64, device="cuda"))
    p.grad = torch.ones(64, device="cuda")
    braze.clip_grad_norm_(p, 1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        braze.clip_grad_norm_(p, 1.0)
    p.grad.fill_(2)
    graph.replay()
    torch.testing.assert_close(p.grad.norm().item(), 1.0, rtol=1e-5, atol=0)
