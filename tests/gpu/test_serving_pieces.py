"""Pieces of a model recorded as CUDA graphs: what the model gives, at each border, with weights and buffers that stay and inputs that change."""

from __future__ import annotations

import pytest
import torch

from braze.serving.pieces.custom_ops import direct_register_custom_op
from braze.serving.pieces.wrapper import CUDAGraphWrapper
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import forward_context
from tests.serving.pieces import test_backend as pieces

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL

direct_register_custom_op("k_attend", pieces.attend, ["out"], dispatch_key="CUDA")
direct_register_custom_op("k_give", pieces.give, fake_impl=torch.empty_like, dispatch_key="CUDA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("compiler", ["braze", "eager"])
@pytest.mark.parametrize("pool", ["shared", "per_tier"])
@pytest.mark.parametrize("split", ["graph", "schedule", "capture"])
def test_every_border_gives_what_the_model_gives(split, pool, compiler):
    if (split, compiler) == ("schedule", "eager"):
        pytest.skip("eager has no schedule")
    model = pieces.Model().eval().cuda()
    config = pieces.configured(split=split, pool=pool, use_inductor=compiler == "braze")
    call, backend = pieces.compiled(model, config)
    buffer = torch.randn(16, 8, device="cuda")
    kept = []
    for n, mode, scale in [
        (8, NONE, 1.0),
        (16, NONE, 1.0),
        (4, NONE, 1.0),
        (16, PIECEWISE, 1.0),
        (8, PIECEWISE, 1.0),
        (8, PIECEWISE, 2.0),
        (4, PIECEWISE, 2.0),
        (16, PIECEWISE, 3.0),
        (4, PIECEWISE, 1.0),
        (8, PIECEWISE, 3.0),
    ]:
        buffer.copy_(torch.randn(16, 8, device="cuda"))
        with pieces.step(NONE, n, scale), torch.no_grad():
            expected = model(buffer[:n])
        with pieces.step(mode, n, scale):
            out = call(buffer[:n])
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        kept.append((out, expected))
    assert backend.wrappers
    for wrapper in backend.wrappers:
        assert not wrapper.reasons(), wrapper.reasons()
        assert {d.num_tokens for d in wrapper.captured()} == {4, 8, 16}
    for out, expected in kept:
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_a_whole_call_is_recorded_and_its_outputs_do_not_hold_the_pool():
    f = lambda x, cache: cache.add_(x).relu() @ x.t()
    wrapped = CUDAGraphWrapper(f, FULL)
    buffer, cache = torch.randn(16, 8, device="cuda"), torch.zeros(16, 8, device="cuda")
    f(buffer, cache.clone())  # what libraries make at a first call is there
    expected = cache.clone()
    for _ in range(4):
        with forward_context(cudagraph_runtime_mode=FULL, batch_descriptor=BatchDescriptor(16)):
            out = wrapped(buffer, cache)
        expected.add_(buffer)
        torch.testing.assert_close(cache, expected)
        torch.testing.assert_close(out, expected.relu() @ buffer.t())
    assert len(wrapped.captured()) == 1, wrapped.reasons()


def test_what_makes_the_host_wait_runs_as_it_is():
    wrapped = CUDAGraphWrapper(lambda x: x + x.sum().item(), FULL)
    x = torch.ones(4, device="cuda")
    for _ in range(2):
        with forward_context(cudagraph_runtime_mode=FULL, batch_descriptor=BatchDescriptor(4)):
            torch.testing.assert_close(wrapped(x), x + 4)
    assert wrapped.reasons()
