"""Results that a function makes in an inference mode that it enters itself: tensors of that mode, which autograd refuses."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.support import trace


@torch.inference_mode()
def decorated(x):
    return x * 2, x.t(), x


def in_a_block(x):
    with torch.inference_mode():
        y = x * 2
    return y, y.sum


def beside_a_break(x):
    with torch.inference_mode():
        y = x * 2
        braze.graph_break()
        z = y + 1
    return y, z, x * 3


def writing(x):
    with torch.inference_mode():
        x.mul_(2)
        return x[0], x.mT.contiguous(), torch.ones(3), x.sum().item()


def before_the_block(x):
    z = x + 1
    with torch.inference_mode():
        return z.t(), z


def seen(program, around: bool) -> list[tuple[bool, bool, bool, list[float]]]:
    with torch.inference_mode(around):
        x = torch.arange(6.0).reshape(2, 3).clone()
        results = program(x)
    tensors = [x, *(r for r in results if isinstance(r, torch.Tensor))]
    return [(t.is_inference(), t.requires_grad, t._is_view(), t.tolist()) for t in tensors]


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", [decorated, in_a_block, beside_a_break, writing, before_the_block])
def test_what_is_made_in_an_inference_mode_that_the_function_enters_is_of_that_mode(program, backend, around):
    compiled = braze.compile(program, backend=backend)
    for _ in range(2):
        assert seen(compiled, around) == seen(program, around)


def test_autograd_refuses_them_as_in_eager():
    weight = torch.ones(2, 3, requires_grad=True)
    for program in (decorated, braze.compile(decorated)):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            program(torch.ones(2, 3))[0] * weight


def test_those_of_a_kept_capture_are_of_that_mode_too(tmp_path, monkeypatch):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    for counter in ("captures", "captures_loaded"):
        braze.reset()
        before, _ = trace.snapshot()
        compiled = braze.compile(decorated, options={"keep_captures": True})
        assert seen(compiled, False) == seen(decorated, False)
        after, _ = trace.snapshot()
        assert after[counter] > before[counter]
