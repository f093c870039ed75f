"""Grouped products on a GPU by our own kernel: as near to float64 as eager's, groups of every size, a choice that is measured once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import braze
from braze.autotune import device_times
from braze.support import trace

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU with grouped products",
)
BF16 = torch.bfloat16


def mixture(x, gate_up, down, ends, order, weights):
    """A mixture's experts on tokens that are looked up sorted."""
    gate, up = torch._grouped_mm(x[order // 2], gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    return torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends) * weights[:, None]


def exact(x, gate_up, down, ends, order, weights):
    x, gate_up, down, weights = (t.double() for t in (x, gate_up, down, weights))
    made = []
    for e, (begin, end) in enumerate(zip([0, *ends.tolist()], ends.tolist())):
        gate, up = (x[order[begin:end] // 2] @ gate_up[e].t()).chunk(2, -1)
        made.append((F.silu(gate) * up) @ down[e].t())
    return torch.cat(made) * weights[:, None]


def given(counts, width, inner, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    rows, experts = sum(counts), len(counts)
    shapes = (-(-rows // 2), width), (experts, 2 * inner, width), (experts, width, inner), (rows,)
    x, gate_up, down, weights = (
        (torch.randn(s, device="cuda", generator=generator) * 0.2).to(BF16) for s in shapes
    )
    ends = torch.tensor(counts, device="cuda").cumsum(0, dtype=torch.int32)
    order = torch.randperm(rows, device="cuda", generator=generator)
    return x, gate_up, down, ends, order, weights


def calls_of(call, *inputs):
    """The calls of ATen in a compiled graph."""
    with trace.collect() as events, torch.no_grad():
        call(*inputs)
    return [name for kind, p in events if kind == "compiled" for name in p.externs]


@pytest.mark.parametrize("wanted", [True, None])
@pytest.mark.parametrize("width", [64, 200, 1024])
@pytest.mark.parametrize(
    "counts",
    [(1, 0, 0, 0, 0, 0, 0, 1), (0, 3, 1, 16, 0, 17, 33, 0), (70, 0, 130, 1), (500, 3, 1000, 0, 129, 128, 256, 32), (0,) * 40 + (5,) * 8 + (0,) * 50],
    ids=lambda c: f"{len(c)}-{sum(c)}",
)  # fmt: skip
def test_the_template_is_no_further_from_float64_than_eager(counts, width, wanted):
    inputs = given(counts, width, 72)
    call = braze.compile(mixture, dynamic=False, options={"grouped_template": wanted})
    calls = calls_of(call, *inputs)
    assert wanted is None or not any("_grouped_mm" in name for name in calls), calls
    with torch.no_grad():
        ours, eager = call(*inputs), mixture(*inputs)
    assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
    wanted_result = exact(*inputs)
    theirs = (eager.double() - wanted_result).norm()
    assert (ours.double() - wanted_result).norm() <= 1.2 * theirs + 1e-6 * wanted_result.norm()


def test_one_kernel_serves_whatever_a_router_chooses():
    call = braze.compile(mixture, dynamic=False, options={"grouped_template": True})
    for seed, counts in enumerate([(30, 0, 40, 58), (128, 0, 0, 0), (0, 1, 0, 127), (32, 32, 32, 32)]):
        inputs = given(counts, 256, 128, seed)
        with torch.no_grad():
            ours, eager = call(*inputs), mixture(*inputs)
        torch.testing.assert_close(ours, eager, rtol=0.03, atol=0.03)


def test_what_is_measured_is_measured_once(monkeypatch, tmp_path):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_times, "_KEPT", {})
    inputs = given((30, 0, 40, 58), 256, 136)
    counts = []
    for _ in range(2):
        call = braze.compile(mixture, mode="max-autotune-no-cudagraphs", dynamic=False)
        before = trace.COUNTERS["products_measured"]
        with torch.no_grad():
            torch.testing.assert_close(call(*inputs), mixture(*inputs), rtol=0.03, atol=0.03)
        counts.append(trace.COUNTERS["products_measured"] - before)
    assert counts[0] >= 2 and counts[1] == 0
