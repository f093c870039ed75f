"""Cuts of kernels that max-autotune times: eager's numbers, measured once, followed by the default; and what a trial does on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import braze
from braze.autotune import device_times
from braze.support import trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

#: name -> function, shapes of its inputs
FORMS = {
    "points": (lambda x, y: F.silu(x) * y, [(2051, 1111), (2051, 1111)]),
    "squares": (lambda x, y: x + y.t(), [(2050, 1025), (1025, 2050)]),
    "short rows": (lambda x: torch.softmax(x, 1), [(70001, 33)]),
    "whole rows": (lambda x, w: F.rms_norm(x, (4096,), w), [(1024, 4096), (4096,)]),
    "long rows": (lambda x: torch.log_softmax(x, 1), [(129, 50257)]),
    "columns": (lambda x: x.sum(0), [(65537, 100)]),
    "everything": (lambda x: (x.sum(), x.amax()), [(1 << 23,)]),
    "norm of columns": (lambda x: torch.linalg.vector_norm(x, 2, (1, 2)), [(16, 56, 56, 160)]),
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """What other runs have kept is not known here."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_times, "_KEPT", {})
    braze.reset()


def several(found):
    return list(found) if isinstance(found, (tuple, list)) else [found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_a_measured_cut_is_no_further_from_float64_than_eager(name, dtype, monkeypatch):
    fn, shapes = FORMS[name]
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [torch.randn(s, device="cuda", generator=generator).to(dtype) for s in shapes]
    exact, eager = several(fn(*(x.double() for x in inputs))), several(fn(*inputs))
    before = trace.COUNTERS["kernels_measured"]
    tuned = braze.compile(fn, dynamic=False, mode="max-autotune-no-cudagraphs")
    first, again = several(tuned(*inputs)), several(tuned(*inputs))
    assert trace.COUNTERS["kernels_measured"] > before
    braze.reset()  # which counts from 0 again
    monkeypatch.setattr(device_times, "_KEPT", {})  # another process
    followed = several(braze.compile(fn, dynamic=False)(*inputs))
    assert trace.COUNTERS["kernels_measured"] == 0
    for a, b, c, d, e in zip(first, again, followed, eager, exact, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c), "one choice, the same numbers each time"
        assert (a.dtype, a.shape, a.stride()) == (d.dtype, d.shape, d.stride())
        scale = float(e.abs().max().clamp_min(1e-30))
        allowed = float((d.double() - e).abs().max()) + 4 * torch.finfo(dtype).eps * scale
        assert float((a.double() - e).abs().max()) <= allowed


def test_recorded_calls_are_measured_too():
    fn = lambda x, w: F.rms_norm(x, (2048,), w).softmax(-1)
    x, w = torch.randn(4096, 2048, device="cuda"), torch.randn(2048, device="cuda")
    before = trace.COUNTERS["kernels_measured"]
    call = braze.compile(fn, dynamic=False, mode="max-autotune")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(call(x, w), fn(x, w), rtol=1e-5, atol=1e-6)
    assert trace.COUNTERS["kernels_measured"] > before


def test_without_memory_the_rule_stands(monkeypatch):
    monkeypatch.setattr("braze.autotune.kernel_times.room", lambda device: 1 << 20)
    x = torch.randn(4096, 2048, device="cuda")
    fn = lambda x: x.softmax(-1)
    torch.testing.assert_close(
        braze.compile(fn, options={"max_autotune": True})(x), fn(x), rtol=1e-5, atol=1e-6
    )
