"""Any parameters, numbers and changes in between: the compiled step ends where PyTorch's loop over tensors does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import braze
from braze.optim import build
from braze.target import Target
from tests.optim.kinds import KINDS

SHAPES = st.lists(
    st.sampled_from([(), (0,), (1,), (2, 3), (17,), (64,), (65,), (130, 3)]), min_size=1, max_size=6
)
NUMBER = st.floats(0.0, 0.9, allow_subnormal=False)
GROUP = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-4, 0.5),
        "weight_decay": st.sampled_from([0.0, 0.01, 0.5]),
        "maximize": st.booleans(),
    }
)
ADAM = st.fixed_dictionaries(
    {"betas": st.tuples(NUMBER, NUMBER), "eps": st.sampled_from([1e-3, 1e-6]), "amsgrad": st.booleans()}
)
SGD = st.sampled_from(
    [
        {"momentum": 0.0},
        {"momentum": 0.9},
        {"momentum": 0.5, "dampening": 0.3},
        {"momentum": 0.5, "nesterov": True, "dampening": 0.0},
    ]
)
#: what happens before a step: per parameter whether it has a gradient, and a new learning rate
TURNS = st.lists(st.tuples(st.integers(0, 63), st.floats(1e-4, 0.5)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(SHAPES, GROUP, st.one_of(ADAM, SGD), TURNS, st.booleans())
def test_any_training(shapes, group, own, turns, decoupled):
    """Float64, in which rounding does not hide anything."""
    cls = torch.optim.SGD if "momentum" in own else torch.optim.AdamW if decoupled else torch.optim.Adam
    results = []
    for compiled in (False, True):
        g = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64)) for s in shapes]
        optimizer = cls(params, foreach=False, **group, **own)
        if compiled:
            braze.compile_optimizer(optimizer)
        for present, lr in turns:
            for i, p in enumerate(params):
                p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64) if present >> i & 1 else None
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
        results.append((params, [dict(optimizer.state[p]) for p in params if p in optimizer.state]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("arch", [("x86-64-avx2", 32), ("x86-64-sse2", 16)])
@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.dtype in ("f32", "bf16")],
    ids=lambda k: f"{k.algorithm}-{k.dtype}-{len(k.states)}",
)
def test_other_processors(kind, arch, monkeypatch):
    """Narrower vectors give what this processor's give."""
    dtype = torch.float32 if kind.dtype == "f32" else torch.bfloat16
    cls, options = torch.optim.SGD, {"momentum": 0.9 if kind.states else 0.0, "nesterov": kind.nesterov}
    if kind.algorithm == "adam":
        cls, options = torch.optim.AdamW, {"amsgrad": len(kind.states) > 2}
    results = []
    for target in (None, Target("cpu", arch[0], ("avx2", "fma") if "avx2" in arch[0] else (), arch[1], 2)):
        if target is not None:
            monkeypatch.setattr(build, "cpu_target", lambda: target)
            monkeypatch.setattr(build, "_made", {})
        g = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(n, generator=g).to(dtype)) for n in (3, 16, 1000)]
        optimizer = braze.compile_optimizer(cls(params, lr=0.1, **options))
        for _ in range(2):
            for p in params:
                p.grad = torch.randn(p.shape, generator=g).to(dtype)
            optimizer.step()
        norm = braze.clip_grad_norm_(params, 0.5)
        braze.clip_grad_value_(params, 0.01)
        results.append(([p.detach() for p in params], [p.grad for p in params], norm))
    torch.testing.assert_close(
        results[1], results[0], rtol=2e-6 if dtype == torch.float32 else 8e-3, atol=1e-6
    )
