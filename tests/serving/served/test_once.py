"""At levels 2 and 3 a kind of call is captured once: no guard captures again, and what a call brings is never taken for another's."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from braze import serve
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.support import trace
from braze.support.errors import UserError
from tests.helpers import logged


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_forward_behind_a_decorator_is_served(level):
    class Behind(Scaled):
        @functools.wraps(Scaled.forward)
        def forward(self, *args, **kwargs):
            return Scaled.forward(self, *args, **kwargs)

    m = serve(Behind(), level=level, cudagraph_mode="NONE", dynamic={"x": 0, "bias": 0})
    for n in (3, 5, 1):
        x, bias = torch.randn(n, 8), torch.randn(n, 8)
        for args, kwargs in [((x,), {}), ((x, bias), {}), ((), dict(bias=bias, x=x, power=2.0))]:
            with torch.inference_mode():
                torch.testing.assert_close(m(*args, **kwargs), m.model(*args, **kwargs))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache: captures are kept on disk."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), 2.0

    def forward(self, x, bias=None, *, power: float = 1.0):
        y = self.linear(x) * self.scale
        return y * power if bias is None else y * power + bias


def served(level=2, **words):
    model = Scaled().eval()
    words = dict(level=level, cudagraph_mode="NONE", max_num_seqs=8, max_num_batched_tokens=64) | words
    if level == 3:
        words["split_ops"] = []
    return model, serve(model, **words)


def captures(call) -> int:
    before = trace.COUNTERS["captures"]
    call()
    return trace.COUNTERS["captures"] - before


LEVELS = pytest.mark.parametrize("level", [2, 3])


@LEVELS
def test_sizes_and_changed_attributes_make_no_capture(level):
    model, m = served(level)
    assert captures(lambda: [m(torch.randn(n, 8)) for n in (5, 2, 64, 3)]) == 1
    assert captures(lambda: [m(torch.randn(1, 8)) for _ in range(2)]) == 1
    x = torch.randn(4, 8)
    with torch.no_grad():
        before = model(x)
    model.scale = 3.0
    with logged() as said:
        found = None

        def call():
            nonlocal found
            found = m(x)

        assert captures(call) == 0
    torch.testing.assert_close(found, before)
    assert sum("BZ7217" in text for text in said) == 1


@LEVELS
def test_a_changed_attribute_is_refused_where_guards_are_evaluated(level):
    model, m = served(level, evaluate_guards=True)
    m(torch.randn(4, 8))
    model.scale = 3.0
    with pytest.raises(UserError, match=r"BZ7217.*scale"):
        m(torch.randn(4, 8))


@LEVELS
@pytest.mark.parametrize("mode", ["NONE", "FULL"])
def test_tensors_of_inference_mode_and_one_tensor_twice_are_kinds_of_calls(level, mode):
    """None is refused as what another was captured for: recorded steps have buffers in their place, which are neither."""
    model, m = served(level, evaluate_guards=True, cudagraph_mode=mode, capture_sizes=[4])
    plain = [torch.randn(n, 8) for n in (3, 6, 7)]
    with torch.inference_mode():
        own = [x.clone() for x in plain]

    def calls():
        for x, y in zip(plain, own, strict=True):
            for args in ((x,), (y,), (x, x), (x, x.clone()), (y, y)):
                with torch.no_grad():
                    torch.testing.assert_close(m(*args), model(*args))

    register("cpu", SimulatedGraphs if mode == "FULL" else None)
    try:
        with logged() as said:
            assert captures(calls) > 0
            assert captures(calls) == 0
    finally:
        register("cpu", None)
    assert bool(m.stats().captured) == (mode == "FULL")
    assert not any("BZ7217" in text for text in said)


@LEVELS
def test_parameters_are_those_of_the_call(level):
    model, m = served(level)
    x = torch.randn(4, 8)
    m(x)
    model.linear.weight = nn.Parameter(torch.randn(8, 8))
    with torch.no_grad():
        torch.testing.assert_close(m(x), model(x))


@LEVELS
def test_another_kind_of_call_has_a_capture_of_its_own(level):
    model, m = served(level, dynamic={"x": 0, "bias": 0})
    calls = [
        ((torch.randn(4, 8),), {}),
        ((torch.randn(4, 8),), {"power": 3.0}),
        ((torch.randn(4, 8),), {"power": -0.0}),
        ((torch.randn(4, 8),), {"power": 0.0}),
        ((torch.randn(4, 8), torch.randn(4, 8)), {}),
        ((torch.randn(4, 8), torch.randn(4, 8).double()), {}),
        ((torch.randn(1, 8), torch.randn(1, 8)), {}),
        ((torch.randn(8, 4).t(),), {}),
        ((torch.randn(4, 16)[:, ::2],), {}),
    ]
    with torch.no_grad():
        for _ in range(2):
            for args, kwargs in calls:
                found, wanted = m(*args, **kwargs), model(*args, **kwargs)
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
                assert torch.equal(found.signbit() & (found == 0), wanted.signbit() & (wanted == 0))
    assert captures(lambda: [m(*args, **kwargs) for args, kwargs in calls]) == 0


def test_sizes_that_do_not_vary_are_kinds():
    class Summed(nn.Module):
        def forward(self, x, table):
            return x @ table, table.shape[0]

    m = serve(Summed(), level=2, cudagraph_mode="NONE", dynamic={"x": 0})
    for width in (4, 6):
        found, rows = m(torch.ones(3, width), torch.ones(width, 2))
        assert rows == width
        assert torch.equal(found, torch.full((3, 2), float(width)))


def test_hooks_run():
    model, m = served()
    x = torch.randn(4, 8)
    m(x)
    handle = model.register_forward_hook(lambda module, args, result: result + 1)
    with torch.no_grad():
        torch.testing.assert_close(m(x), model(x))
        handle.remove()
        torch.testing.assert_close(m(x), model(x))


def test_what_was_taken_for_granted_is_listed():
    _, m = served()
    m(torch.randn(4, 8))
    assert any("scale" in text for text in m.dropped_guards())


@LEVELS
def test_a_call_that_is_recorded_is_what_was_captured(level):
    """The simulated device records by a mode of PyTorch's, of which a guard must not tell."""
    register("cpu", SimulatedGraphs)
    try:
        model, m = served(level, cudagraph_mode="FULL", capture_sizes=[1, 4, 8], evaluate_guards=True)
        x = torch.randn(3, 8)
        with logged() as said, torch.no_grad():
            m.capture(torch.randn(8, 8))
            torch.testing.assert_close(m(x), model(x))
    finally:
        register("cpu", None)
    assert not m.stats().failures
    assert not [text for text in said if "BZ7217" in text]
